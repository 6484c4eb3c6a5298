"""The local tier by itself: async-cache's interface over this library's store, single flight and batches."""

from agent_cache._async_cache.interface import AsyncCache

__all__ = ["AsyncCache"]
