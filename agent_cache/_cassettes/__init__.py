"""What `agent-cache cassette ...` does with recordings."""
