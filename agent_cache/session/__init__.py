"""One run of an agent: its own cache, its trace, its metrics, and the guard against loops."""

from agent_cache.session.session import AgentCacheSession

__all__ = ["AgentCacheSession"]
