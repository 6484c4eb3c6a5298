"""Requests of each HTTP client are recorded beneath it, and answered in a replay with the server gone."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import inspect
import json
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent_cache import AgentCache
from agent_cache.errors import NoEventLoopError
from agent_cache.recording import (
    Cassette,
    CassetteError,
    DivergenceError,
    Http,
    ReplayExhausted,
    cached_llm_call,
    intercept,
    record,
    replay,
)
from tests.harness.http_server import COOKIE, KEY, HttpServer
from tests.harness.slow import slow

Response = tuple[int, dict[str, str], bytes]
Fetch = Callable[..., Awaitable[Response]]


JSON = {"content-type": "application/json"}
CLIENTS = ("urllib.request", "urllib3", "requests", "httpx", "httpx async", "httpx2", "httpx2 async", "aiohttp")


async def sender(name: str, library: Any, stack: AsyncExitStack, *, is_async: bool) -> Callable[..., Any]:
    """A function that sends a request with one client, which follows redirects."""
    send: Callable[..., Any]
    if name == "urllib.request":
        opener = library.build_opener(library.ProxyHandler({}))

        def send(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Response:
            try:
                response = opener.open(library.Request(url, body, headers, method=method))
            except urllib.error.HTTPError as error:
                response = error
            with response:
                content = response.read()
                is_packed = response.headers["content-encoding"] == "gzip"  # it is left to the program
                return response.status, response.headers, gzip.decompress(content) if is_packed else content

    elif name == "urllib3":
        retries = library.Retry(connect=0, read=0, redirect=2, respect_retry_after_header=False)
        pool = stack.enter_context(library.PoolManager(retries=retries))

        def send(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Response:
            response = pool.request(method, url, body=body, headers=headers)
            return response.status, response.headers, response.data

    elif name == "aiohttp":
        client = await stack.enter_async_context(library.ClientSession())

        async def send(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Response:
            async with client.request(method, url, data=body, headers=headers) as response:
                return response.status, response.headers, await response.read()

    elif is_async:
        client = await stack.enter_async_context(library.AsyncClient(follow_redirects=True))

        async def send(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Response:
            response = await client.request(method, url, content=body, headers=headers)
            return response.status_code, response.headers, response.content

    else:
        is_requests = name == "requests"
        session = stack.enter_context(library.Session() if is_requests else library.Client(follow_redirects=True))

        def send(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Response:
            content = {"data" if is_requests else "content": body}
            response = session.request(method, url, headers=headers, **content)
            return response.status_code, response.headers, response.content

    return send


@pytest.fixture(params=CLIENTS)
async def fetch(request: pytest.FixtureRequest) -> AsyncIterator[Fetch]:
    """``fetch(url, method="GET", body=None, headers={})`` with one client."""
    name, _, form = request.param.partition(" ")
    library = importlib.import_module(name) if name == "urllib.request" else pytest.importorskip(name)
    async with AsyncExitStack() as stack:
        send = await sender(name, library, stack, is_async=bool(form))

        async def fetch(url: str, method: str = "GET", body: bytes | None = None, headers: Any = None) -> Response:
            found = send(method, url, body, dict(headers or {}))
            status, given, content = await found if inspect.isawaitable(found) else found
            return status, {name.lower(): value for name, value in given.items()}, content

        yield fetch


async def outcome(fetch: Fetch, *args: Any) -> Any:
    """Status and body, or class and text of an exception and its causes."""
    try:
        status, _, content = await fetch(*args)
        return status, content
    except Exception as error:
        found: list[Any] = []
        cause: BaseException | None = error
        while cause is not None:
            found.append((type(cause), str(cause)))
            cause = cause.__cause__
        return found


# Every client, every answer

KINDS = (
    "json", "gzip", "events", "pieces", "binary", "cookie", "redirect", "missing", "cut", "broken", "reset",
    *slow("lines", "latin", "empty", "busy"),
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_comes_back_with_the_server_gone(kind: str, fetch: Fetch, server: HttpServer, gone: Any):
    async def run() -> list[Any]:
        return [await outcome(fetch, f"{server.url}/{kind}?page={page}") for page in (1, 2)]

    await gone(run)
    assert len(server.requests) >= 2


@pytest.mark.parametrize("fetch", [one for one in CLIENTS if one != "aiohttp"], indirect=True)
async def test_a_server_that_is_gone_when_it_is_recorded_is_gone_in_a_strict_replay(fetch: Fetch, path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with record(path, http=True, strict=True):
        recorded = await outcome(fetch, url)
    with replay(path, strict=True):
        assert str(await outcome(fetch, url)) == str(recorded)


def test_a_library_that_cannot_be_imported_is_as_one_that_is_missing(server: HttpServer, tmp_path: Path, monkeypatch):
    (tmp_path / "aiohttp.py").write_text("import asyncio\nasyncio.coroutine  # as an old version has it")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "aiohttp", raising=False)
    with record(path := tmp_path / "run.jsonl", http=True):
        get(server.url)
    assert len(Cassette.load(path)) == 1


def test_a_request_under_trio_is_refused_before_it_is_made(server: HttpServer, path: Path):
    trio, httpx = map(pytest.importorskip, ("trio", "httpx"))

    async def run() -> None:
        async with httpx.AsyncClient() as client:
            await client.get(server.url)

    with (
        record(path, http=True),
        pytest.raises(NoEventLoopError, match=r"GET 127\.0\.0\.1 needs an event loop of asyncio"),
    ):
        trio.run(run)
    assert server.requests == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD"])
async def test_methods_and_bodies_are_told_apart(method: str, fetch: Fetch, server: HttpServer, path: Path, gone: Any):
    bodies = [None] if method == "HEAD" else [b'{"refund": 40}', b'{"refund": 4000}']

    async def run() -> list[Any]:
        return [await outcome(fetch, f"{server.url}/r", method, body, JSON) for body in bodies]

    await gone(run)
    if method == "POST":
        with pytest.raises(DivergenceError, match=r"json\.refund: 40 -> 41\n.* Http\(ignore"), replay(path):
            await fetch(f"{server.url}/r", method, b'{"refund": 41}', JSON)


async def test_requests_outside_of_a_recording_are_left_alone(fetch: Fetch, server: HttpServer, path: Path):
    begun, done = asyncio.Event(), asyncio.Event()

    async def outsider() -> None:
        await begun.wait()
        await fetch(f"{server.url}/outside")
        done.set()

    task = asyncio.create_task(outsider())
    with record(path, http=True):
        begun.set()
        await done.wait()
        await fetch(f"{server.url}/inside")
    await task
    await fetch(f"{server.url}/after")
    assert [call.name.rpartition("/")[2] for call in Cassette.load(path)] == ["inside"]


async def test_nothing_inside_of_a_recorded_call_is_recorded(fetch: Fetch, server: HttpServer, path: Path, gone: Any):
    @AgentCache("order:{order_id}")
    async def get_order(order_id: str) -> int:
        return (await fetch(f"{server.url}/orders/{order_id}"))[0]

    async def run() -> tuple[int, int]:
        return await get_order("W1"), (await fetch(f"{server.url}/outside"))[0]

    assert await gone(run) == (200, 200)
    assert [call.kind for call in Cassette.load(path)] == ["tool", "http"]


async def test_a_recording_inside_of_another_is_part_of_both(fetch: Fetch, server: HttpServer, path: Path):
    inner, copy = path.with_name("inner.jsonl"), path.with_name("copy.jsonl")
    with record(path, http=True):
        await fetch(f"{server.url}/one")
        with record(inner, http=True):
            recorded = await outcome(fetch, f"{server.url}/two")
    assert [call.name[-3:] for call in Cassette.load(path)] == ["one", "two"]
    assert [call.name[-3:] for call in Cassette.load(inner)] == ["two"]
    assert Cassette.load(path)[1].outcome == Cassette.load(inner)[0].outcome
    server.close()
    with replay(inner, strict=True), record(copy, http=True):
        assert await outcome(fetch, f"{server.url}/two") == recorded
    assert Cassette.load(copy)[0].outcome == Cassette.load(inner)[0].outcome


async def test_recording_the_same_again_changes_no_byte(fetch: Fetch, server: HttpServer, path: Path):
    found = []
    for _ in range(2):
        with record(path, http=True):
            for kind in ("json", "gzip", "events", "binary"):
                await fetch(f"{server.url}/{kind}")
        found.append(path.read_text().splitlines())
    assert found[0] == found[1]
    assert '"json":{"packed":true}' in found[0][2]
    assert "content-encoding" not in found[0][2]


async def test_no_secret_reaches_the_file(fetch: Fetch, server: HttpServer, path: Path, gone: Any):
    secret = "sk-" + "Zq9" * 12
    body = json.dumps({"password": "hunter2-of-the-body", "note": f"my key is {secret}"}).encode()

    async def run() -> int:
        await fetch(f"{server.url}/cookie?api_key=key-of-the-query&access_token=token-of-the-query")
        await fetch(f"{server.url}/moved")  # to a URL with a key in it
        url = f"{server.url}/echo?password=hunter2-of-the-query"
        return (await fetch(url, "POST", body, {**JSON, "authorization": f"Bearer {secret}"}))[0]

    assert await gone(run) == 200
    text = path.read_text()
    for one in (secret, "hunter2-of-the-body", "of-the-query", COOKIE, KEY):
        assert one not in text
    assert "sid=[redacted]; Path=/" in text


async def test_what_was_packed_twice_is_recorded_without_its_secrets(fetch: Fetch, server: HttpServer, path: Path):
    """Two of the clients give the packed bytes to the program, and their headers: a replay gives neither packed."""
    with record(path, http=True):
        await fetch(f"{server.url}/twice")
    assert Cassette.load(path)[0].outcome["response"]["json"] == {"password": "[redacted]"}
    with replay(path, strict=True):
        _, headers, content = await fetch(f"{server.url}/twice")
    assert (json.loads(content), headers.get("content-encoding")) == ({"password": "[redacted]"}, None)


OTHERS = {"GET /binary": [None, None], "HEAD /binary": [None, "7"], "GET /letters": ["gr\xfcn", None]}


@pytest.mark.parametrize(("request_line", "found"), [*OTHERS.items(), ("GET /cookie", [None, None])])
async def test_headers_come_back(request_line: str, found: Any, fetch: Fetch, server: HttpServer, gone: Any):
    """The length is that of the body, or what HEAD said, which alone keeps a checksum; a header may have any letter."""
    method, _, place = request_line.partition(" ")
    others: list[Any] = []

    async def run() -> Any:
        _, headers, content = await fetch(server.url + place, method)
        others[:] = map(headers.get, ("x-title", "x-amz-crc32"))
        return headers["content-length"], content

    await gone(run)
    assert others == found


# What identifies a request


def get(url: str, headers: dict[str, str] | None = None, data: bytes | None = None) -> Any:
    """With the standard library. The opener knows no proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, data, headers or {})) as response:
        return response.read()


AMZ, SIG, KEYED = "?X-Amz-Signature={0}&X-Amz-Date={0}&a=1", "?sig={0}&se={0}&a=1", "?Signature={0}&Expires={0}"
ROLE = b"Action=AssumeRole&RoleArn=%b&RoleSessionName=%b"
PICTURE = b'{"data": "%b"}'
GRANT = b"grant_type=jwt&assertion=%b"
FORM = {"content-type": "multipart/form-data; boundary=x"}
FIELDS = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' * 2 + b"--x--\r\n"
RUN = b'{"metadata": {"run": %b, "user": "a"}, "items": [{"nonce": %b, "run": 0}]}'


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (("?x=1&y=2", {"authorization": "Bearer 1"}), ("?y=2&x=1", {"authorization": "Bearer 2"}), True),
        *(
            (("", {name: "bytes=0-9"}), ("", {name: "bytes=9-10"}), False)
            for name in ("x-amz-target", "soapaction", "range", "x-http-method-override", "X-Tenant")
        ),
        *(((text.format(1),), (text.format(2),), True) for text in (AMZ, SIG, KEYED)),
        (("?se=2&a=1",), ("?se=4&a=1",), False),
        (("?key=a",), ("?key=b",), False),
        (("?a=1&sort=1&b=2&sort=2",), ("?a=1&sort=2&b=2&sort=1",), False),
        (("?a=1",), ("?a=1&b=",), False),
        (("?text=%ff",), ("?text=%fe",), False),
        (("?trace=1", JSON, RUN % (b"1", b"1")), ("?trace=2", JSON, RUN % (b"2", b"2")), True),
        (("", JSON, RUN % (b"1", b"1")), ("", JSON, RUN.replace(b"0", b"1") % (b"1", b"1")), False),
        *(
            (
                ("", FORM, FIELDS % (name, b"1", b"policy", b"a")),
                ("", FORM, FIELDS % (name, b"2", b"policy", b)),
                is_same,
            )
            for name, b, is_same in ((b"trace", b"a", True), (b"trace", b"b", False), (b"x-amz-date", b"b", True))
        ),
        (("/oauth2/token", None, GRANT % b"one"), ("/oauth2/token", None, GRANT % b"two"), True),
        (("/", None, ROLE % (b"a", b"one")), ("/", None, ROLE % (b"a", b"two")), True),
        (("/", None, ROLE % (b"a", b"one")), ("/", None, ROLE % (b"b", b"one")), False),
        (("", JSON, PICTURE % (b"a" * 10_000)), ("", JSON, PICTURE % (b"b" * 10_000)), False),
        (("/other", None, GRANT % b"one"), ("/other", None, GRANT % b"two"), False),
    ],
)
def test_what_identifies_a_request(one, other, is_same: bool, server: HttpServer, path: Path):
    with record(path, http=Http(headers=["X-Tenant"], ignore_fields=["trace", "metadata.run", "nonce"])):
        get(server.url + one[0], *one[1:])
    with nullcontext() if is_same else pytest.raises(DivergenceError), replay(path):
        get(server.url + other[0], *other[1:])


def test_a_picture_that_each_turn_sends_again_is_written_as_a_digest(server: HttpServer, path: Path):
    text = b'{"data": "%b", "url": "data:image/png;base64,%b"}' % ((b"iVBORw0KGgo" * 1000,) * 2)
    with record(path, http=True):
        get(f"{server.url}/json", JSON, text)
    sent = Cassette.load(path)[0].arguments["json"]
    assert re.fullmatch("sha256:[0-9a-f]{64}", sent["data"])
    assert sent["url"] == f"data:image/png;base64,{sent['data']}"


def test_a_function_has_the_tokens_of_all_its_requests_and_its_answer_is_not_counted_again(server, path: Path):
    body = json.dumps({"model": "large-1", "messages": [{"role": "user", "content": "Which city?"}]}).encode()

    @cached_llm_call(name="ask")
    def ask() -> Any:
        return [json.loads(get(f"{server.url}/v1/chat/completions", JSON, body)) for _ in range(2)][-1]

    with record(path, http=True) as recorder:
        assert ask()["usage"]["prompt_tokens"] == 3
    [call] = recorder.steps
    found = call.name, call.model, call.input_tokens, call.output_tokens, call.cache_read_tokens
    assert found == ("ask", "large-1", 6, 4, 2)


def test_hosts_can_be_left_out(server: HttpServer, path: Path):
    with record(path, http=Http(ignore=["localhost"])):
        get(server.url)
        get(server.url.replace("127.0.0.1", "localhost"))
    assert len(Cassette.load(path)) == 1
    with record(path, http=Http(only=[f"{server.url}/api/"])):
        get(f"{server.url}/other")
        get(f"{server.url}/api/orders")
    assert [call.name for call in Cassette.load(path)] == [f"GET {server.url}/api/orders"]


@pytest.mark.parametrize("place", ["API.Example.com", "https://API.Example.com/v1/", "HTTPS://api.example.com"])
def test_a_place_is_known_by_any_spelling_of_its_host(place: str):
    for url in ("https://me:word@API.example.com:443/v1/x?a=1", "https://api.example.com/v1/"):
        assert Http(only=(place,)).takes(urlsplit(url))
        assert not Http(ignore=(place,)).takes(urlsplit(url))
        other = url.replace("https", "http").replace("443", "81").replace("com", "org")
        assert Http(ignore=(place,)).takes(urlsplit(other))


def test_the_settings_are_checked(path: Path):
    for wrong in ({"ignore": "host"}, {"headers": [1]}, {"aliases": ["a"]}, {"guard": 1}, {"only": 5}):
        with pytest.raises(ValueError, match="Http: "):
            Http(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="http must be"):
        record("x.jsonl", http="yes")  # type: ignore[arg-type]
    with record(path, http=True):
        pass
    text = path.read_text()
    for edited in ('{"guard":1}', '{"nothing":true}', '{"only":"api.example.com"}'):
        path.write_text(text.replace('"http":{}', f'"http":{edited}'))
        with pytest.raises(CassetteError, match=r"run\.jsonl:1: .*http"), replay(path):
            pass


# Ends


def test_a_body_that_was_closed_is_closed_again_and_not_read_on(server: HttpServer, path: Path):
    def read(count: int) -> list[bytes]:
        with urllib.request.urlopen(f"{server.url}/events") as response:
            return [response.readline() for _ in range(count)]

    with record(path, http=True):
        recorded = read(3)
    assert Cassette.load(path)[0].outcome["response"]["end"] == {"closed": True}
    with replay(path, strict=True):
        assert read(3) == recorded
    with pytest.raises(ReplayExhausted, match="closed before its end"), replay(path):
        read(50)


def test_a_body_that_is_left_alone_counts_as_closed(server: HttpServer, path: Path):
    """Else a request whose answer nobody reads to its end would be in doubt in a journal."""
    httpx = pytest.importorskip("httpx")
    with record(path, http=True), httpx.Client() as client:
        sent = client.send(client.build_request("GET", f"{server.url}/events"), stream=True)
        next(sent.iter_raw())
    assert Cassette.load(path)[0].outcome["response"]["end"] == {"closed": True}


def test_what_is_in_flight_at_the_end_keeps_its_pieces(server: HttpServer, path: Path):
    """The first piece does not wait for the second."""
    server.next_piece.clear()
    with record(path, http=True):
        response = urllib.request.urlopen(f"{server.url}/events")
        assert response.readline() == b'data: {"number":0}\n'
    server.next_piece.set()
    with response:
        response.read()
    recorded = Cassette.load(path)[0].outcome["response"]
    assert recorded["end"] == {"unfinished": True}
    assert recorded["events"] == [{"json": {"number": 0}}]


@pytest.mark.parametrize("library", ["httpx", "aiohttp"])
async def test_gathered_streams_of_which_one_is_cancelled(library: str, server: HttpServer, gone: Any):
    """Each of several streams gets its own pieces, and the one that a timeout ended is ended by it again."""
    module = pytest.importorskip(library)
    is_httpx = library == "httpx"

    async def read(client: Any, number: int, seen: list[bytes]) -> None:
        url = f"{server.url}/events?stream={number}"
        async with client.stream("GET", url) if is_httpx else client.get(url) as response:
            async for piece in response.aiter_bytes() if is_httpx else response.content.iter_any():
                seen.append(piece)
                if number == 2:
                    await asyncio.Event().wait()

    async def run() -> list[bytes]:
        seen: list[list[bytes]] = [[] for _ in range(4)]
        async with module.AsyncClient() if is_httpx else module.ClientSession() as client:
            tasks = [asyncio.create_task(read(client, number, seen[number])) for number in range(4)]
            await asyncio.gather(*(task for number, task in enumerate(tasks) if number != 2))
            while not seen[2]:
                await asyncio.sleep(0)
            tasks[2].cancel()
            await asyncio.gather(tasks[2], return_exceptions=True)
        return [b"".join(each) for number, each in enumerate(seen) if number != 2]

    await gone(run)


async def test_a_read_that_was_cancelled_can_be_made_again(server: HttpServer, path: Path):
    """aiohttp's readers keep their place; the recording does not take it from them."""
    aiohttp = pytest.importorskip("aiohttp")
    server.next_piece.clear()
    with record(path, http=True):
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/events") as response:
            first = await response.content.readany()
            reading = asyncio.create_task(response.content.readany())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            server.next_piece.set()
            rest = await response.content.read()
    assert first + rest == b"".join(b'data: {"number":%d}\n\n' % number for number in range(4))


def test_a_request_in_a_thread_without_a_context_is_refused_under_strict(server: HttpServer, path: Path):
    with record(path, http=True):
        get(server.url)
    found: list[BaseException] = []

    def run() -> None:
        try:
            get(server.url)
        except BaseException as error:
            found.append(error)

    with pytest.raises(CassetteError, match="in a thread"), replay(path, strict=True):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert isinstance(found[0], CassetteError)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('"status":200', '"status":"fine"', r"\$\.response\.status"),
        ('"spelling":"spaced"', '"spelling":"wide"', "wide"),
        ('"json":{', '"events":[{}],"x":{', "text"),
    ],
)
def test_a_file_that_was_edited_names_line_and_field(before, after, reason, server: HttpServer, path: Path):
    with record(path, http=True):
        get(server.url)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(CassetteError, match=reason) as caught, replay(path):
        get(server.url)
    assert caught.value.line == 2


def test_hosts_and_urls_have_policies(server: HttpServer, path: Path):
    with record(path, http=True):
        get(f"{server.url}/orders")
    name = Cassette.load(path)[0].name
    for policy in ({"127.0.0.1": "live"}, {name: "live"}):
        with replay(path, policy=policy):  # type: ignore[arg-type]
            get(f"{server.url}/orders")
    assert len(server.requests) == 3
    with pytest.raises(DivergenceError, match="forbids"), replay(path, policy={"127.0.0.1": "forbid"}):
        get(f"{server.url}/orders")


def test_a_redaction_hook_gets_headers_and_body(server: HttpServer, path: Path):
    def hook(data: Any) -> Any:
        return json.loads(json.dumps(data).replace("orders", "things"))

    with record(path, http=True, redact=hook):
        get(f"{server.url}/a?x=orders", None, b"orders")
    [call] = Cassette.load(path)
    assert call.arguments["query"] == {"x": "things"}
    assert call.outcome["response"]["json"]["body"] == "things"
    server.close()
    with replay(path, redact=hook):
        assert b"things" in get(f"{server.url}/a?x=orders", None, b"orders")


# The guard


def connect(address: tuple[str, int]) -> None:
    socket.create_connection(address, timeout=100).close()


@pytest.mark.parametrize("is_replay", [False, True])
async def test_a_connection_that_no_client_has_made_is_refused_under_strict(is_replay, server: HttpServer, path: Path):
    address = "127.0.0.1", int(server.url.rpartition(":")[2])
    with record(path, http=Http(guard=True)):
        get(server.url)
        connect(address)  # it is not strict
    block = replay(path, strict=True) if is_replay else record(path, http=Http(guard=True), strict=True)
    with pytest.raises(CassetteError, match=r"connection to 127\.0\.0\.1:\d+ was opened"), block:
        get(server.url)
        with pytest.raises(CassetteError):
            connect(address)
        with pytest.raises(CassetteError):
            await asyncio.open_connection(*address)
    connect(address)


async def test_connections_of_clients_and_recorded_calls_pass_the_guard(fetch: Fetch, server: HttpServer, path: Path):
    address = "127.0.0.1", int(server.url.rpartition(":")[2])

    @intercept
    def ask_database() -> None:
        connect(address)

    with record(path, http=Http(guard=True, ignore=[f"{server.url}/live"]), strict=True):
        await fetch(server.url)
        await fetch(f"{server.url}/live")
        ask_database()
        await asyncio.to_thread(ask_database)
    assert [call.kind for call in Cassette.load(path)] == ["http", "call", "call"]
    with record(path, http=Http(guard=True, ignore=["127.0.0.1"]), strict=True):
        connect(address)
