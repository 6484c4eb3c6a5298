"""The tier in a file, for the processes of one machine. It needs nothing but the standard library."""

from agent_cache.remote.file.file_tier import FileTier

__all__ = ["FileTier"]
