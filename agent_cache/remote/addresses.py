"""The address of a tier as a text: a URL of a server, or of a file.

Redis and SQLite are imported for their own schemes alone, so that neither has to be there for the other.
"""

from __future__ import annotations

import re
from typing import Any, Final

from agent_cache.errors import ConfigurationError
from agent_cache.remote.protocol import Tier

__all__ = ["from_url", "path_of_url"]

_ADDRESSES: Final = "redis://HOST, rediss://HOST, unix://SOCKET or sqlite:///PATH"
"""What `from_url` takes, for error texts and help."""

_SERVERS: Final = ("redis", "rediss", "unix")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


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
    found = _SCHEME.match(url) if isinstance(url, str) else None
    if found is None or not isinstance(url, str):
        raise ConfigurationError(f"the URL cannot be read: it must begin with {_ADDRESSES}")
    scheme, rest = found[1].lower(), url[found.end() :]
    if scheme in _SERVERS:
        return None
    if scheme != "sqlite":
        raise ConfigurationError(f"the URL cannot be read: it must begin with {_ADDRESSES}, not with {scheme}://")
    if not rest.startswith("/"):
        raise ConfigurationError(
            "the URL of a file has no host: sqlite:///relative.db or sqlite:////absolute.db, with three or four slashes"
        )
    path, question, _ = rest[1:].partition("?")
    if question:
        raise ConfigurationError(
            "the URL of a file takes no parameters after a question mark; give options to FileTier, or to from_url"
        )
    if not path:
        raise ConfigurationError("the URL names no file: write sqlite:///relative.db or sqlite:////absolute.db")
    return path
