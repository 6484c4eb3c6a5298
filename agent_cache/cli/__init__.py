"""The command line, `agent-cache COMMAND`: one module for each command, and `main`, which reads the arguments."""
