"""What `agent-cache advise` finds in logs, judged by replaying other logs under it."""
