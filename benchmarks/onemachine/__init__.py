"""One cache for the processes of one machine, in a file."""
