"""The address of a tier as a text: a URL of a server, or of a file.

Redis and SQLite are imported for their own schemes alone, so that neither has to be there for the other.
"""

from __future__ import annotations

from typing import Any

from agent_cache.errors import ConfigurationError
from agent_cache.remote.versioned import Tier

__all__ = ["from_url", "path_of_url"]


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
