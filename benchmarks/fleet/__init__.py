"""Coherence under faults: processes that read and write through one server, and a check of every single read."""
