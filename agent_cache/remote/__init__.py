"""Caches outside of this process: the tiers, and what a tier of one's own is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote.protocol import Found, Request, WriteIntent

if TYPE_CHECKING:
    from agent_cache.remote.backend import Backend
    from agent_cache.remote.file import FileTier
    from agent_cache.remote.memory import MemoryTier
    from agent_cache.remote.redis import RedisTier
    from agent_cache.remote.versioned import Tier, VersionedTier

__all__ = [
    "Backend", "FileTier", "Found", "MemoryTier", "RedisTier", "RemoteTierError", "Request", "Tier", "VersionedTier",
    "WriteIntent", "from_url",
]  # fmt: skip

_MODULES = {
    "Backend": "backend", "FileTier": "file", "MemoryTier": "memory", "RedisTier": "redis",
    "Tier": "versioned", "VersionedTier": "versioned",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a tier when it is asked for: one needs redis-py, another the SQLite of this Python."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"agent_cache.remote.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def from_url(url: str, **options: Any) -> Tier:
    """A tier at a URL, which may come from a setting or the environment.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, for `RedisTier.from_url`; or a file for `FileTier`, as
            SQLAlchemy writes it: ``sqlite:///cache.db`` is relative to the working directory,
            ``sqlite:////var/cache.db`` absolute, ``sqlite:///~/cache.db`` below the home directory.
        options: of that tier, passed on.

    Raises:
        ConfigurationError: if it is no such URL, or the tier cannot be made. A password in it is not repeated.
        ModuleNotFoundError: if it is a server and redis-py is not installed.
    """
    path = path_of_url(url)
    if path is None:
        from agent_cache.remote.redis import RedisTier

        return RedisTier.from_url(url, **options)
    from agent_cache.remote.file import FileTier

    return FileTier(path, **options)


def path_of_url(url: object) -> str | None:
    """The path that a URL of a file names; None if the URL is that of a server.

    Raises:
        ConfigurationError: if it is neither.
    """
    scheme, colon, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if colon and scheme.lower() in ("redis", "rediss", "unix"):
        return None
    if scheme.lower() != "sqlite":
        raise ConfigurationError(
            "the URL cannot be read: it must begin with redis://HOST, rediss://HOST, unix://SOCKET or sqlite:///PATH"
        )
    if not rest.startswith("/") or not rest[1:] or "?" in rest:
        raise ConfigurationError(
            "the URL of a file is a path and nothing else: sqlite:///relative.db or sqlite:////absolute.db, with three "
            "or four slashes; options are given to FileTier, or to from_url"
        )
    return rest[1:]
