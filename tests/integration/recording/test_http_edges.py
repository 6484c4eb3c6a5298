"""Requests that differ in something that matters are told apart, and responses come back in what clients look at."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent_cache.recording import CassetteError, Http, record, replay
from agent_cache.recording.file import digest_of
from agent_cache.recording.http import aiohttp_seam
from agent_cache.recording.http.identity import identity
from agent_cache.recording.redaction import Redaction
from tests.harness.http_server import KEY, http_server

URL = "http://api.example.com/x"


def digest(url: str = URL, body: bytes = b"", **headers: str) -> str:
    """What a request is compared by."""
    redaction = Redaction()
    lower = {name.replace("_", "-"): value for name, value in headers.items()}
    _, name, arguments = identity("POST", url, lower, body, Http(), redaction)
    return digest_of(name, redaction.apply(arguments))


def multipart(head: str | bytes, content: bytes, kind: str = "form-data") -> dict[str, Any]:
    """A request with one part."""
    raw = head if isinstance(head, bytes) else head.encode()
    body = b"--edge\r\n" + raw + b"\r\n\r\n" + content + b"\r\n--edge--\r\n"
    return {"body": body, "content_type": f"multipart/{kind}; boundary=edge"}


@pytest.mark.parametrize("end", ["?sort=%s&sort=%s", "?a=1&sort=%s&b=2&sort=%s"])
def test_the_order_of_the_values_of_one_name_matters(end: str):
    assert digest(URL + end % ("name", "date")) != digest(URL + end % ("date", "name"))
    assert digest(URL + "?a=1&sort=name") == digest(URL + "?sort=name&a=1")


def test_parameters_that_are_no_utf_8_are_told_apart():
    form = "application/x-www-form-urlencoded"
    assert digest(URL + "?text=%ff") != digest(URL + "?text=%fe")
    assert digest(body=b"text=%ff", content_type=form) != digest(body=b"text=%fe", content_type=form)


@pytest.mark.parametrize(
    ("head", "content"),
    [
        ("Content-Type: message/rfc822", b"Subject: %s\r\n\r\nhello"),
        ("Content-Type: message/rfc822", b"Subject: hello\r\n\r\n%s"),
        ("Content-Type: multipart/mixed; boundary=inner", b"--inner\r\n\r\n%s\r\n--inner--"),
        ("Content-Type: multipart/mixed; boundary=inner", b"--inner\r\n\r\n\xff%s\r\n--inner--"),
    ],
)
def test_what_stands_inside_of_a_part_counts(head: str, content: bytes):
    one, other = (digest(**multipart(head, content % text, "related")) for text in (b"one", b"other"))
    assert one != other


@pytest.mark.parametrize("name", ['name="%s"', 'name="file"; filename="%s"'])
def test_names_of_parts_may_have_any_letter(name: str):
    head = f"Content-Disposition: form-data; {name}"
    digests = {digest(**multipart(head % letter, b"x")) for letter in ("ä", "ö", "日")}
    digests |= {digest(**multipart(head.encode() % raw, b"x")) for raw in (b"\xff", b"\xfe")}
    assert len(digests) == 5


@pytest.mark.parametrize("place", ["API.Example.com", "https://API.Example.com/v1/", "HTTPS://api.example.com"])
@pytest.mark.parametrize(
    "url",
    ["https://api.example.com/v1/x", "https://me:word@API.example.com:443/v1/x?a=1", "https://api.example.com/v1/"],
)
def test_a_place_is_known_by_any_spelling_of_its_host(place: str, url: str):
    parts = urlsplit(url)
    assert Http(only=(place,)).takes(parts)
    assert not Http(ignore=(place,)).takes(parts)
    other = url.replace("https", "http").replace("443", "81").replace("com", "org")
    assert Http(ignore=(place,)).takes(urlsplit(other))


async def get(client: str, url: str, method: str = "GET") -> tuple[dict[str, str], bytes]:
    """Headers and body of a response, after redirects."""
    name, _, _ = client.partition(" ")
    library: Any = importlib.import_module(name) if name == "urllib.request" else pytest.importorskip(name)
    if name == "aiohttp":
        async with library.ClientSession() as session, session.request(method, url) as response:
            return dict(response.headers), await response.read()
    if client == "httpx async":
        async with library.AsyncClient(follow_redirects=True) as async_client:
            response = await async_client.request(method, url)
    elif name in ("httpx", "httpx2"):
        response = library.request(method, url, follow_redirects=True)
    elif name == "requests":
        response = library.request(method, url)
    else:
        with library.urlopen(library.Request(url, method=method)) as plain:
            return {key.lower(): value for key, value in plain.headers.items()}, plain.read()
    return {key.lower(): value for key, value in response.headers.items()}, response.content


CLIENTS = ("urllib.request", "requests", "httpx", "httpx async", "httpx2", "aiohttp")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("request_line", ["GET /binary", "HEAD /binary", "GET /cookie", "GET /plain"])
async def test_the_length_of_a_response_comes_back(client: str, request_line: str, tmp_path: Path):
    path = tmp_path / "run.jsonl"
    method, _, place = request_line.partition(" ")
    with http_server() as server:
        with record(path, http=True):
            live, content = await get(client, server.url + place, method)
        server.close()
        with replay(path, strict=True):
            replayed, same = await get(client, server.url + place, method)
    lengths = [
        next(value for name, value in headers.items() if name.lower() == "content-length")
        for headers in (live, replayed)
    ]
    assert lengths[0] == lengths[1]
    assert content == same


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_body_that_was_edited_has_its_own_length(client: str, tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with http_server() as server:
        with record(path, http=True):
            await get(client, f"{server.url}/cookie")
        edited = path.read_text().replace('"text":"ok"', '"text":"much longer"')
        path.write_text(edited.replace('"content-type":', '"Content-Length":"2","content-type":'))
        with replay(path, strict=True):
            headers, content = await get(client, f"{server.url}/cookie")
    assert content == b"much longer"
    assert {name.lower(): value for name, value in headers.items()}["content-length"] == "11"


@pytest.mark.parametrize("client", CLIENTS)
async def test_headers_may_have_any_letter(client: str, tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with http_server() as server:
        with record(path, http=True):
            await get(client, f"{server.url}/letters")
        server.close()
        with replay(path, strict=True):
            headers, content = await get(client, f"{server.url}/letters")
    assert content == b"ok"
    assert {name.lower(): value for name, value in headers.items()}["x-title"] == "gr\xfcn"


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_redirect_to_a_secret_place_is_followed_again(client: str, tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with http_server() as server:
        with record(path, http=True):
            await get(client, f"{server.url}/moved")
        assert KEY not in path.read_text()
        server.close()
        with replay(path, strict=True):
            _, content = await get(client, f"{server.url}/moved")
    assert b"/kept/" in content


@pytest.mark.parametrize("client", ["requests", "httpx"])
def test_a_secret_field_of_a_form_with_parts_is_not_in_the_file(client: str, tmp_path: Path):
    library: Any = pytest.importorskip(client)
    path = tmp_path / "run.jsonl"
    files = {"password": (None, b"tulip"), "note": ("note.json", b'{"q": 1}', "application/json")}
    with http_server() as server:
        with record(path, http=True):
            library.post(f"{server.url}/empty", files=files)
        server.close()
        text = path.read_text()
        assert "tulip" not in text
        assert '{"q":1}' in text
        with replay(path, strict=True):
            library.post(f"{server.url}/empty", files=files)


def test_settings_that_were_edited_are_refused_with_their_line(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    with record(path, http=True):
        pass
    for edited in ('{"guard":1}', '{"nothing":true}', '{"only":"api.example.com"}'):
        text = path.read_text().replace('"http":{}', f'"http":{edited}')
        (tmp_path / "edited.jsonl").write_text(text)
        for opened in (replay(tmp_path / "edited.jsonl"), record(tmp_path / "edited.jsonl", mode="new_episodes")):
            with pytest.raises(CassetteError, match=r"edited\.jsonl:1: .*http"), opened:
                pass


def test_an_aiohttp_without_middlewares_is_left_alone():
    class Session:
        async def _request(self, method: str, url: str) -> None: ...

    class Library:
        ClientSession = Session

    with pytest.raises(LookupError, match=r"aiohttp 3\.12"):
        aiohttp_seam.patches(Library)
