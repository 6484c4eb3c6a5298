"""What `agent-cache demo` shows: scripted agents in a small shop, and a check of every answer they get."""
