"""What the seam of aiohttp relies on: a version without it is told, or fails here first."""

from __future__ import annotations

import pytest

from agent_cache.recording.http import aiohttp_seam


def test_an_aiohttp_without_middlewares_is_left_alone():
    class Session:
        async def _request(self, method: str, url: str) -> None: ...

    class Library:
        ClientSession = Session

    with pytest.raises(LookupError, match=r"aiohttp 3\.12"):
        aiohttp_seam.patches(Library)


def test_what_a_connector_error_of_aiohttp_is_made_of():
    aiohttp = pytest.importorskip("aiohttp")
    from aiohttp.client_reqrep import ConnectionKey

    from agent_cache.recording.exceptions import error_data, read_error

    assert {"host", "port", "is_ssl", "ssl"} <= set(ConnectionKey._fields)
    key = ConnectionKey(
        **{**dict.fromkeys(ConnectionKey._fields), "host": "a", "port": 1, "is_ssl": False, "ssl": True}
    )
    for kind in (aiohttp.ClientConnectorError, aiohttp.ClientConnectorDNSError, aiohttp.ClientProxyConnectionError):
        error = kind(key, OSError(111, "refused"))
        again = read_error(error_data(error))
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.os_error.errno == 111
