"""Rows of HTTP: what a request to a model on loopback takes while it is recorded, and replayed, over the live one;
when the first piece of a stream is there; and what a long recording takes to load.

The time is that of the clock on the wall: a live request waits for its server, which is another process and answers at
once, with 4 KB of JSON. So a real model makes all of the ratios smaller.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import json
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from agent_cache.recording import Http, record, replay
from benchmarks.table import Row
from benchmarks.timing import Effort, Sample, Spread, measure

REQUESTS = 200
"""In one recording."""

PIECES = 1_000
"""In a stream, as fast as the server's loop turns: so many that what precedes a replayed stream is a small part."""

LOADED = 10_000
"""In the recording that is loaded."""

_SERVER = """
import asyncio, json, sys
PIECES = int(sys.argv[1])
body = json.dumps({"id": "1", "model": "large-1", "choices": [{"message": {"content": "word " * 750}}],
                   "usage": {"prompt_tokens": 3, "completion_tokens": 2}}).encode()
head = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body)

class Model(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.data = transport, b""

    def data_received(self, data):
        self.data += data
        while (end := self.data.find(b"\\r\\n\\r\\n")) >= 0:
            headers = dict(line.lower().split(b":", 1) for line in self.data[:end].split(b"\\r\\n")[1:])
            size = end + 4 + int(headers[b"content-length"])
            if len(self.data) < size:
                return
            is_stream = self.data.startswith(b"POST /stream")
            self.data = self.data[size:]
            if is_stream:
                self.task = asyncio.create_task(self.stream())
            else:
                self.transport.write(head + body)

    async def stream(self):
        headers = b"content-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n"
        self.transport.write(b"HTTP/1.1 200 OK\\r\\n" + headers + b"\\r\\n")
        for number in range(PIECES):
            event = b'data: {"choices": [{"index": 0, "delta": {"content": "word %d"}}]}\\n\\n' % number
            self.transport.write(b"%x\\r\\n%b\\r\\n" % (len(event), event))
            await asyncio.sleep(0.0001)
        self.transport.write(b"0\\r\\n\\r\\n")

async def main():
    server = await asyncio.get_running_loop().create_server(Model, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""

Post = Callable[[bytes], Awaitable[object]]


@contextmanager
def _server() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", _SERVER, str(PIECES)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def _bodies(count: int) -> list[bytes]:
    messages = [[{"role": "user", "content": f"question {number}"}] for number in range(count)]
    return [json.dumps({"model": "large-1", "messages": one}).encode() for one in messages]


_HEADERS = {"content-type": "application/json"}


async def _post_all(client: str, url: str, bodies: list[bytes]) -> float:
    """Seconds of these requests by one client, which is warm."""
    library: Any = importlib.import_module(client.partition(" ")[0])
    start = 0.0
    if client == "requests":
        with library.Session() as session:
            for number, body in enumerate(bodies):
                if number == 1:
                    start = perf_counter()
                session.post(url, data=body, headers=_HEADERS).json()
    elif client == "httpx":
        with library.Client() as plain:
            for number, body in enumerate(bodies):
                if number == 1:
                    start = perf_counter()
                plain.post(url, content=body, headers=_HEADERS).json()
    elif client == "httpx async":
        async with library.AsyncClient() as awaited:
            for number, body in enumerate(bodies):
                if number == 1:
                    start = perf_counter()
                (await awaited.post(url, content=body, headers=_HEADERS)).json()
    else:
        async with library.ClientSession() as opened:
            for number, body in enumerate(bodies):
                if number == 1:
                    start = perf_counter()
                async with opened.post(url, data=body, headers=_HEADERS) as response:
                    await response.json()
    return perf_counter() - start


def _sample(client: str, url: str, block: Callable[[], AbstractContextManager[object]]) -> Sample:
    bodies = _bodies(REQUESTS + 1)

    async def run(n: int) -> float:
        times = max(1, round(n / REQUESTS))
        total = 0.0
        for _ in range(times):
            with block():
                total += await _post_all(client, url, bodies)
        return total * n / (times * REQUESTS)

    return run


def _idle_sample(client: str, url: str, path: Path) -> Sample:
    """Requests of a task outside of a recording that goes on beside it."""
    bodies = _bodies(REQUESTS + 1)

    async def run(n: int) -> float:
        times = max(1, round(n / REQUESTS))
        outside = contextvars.copy_context()
        total = 0.0
        for _ in range(times):
            with record(path, http=True):
                total += await asyncio.create_task(_post_all(client, url, bodies), context=outside)
        return total * n / (times * REQUESTS)

    return run


async def _first_piece(client: str, url: str) -> float:
    """Which part of the time of a stream had gone by when its first piece was there."""
    library: Any = importlib.import_module(client.partition(" ")[0])
    [body] = _bodies(1)
    times: list[float] = []
    if client == "requests":
        with library.Session() as session:
            times.append(perf_counter())
            with session.post(url, data=body, headers=_HEADERS, stream=True) as response:
                times += [perf_counter() for line in response.iter_lines(chunk_size=None) if line]
    elif client == "httpx":
        with library.Client() as plain:
            times.append(perf_counter())
            with plain.stream("POST", url, content=body, headers=_HEADERS) as response:
                times += [perf_counter() for line in response.iter_lines() if line]
    elif client == "httpx async":
        async with library.AsyncClient() as awaited:
            times.append(perf_counter())
            async with awaited.stream("POST", url, content=body, headers=_HEADERS) as response:
                times += [perf_counter() async for line in response.aiter_lines() if line]
    else:
        async with library.ClientSession() as opened:
            times.append(perf_counter())
            async with opened.post(url, data=body, headers=_HEADERS) as response:
                times += [perf_counter() async for line in response.content if line.strip()]
    assert len(times) == PIECES + 1
    return (times[1] - times[0]) / (times[-1] - times[0])


async def _first_pieces(client: str, url: str, path: Path) -> list[Row]:
    await _first_piece(client, url)  # it is warm then
    shares: dict[str, list[float]] = {"recorded": [], "replayed": []}
    for _ in range(5):
        with record(path, http=True):
            shares["recorded"].append(await _first_piece(client, url))
        with replay(path):
            shares["replayed"].append(await _first_piece(client, url))
    return [
        Row("requests", f"{client}: first piece of a stream, {how}", Spread.of(found), "x", 0.5, "of the stream's time")
        for how, found in shares.items()
    ]


_LOAD = """
import re, sys, time
from pathlib import Path
from agent_cache.recording import replay

def resident():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

before, start = resident(), time.perf_counter()
with replay(sys.argv[1]) as player:
    print(time.perf_counter() - start, resident() - before, len(player.cassette))
"""


def _loads(url: str, path: Path, count: int) -> list[Row]:
    """Loading a recording of that many requests, each time in a new process."""
    with record(path, http=True):
        for body in _bodies(count):
            request = urllib.request.Request(url, body, _HEADERS)
            with urllib.request.urlopen(request) as response:
                response.read()
    seconds, sizes = [], []
    for _ in range(5):
        command = [sys.executable, "-c", _LOAD, str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        took, size, found = done.stdout.split()
        assert int(found) == count
        seconds.append(float(took))
        sizes.append(float(size))
    note = f"{path.stat().st_size / 1e6:.0f} MB of file"
    return [
        Row("requests", f"loading {count:,} of them", Spread.of(seconds), "s", 1.0, note),
        Row("requests", "the same, memory", Spread.of(sizes), "B", 60e6, "growth of the process at its largest"),
    ]


CLIENTS = ("httpx", "httpx async", "requests", "aiohttp")
MOST_RECORDED, MOST_REPLAYED = 1.7, 0.7
"""Recording adds 0.2 to 0.3 ms, half of it the search for secrets in 4 KB of text. The parser of aiohttp is in C
and its live request a third of the others', so that this is a larger part of it."""


async def rows(effort: Effort) -> list[Row]:
    found: list[Row] = []
    with TemporaryDirectory() as place, _server() as root:
        path, url = Path(place), f"{root}/v1/chat/completions"
        models = Http(models=["127.0.0.1"])
        for client in CLIENTS:
            if importlib.util.find_spec(client.partition(" ")[0]) is None:
                continue
            recorded = path / f"{client}.jsonl"
            with record(recorded, http=models):
                await _post_all(client, url, _bodies(REQUESTS + 1))
            figures = await measure(
                {
                    "live": _sample(client, url, nullcontext),
                    "idle": _idle_sample(client, url, path / "idle.jsonl"),
                    "record": _sample(client, url, lambda: record(path / "again.jsonl", http=models)),
                    "replay": _sample(client, url, lambda recorded=recorded: replay(recorded)),  # type: ignore[misc]
                },
                Effort(rounds=max(9, effort.rounds // 5), seconds=effort.seconds),
                title=f"requests of {client}",
            )
            live = figures["live"]
            note = "4 KB of JSON; over live on loopback"
            found += [
                Row("requests", f"{client}: live", live.spread.scaled(1e6), "us"),
                Row(
                    "requests", f"{client}: outside of a recording", figures["idle"].over(live), "x", None, "over live"
                ),
                Row("requests", f"{client}: recorded", figures["record"].over(live), "x", MOST_RECORDED, note),
                Row("requests", f"{client}: replayed", figures["replay"].over(live), "x", MOST_REPLAYED, "over live"),
                *await _first_pieces(client, f"{root}/stream", path / "stream.jsonl"),
            ]
        found += _loads(url, path / "long.jsonl", min(LOADED, effort.entries))
    return found
