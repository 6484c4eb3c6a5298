"""Measures recording and replaying requests to a server, beside vcrpy: `python -m benchmarks.recording.requests`.

Both record the same requests of one HTTP client: vcrpy what passes the client's transport, agent_cache the function
that makes the request and returns its JSON. Processor time of the client's thread; the server runs in another one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

from agent_cache.recording import intercept, record, replay
from benchmarks.commands import describe_machine, put_table
from benchmarks.rows.recording import ORDER
from benchmarks.table import markdown
from benchmarks.timing import progress

CALLS = (100, 500)
ROUNDS = 3
_COLUMNS = ("recorder", "requests", "size", "no recorder", "record", "replay, loading included")
_BODY = json.dumps(ORDER).encode()

GetOrder = Callable[[str], Any]
Block = Callable[[Path], AbstractContextManager[Any]]


class _Orders(BaseHTTPRequestHandler):
    """Answers every request with an order."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second of two waits for 40 ms

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY)

    def log_message(self, *args: Any) -> None:
        """Nothing is printed."""


@contextmanager
def server() -> Iterator[str]:
    """A server of orders on loopback. Yields its address."""
    running = ThreadingHTTPServer(("127.0.0.1", 0), _Orders)
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def main(argv: list[str] | None = None) -> int:
    """Measure and print. Exit code 2 if httpx or vcrpy is not installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording.requests", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of the smaller number of requests")
    parser.add_argument("--page", action="store_true", help="also put the table into docs/benchmarks.md")
    options = parser.parse_args(argv)
    if missing := [name for name in ("httpx", "vcr") if find_spec(name) is None]:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    rows = []
    with server() as address:
        for calls in CALLS[:1] if options.quick else CALLS:
            for name, measured in recorders(address).items():
                progress(f"{calls:,} requests with {name}")
                rows.append(_row(name, calls, *_measured(*measured, calls, 1 if options.quick else ROUNDS)))
    table = markdown(_COLUMNS, rows)
    print(table)
    if options.page:
        put_table("requests", f"{describe_machine(['agent-cache', 'vcrpy', 'httpx'])}\n\n{table}")
    return 0


def recorders(address: str) -> dict[str, tuple[GetOrder, GetOrder, Block, Block]]:
    """By name of a recorder: a function without it and one that it records, and its blocks to record and replay."""
    import httpx
    import vcr

    client = httpx.Client(base_url=address)

    def get_order(order_id: str) -> Any:
        return client.get(f"/orders/{order_id}").json()

    def tape(serializer: str, mode: str) -> Block:
        return lambda path: vcr.VCR(serializer=serializer, record_mode=mode).use_cassette(str(path))

    return {
        "agent_cache, the function": (get_order, intercept(get_order, name="get_order"), record, replay),
        **{
            f"vcrpy, the request, in {serializer.upper()}": (
                get_order, get_order, tape(serializer, "all"), tape(serializer, "none")
            )
            for serializer in ("yaml", "json")
        },
    }  # fmt: skip


def _measured(
    plain: GetOrder, recorded: GetOrder, recording: Block, replaying: Block, calls: int, rounds: int
) -> tuple[int, float, float, float]:
    """Bytes of the file, and the medians of seconds without the recorder, recording, and replaying."""
    times: list[tuple[float, float, float]] = []
    size = 0
    _seconds(plain, nullcontext(), calls)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "orders.cassette"
            times.append(
                (
                    _seconds(plain, nullcontext(), calls),
                    _seconds(recorded, recording(path), calls),
                    _seconds(recorded, replaying(path), calls),
                )
            )
            size = path.stat().st_size
    without, with_record, with_replay = (median(column) for column in zip(*times, strict=True))
    return size, without, with_record, with_replay


def _seconds(get_order: GetOrder, block: AbstractContextManager[Any], calls: int) -> float:
    start = thread_time()
    with block:
        answers = [get_order(f"W{number}") for number in range(calls)]
    seconds = thread_time() - start
    assert all(answer == ORDER for answer in answers)
    return seconds


def _row(name: str, calls: int, size: int, *seconds: float) -> tuple[str, ...]:
    return name, f"{calls:,}", f"{size / 1e3:.0f} kB", *(f"{each / calls * 1e6:.0f} us" for each in seconds)


if __name__ == "__main__":
    sys.exit(main())
