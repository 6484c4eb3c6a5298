"""Coherent caching of LLM agents' tool calls: read tools answer from a cache that is never stale after a write.

PYTEST_DONT_REWRITE: there is a pytest plugin in here, so pytest would warn of an import that came before its own.
"""

import typing

if typing.TYPE_CHECKING:
    from agent_cache.async_cache import AsyncCache
    from agent_cache.config import configure
    from agent_cache.core.options import LoopHints, RemotePolicy
    from agent_cache.core.tags import tags_from
    from agent_cache.engine.audit import StaleHit
    from agent_cache.engine.middleware import ToolCall
    from agent_cache.errors import (
        AgentCacheError,
        AgentLoopDetectedError,
        ConfigurationError,
        RemoteTierError,
        UncacheableArgumentsError,
    )
    from agent_cache.metrics import get_metrics
    from agent_cache.session import AgentCacheSession
    from agent_cache.session.loop_policy import LoopPolicy
    from agent_cache.session.trace import TraceRecord
    from agent_cache.toolbox import Inner, Pass, Read, Toolbox, Watch, Write
    from agent_cache.tools import AgentCache, AgentCacheInvalidator, bypass, invalidate, invalidate_sync, writing
    from agent_cache.tuning import Recommendation, get_ttl, recommendations, set_ttl

__all__ = [
    "AgentCache",
    "AgentCacheError",
    "AgentCacheInvalidator",
    "AgentCacheSession",
    "AgentLoopDetectedError",
    "AsyncCache",
    "ConfigurationError",
    "Inner",
    "LoopHints",
    "LoopPolicy",
    "Pass",
    "Read",
    "Recommendation",
    "RemotePolicy",
    "RemoteTierError",
    "StaleHit",
    "ToolCall",
    "Toolbox",
    "TraceRecord",
    "UncacheableArgumentsError",
    "Watch",
    "Write",
    "bypass",
    "configure",
    "get_metrics",
    "get_ttl",
    "invalidate",
    "invalidate_sync",
    "recommendations",
    "set_ttl",
    "tags_from",
    "writing",
]

# Each name is loaded when it is asked for: the pytest plugin is imported by every test run of every project that has
# this package installed, and the commands by every `--help`.
_HOMES = {
    "AgentCache": "tools",
    "AgentCacheInvalidator": "tools",
    "AgentCacheSession": "session",
    "AsyncCache": "async_cache",
    "Inner": "toolbox",
    "LoopHints": "core.options",
    "LoopPolicy": "session.loop_policy",
    "Pass": "toolbox",
    "Read": "toolbox",
    "Recommendation": "tuning",
    "RemotePolicy": "core.options",
    "StaleHit": "engine.audit",
    "ToolCall": "engine.middleware",
    "Toolbox": "toolbox",
    "TraceRecord": "session.trace",
    "Watch": "toolbox",
    "Write": "toolbox",
    "bypass": "tools",
    "configure": "config",
    "get_metrics": "metrics",
    "get_ttl": "tuning",
    "invalidate": "tools",
    "invalidate_sync": "tools",
    "recommendations": "tuning",
    "set_ttl": "tuning",
    "tags_from": "core.tags",
    "writing": "tools",
}
_MODULES = frozenset({"config", "errors", "otel", "prometheus", "recording", "remote", "testing"})

if not typing.TYPE_CHECKING:
    from agent_cache.at_fork import lock_of as _lock_of

    _lock = _lock_of(__name__)

    def __getattr__(name: str) -> object:
        """Load a public name, or a public module."""
        from importlib import import_module

        if name not in _MODULES and name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with _lock:  # of two threads, each could wait for a module that the other one is importing
            if name in _MODULES:
                return import_module(f"{__name__}.{name}")
            found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
            return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
