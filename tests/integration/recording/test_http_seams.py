"""What the seams of the HTTP clients rely on in each library, by name: a version without it fails here first."""

from __future__ import annotations

import http.client
import inspect
import io
import urllib.request
from typing import Any

import pytest

from agent_cache.recording.http import aiohttp_seam


def test_every_request_of_urllib_passes_one_method():
    handler: Any = urllib.request.AbstractHTTPHandler
    assert list(inspect.signature(handler.do_open).parameters)[:3] == ["self", "http_class", "req"]
    for kind, method in ((urllib.request.HTTPHandler, "http_open"), (urllib.request.HTTPSHandler, "https_open")):
        assert "do_open" in inspect.getsource(getattr(kind, method))


def test_http_client_reads_a_response_from_what_has_a_file():
    class Connection(io.BytesIO):
        def makefile(self, *_: Any) -> io.BufferedReader:
            return io.BufferedReader(self)  # type: ignore[arg-type]

    response = http.client.HTTPResponse(Connection(b"HTTP/1.1 204 No Content\r\n\r\n"))  # type: ignore[arg-type]
    response.begin()
    assert response.status == 204
    response.close()


def test_every_request_of_urllib3_passes_one_method():
    urllib3 = pytest.importorskip("urllib3")
    from agent_cache.recording.http import http_client_seams

    parameters = list(inspect.signature(urllib3.HTTPConnectionPool.urlopen).parameters)
    assert parameters[:5] == ["self", "method", "url", "body", "headers"]
    assert tuple(parameters[5:15]) == http_client_seams._OPTIONS
    made = inspect.signature(urllib3.HTTPResponse.__init__).parameters
    for name in ("body", "headers", "status", "version", "reason", "preload_content", "decode_content", "retries",
                 "original_response", "request_method", "request_url"):  # fmt: skip
        assert name in made
    for name in ("read1", "close", "data"):
        assert hasattr(urllib3.HTTPResponse, name)


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_every_request_of_httpx_passes_two_methods(name: str):
    library = pytest.importorskip(name)
    for kind, method in (
        (library.HTTPTransport, "handle_request"),
        (library.AsyncHTTPTransport, "handle_async_request"),
    ):
        assert list(inspect.signature(vars(kind)[method]).parameters) == ["self", "request"]
    assert issubclass(library.ByteStream, library.SyncByteStream)
    assert issubclass(library.ByteStream, library.AsyncByteStream)


async def test_the_private_names_of_aiohttp_are_there():
    aiohttp = pytest.importorskip("aiohttp")
    parameters = inspect.signature(aiohttp.ClientSession._request).parameters
    assert {"middlewares", "auto_decompress"} <= parameters.keys()
    async with aiohttp.ClientSession() as session:
        assert session._middlewares == ()
        assert session._auto_decompress is True
    assert inspect.iscoroutinefunction(aiohttp.StreamReader._wait)
    pieces = [(b"one", True), (b"two", True)]

    async def pull() -> tuple[bytes, bool] | None:
        return pieces.pop(0) if pieces else None

    reader = aiohttp_seam._reader_class()(pull)
    assert await reader.readchunk() == (b"one", True)
    assert await reader.read() == b"two"
    assert reader.at_eof()


def test_a_response_of_aiohttp_starts_on_what_has_a_protocol():
    aiohttp = pytest.importorskip("aiohttp")
    from aiohttp import http_parser
    from multidict import CIMultiDict, CIMultiDictProxy

    assert list(inspect.signature(aiohttp.ClientResponse.start).parameters) == ["self", "connection"]
    message = http_parser.RawResponseMessage(
        version=aiohttp.HttpVersion11, code=200, reason="OK", headers=CIMultiDictProxy(CIMultiDict()), raw_headers=(),
        should_close=False, compression=None, upgrade=False, chunked=False,
    )  # fmt: skip
    assert message.code == 200


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
