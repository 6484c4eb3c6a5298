"""Sessions: one run of an agent with its own cache, trace, metrics and loop guard."""

from agent_cache.session.session import AgentCacheSession

__all__ = ["AgentCacheSession"]
