"""What goes wrong between a value and its plain data."""

from __future__ import annotations

from agent_cache.errors import AgentCacheError

__all__ = ["Undecodable", "Unencodable"]


class Unencodable(AgentCacheError):
    """A value cannot be written down so that it comes back as it was. The text names types, never the value."""


class Undecodable(AgentCacheError):
    """Data is not what an encoder wrote for this return annotation: broken, forged, foreign or of another version."""
