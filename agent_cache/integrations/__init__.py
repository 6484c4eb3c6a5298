"""Adapters: the tools of an agent, of a server or of any framework go through a `Toolbox`, without decorating them."""

from agent_cache.integrations.any_framework import explain, wrap

__all__ = ["explain", "wrap"]
