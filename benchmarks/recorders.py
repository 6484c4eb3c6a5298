"""Compares recorders of HTTP on the same requests: `python -m benchmarks.recorders [--write-docs]`.

Each scenario runs with every client: once while it is recorded, and once more with the server gone. Compared are
agent_cache, vcrpy and cassetter, the latter two as they are and with bodies compared, as far as they are installed.
Each recorder has a process of its own, since all of them patch the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from typing import Any, Protocol

from benchmarks.commands import DOCS, describe_machine, put_table
from benchmarks.table import markdown
from tests.harness.http_server import COOKIE, HttpServer, http_server

PAGE = DOCS / "explanation" / "other-recorders.md"
SECONDS = 20.0
"""A case that takes longer has failed."""
SECRET = "made-up-for-this"

Response = tuple[int, bytes]


class Fetch(Protocol):
    """One request of a client."""

    def __call__(
        self, url: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Awaitable[Response]: ...


# Clients


async def _urllib() -> AsyncIterator[Fetch]:
    opener = urllib.request.build_opener()

    async def fetch(
        url: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Response:
        try:
            with opener.open(urllib.request.Request(url, body, headers or {}, method=method)) as response:
                content = response.read()
                is_packed = response.headers["content-encoding"] == "gzip"  # it is left to the program
                return response.status, gzip.decompress(content) if is_packed else content
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    yield fetch


async def _requests() -> AsyncIterator[Fetch]:
    with import_module("requests").Session() as session:

        async def fetch(
            url: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
        ) -> Response:
            response = session.request(method, url, data=body, headers=headers)
            return response.status_code, response.content

        yield fetch


async def _httpx(name: str = "httpx") -> AsyncIterator[Fetch]:
    with import_module(name).Client(follow_redirects=True) as client:

        async def fetch(
            url: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
        ) -> Response:
            response = client.request(method, url, content=body, headers=headers)
            return response.status_code, response.content

        yield fetch


async def _httpx_async(name: str = "httpx") -> AsyncIterator[Fetch]:
    async with import_module(name).AsyncClient(follow_redirects=True) as client:

        async def fetch(
            url: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
        ) -> Response:
            response = await client.request(method, url, content=body, headers=headers)
            return response.status_code, response.content

        yield fetch


async def _aiohttp() -> AsyncIterator[Fetch]:
    async with import_module("aiohttp").ClientSession() as session:

        async def fetch(
            url: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
        ) -> Response:
            async with session.request(method, url, data=body, headers=headers) as response:
                return response.status, await response.read()

        yield fetch


CLIENTS: dict[str, tuple[str, Callable[[], AsyncIterator[Fetch]]]] = {
    "urllib.request": ("urllib.request", _urllib),
    "requests": ("requests", _requests),
    "httpx": ("httpx", _httpx),
    "httpx, async": ("httpx", _httpx_async),
    "httpx2": ("httpx2", lambda: _httpx("httpx2")),
    "httpx2, async": ("httpx2", lambda: _httpx_async("httpx2")),
    "aiohttp": ("aiohttp", _aiohttp),
}
"""Module, and a function that opens the client, by name."""


# Recorders


@contextmanager
def _agent_cache(path: Path, *, is_replay: bool) -> Iterator[None]:
    recording = import_module("agent_cache.recording")
    with recording.replay(path) if is_replay else recording.record(path, http=True):
        yield


@contextmanager
def _vcrpy(path: Path, *, is_replay: bool, with_bodies: bool) -> Iterator[None]:
    vcr = import_module("vcr").VCR(record_mode="none" if is_replay else "once")
    if with_bodies:
        vcr.match_on = (*vcr.match_on, "body")
    with vcr.use_cassette(str(path)):
        yield


@contextmanager
def _cassetter(path: Path, *, is_replay: bool, with_bodies: bool) -> Iterator[None]:
    options = {"match_on": ["method", "uri", "body"]} if with_bodies else {}
    with import_module("cassetter").use_cassette(str(path), record_mode="none" if is_replay else "once", **options):
        yield


Recorder = Callable[..., Any]
RECORDERS: dict[str, tuple[str, Recorder]] = {
    "agent_cache": ("agent_cache", _agent_cache),
    "vcrpy": ("vcr", lambda path, *, is_replay: _vcrpy(path, is_replay=is_replay, with_bodies=False)),
    "vcrpy, bodies": ("vcr", lambda path, *, is_replay: _vcrpy(path, is_replay=is_replay, with_bodies=True)),
    "cassetter": ("cassetter", lambda path, *, is_replay: _cassetter(path, is_replay=is_replay, with_bodies=False)),
    "cassetter, bodies": (
        "cassetter",
        lambda path, *, is_replay: _cassetter(path, is_replay=is_replay, with_bodies=True),
    ),
}
"""Module, and a block that records or replays, by name."""


# Scenarios


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario with one client and one recorder."""

    server: HttpServer
    path: Path
    record: Recorder
    open: Callable[[], AsyncIterator[Fetch]]

    async def run(self, requests: Callable[[Fetch], Awaitable[Any]], *, is_replay: bool) -> Any:
        """What the requests returned, or the exception that they raised."""
        try:
            with self.record(self.path, is_replay=is_replay):
                opened = self.open()
                async with aclosing(opened):  # type: ignore[type-var]  # they are generators
                    return await requests(await anext(opened))
        except Exception as error:  # noqa: BLE001 - that is the result
            return type(error), str(error)


async def same(case: Case, requests: Callable[[Fetch], Awaitable[Any]]) -> bool:
    """Whether a replay without the server returns and raises what the recorded run did."""
    live = await case.run(requests, is_replay=False)
    case.server.close()
    return bool(live == await case.run(requests, is_replay=True))


def get(place: str) -> Callable[[Case], Awaitable[bool]]:
    async def scenario(case: Case) -> bool:
        return await same(case, lambda fetch: fetch(case.server.url + place))

    return scenario


async def nobody(case: Case) -> bool:
    """A server that refuses the connection, while it is recorded and in the replay."""
    case.server.close()
    return await same(case, lambda fetch: fetch(case.server.url))


async def own_answers(case: Case) -> bool:
    """Requests to one URL that differ in their bodies, at the same time, replayed in another order."""
    bodies = [f'{{"prompt": "question {number}"}}'.encode() for number in range(8)]

    async def ask(fetch: Fetch, order: list[bytes]) -> dict[bytes, bytes]:
        answers = await asyncio.gather(*(fetch(f"{case.server.url}/echo", "POST", body) for body in order))
        return dict(zip(order, (content for _, content in answers), strict=True))

    live = await case.run(lambda fetch: ask(fetch, bodies), is_replay=False)
    case.server.close()
    replayed = await case.run(lambda fetch: ask(fetch, bodies[::-1]), is_replay=True)
    return bool(live == replayed == {body: body for body in bodies})


async def changed(case: Case) -> bool:
    """Recorded was a refund of 40; in the replay it is one of 4000, and has to be refused."""

    async def refund(fetch: Fetch, amount: int) -> Response:
        return await fetch(f"{case.server.url}/refund", "POST", b'{"amount": %d}' % amount)

    live = await case.run(lambda fetch: refund(fetch, 40), is_replay=False)
    case.server.close()
    replayed = await case.run(lambda fetch: refund(fetch, 4000), is_replay=True)
    return live[0] == 200 and isinstance(replayed[0], type)


async def once_more(case: Case) -> bool:
    """A request that is made more often than it was recorded has to be refused."""

    async def ask(fetch: Fetch, times: int) -> list[Response]:
        return [await fetch(f"{case.server.url}/json") for _ in range(times)]

    live = await case.run(lambda fetch: ask(fetch, 1), is_replay=False)
    case.server.close()
    replayed = await case.run(lambda fetch: ask(fetch, 2), is_replay=True)
    return isinstance(live, list) and isinstance(replayed, tuple)


def hides(place: str, secret: str, **request: Any) -> Callable[[Case], Awaitable[bool]]:
    async def scenario(case: Case) -> bool:
        live = await case.run(lambda fetch: fetch(case.server.url + place, **request), is_replay=False)
        text = "".join(each.read_text("utf-8", "replace") for each in case.path.parent.iterdir())
        return live[0] == 200 and bool(text) and secret not in text

    return scenario


SCENARIOS: dict[str, Callable[[Case], Awaitable[bool]]] = {
    "JSON": get("/json"),  # see `covered`
    "gzip": get("/gzip"),
    "server-sent events": get("/events"),
    "binary content": get("/binary"),
    "a redirect": get("/redirect"),
    "404": get("/missing"),
    "a connection that is refused": nobody,
    "a connection that is reset": get("/reset"),
    "a body that is cut off": get("/cut"),
    "8 different bodies at once get their own answers": own_answers,
    "a changed body is refused": changed,
    "one request too many is refused": once_more,
    "no `authorization` in the file": hides("/gzip", SECRET, headers={"authorization": f"Bearer {SECRET}"}),
    "no `api_key` of the query in the file": hides(f"/gzip?api_key={SECRET}", SECRET),
    "no password of a JSON body in the file": hides(
        "/gzip", SECRET, method="POST", body=f'{{"password": "{SECRET}"}}'.encode(),
        headers={"content-type": "application/json"},
    ),
    "no cookie in the file": hides("/cookie", COOKIE),
}  # fmt: skip


def measure(recorder: str) -> dict[str, dict[str, bool]]:
    """By scenario and client, whether a recorder does what is right."""
    found: dict[str, dict[str, bool]] = {name: {} for name in SCENARIOS}
    _, record = RECORDERS[recorder]
    for client, (module, opened) in CLIENTS.items():
        if util.find_spec(module) is None:
            continue
        import_module(module)
        for name, scenario in SCENARIOS.items():
            with tempfile.TemporaryDirectory() as folder, http_server() as server:
                suffix = "jsonl" if recorder == "agent_cache" else "yaml"
                case = Case(server, Path(folder, f"cassette.{suffix}"), record, opened)
                found[name][client] = _is_right(scenario, case)
    return found


def _is_right(scenario: Callable[[Case], Awaitable[bool]], case: Case) -> bool:
    """A case in a thread of its own, so that one that hangs does not stop the others."""
    results: list[bool] = []

    def run() -> None:
        try:
            results.append(asyncio.run(asyncio.wait_for(scenario(case), SECONDS)))
        except Exception as error:  # noqa: BLE001 - of the recorder
            print(f"{type(error).__name__}: {error}", file=sys.stderr)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return results == [True]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorders", description=__doc__)
    parser.add_argument("--recorder", choices=tuple(RECORDERS), help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--json", action="store_true", help="print JSON: by recorder, scenario and client")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    if options.recorder:
        print(json.dumps(measure(options.recorder)))
        return 0
    found: dict[str, dict[str, dict[str, bool]]] = {}
    for name, (module, _) in RECORDERS.items():
        if util.find_spec(module) is not None:
            command = [sys.executable, "-m", "benchmarks.recorders", "--recorder", name]
            found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    rows = [("clients that are covered", *(_names(covered(one)) for one in found.values()))]
    rows += [(name, *(_cell(one[name], covered(one)) for one in found.values())) for name in SCENARIOS]
    table = markdown(("", *found), rows)
    machine = describe_machine(["vcrpy", "cassetter", "httpx", "httpx2", "requests", "aiohttp"])
    if options.write_docs:
        put_table("recorders", f"{machine}\n\n{table}", PAGE)
    print(f"{machine}\n\n{table}")
    return 0


def covered(results: dict[str, dict[str, bool]]) -> set[str]:
    """The clients whose requests a recorder answers at all. What it does about those of others is chance."""
    return {client for client, is_right in results["JSON"].items() if is_right}


def _names(clients: set[str]) -> str:
    """These clients, or those that are missing."""
    missing = [client for client in CLIENTS if client not in clients]
    return f"not {', '.join(missing)}" if missing else "all"


def _cell(results: dict[str, bool], among: set[str]) -> str:
    wrong = [client for client, is_right in results.items() if not is_right and client in among]
    if not wrong:
        return "right"
    return "**wrong**" if len(wrong) == len(among) else f"wrong: {', '.join(wrong)}"


if __name__ == "__main__":
    raise SystemExit(main())
