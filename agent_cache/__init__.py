"""Coherent caching of LLM agents' tool calls: read tools answer from a cache that is never stale after a write."""

from agent_cache._async_cache import AsyncCache
from agent_cache._cache import AgentCache
from agent_cache._core.loop_policy import LoopHints, LoopPolicy
from agent_cache._core.policies import RemotePolicy
from agent_cache._core.tags import tags_from
from agent_cache._core.trace import TraceRecord
from agent_cache._invalidator import AgentCacheInvalidator, invalidate, writing
from agent_cache._metrics import get_metrics
from agent_cache._session import AgentCacheSession
from agent_cache.config import configure
from agent_cache.errors import (
    AgentCacheError,
    AgentLoopDetectedError,
    ConfigurationError,
    RemoteTierError,
    UncacheableArgumentsError,
)

__all__ = [
    "AgentCache",
    "AgentCacheError",
    "AgentCacheInvalidator",
    "AgentCacheSession",
    "AgentLoopDetectedError",
    "AsyncCache",
    "ConfigurationError",
    "LoopHints",
    "LoopPolicy",
    "RemotePolicy",
    "RemoteTierError",
    "TraceRecord",
    "UncacheableArgumentsError",
    "configure",
    "get_metrics",
    "invalidate",
    "tags_from",
    "writing",
]
