"""The world of the agents: a server on loopback that carries out writes, answers a model's requests, and counts.

It runs in the process of the benchmark, which is never killed. What it has counted is the truth that a run is judged
by. Each run has a part of its own, named in the path of its requests.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

LIFE_HEADER: Final = "x-life"
"""Header of a request with the number of the process of the run that sends it, from 1."""
KEY_HEADER: Final = "idempotency-key"
LATENCY: Final = 0.002
"""Seconds before the effect of a request, and again before its answer."""


@dataclass
class World:
    """What one run has done.

    Attributes:
        is_idempotent: whether a write with the key of an earlier one is answered as that was, without another effect.
        effects: how often each operation was carried out.
        by_key: the answer to the write with this key.
        asked: the lives of the run in which the model answered each request.
        strike: kind and operation of a request during which the process of the run is killed: `"request lost"` before
            its effect, which then never comes, `"answer lost"` after it.
        kill: kills that process.
    """

    is_idempotent: bool = False
    effects: Counter[str] = field(default_factory=Counter)
    by_key: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    strike: tuple[str, str] | None = None
    kill: Callable[[], None] = lambda: None


class Receiver:
    """The server.

    Attributes:
        url: of its root.
        worlds: by the name of the run.
    """

    def __init__(self) -> None:
        self.worlds: dict[str, World] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._idle = threading.Condition()
        self._busy: Counter[str] = Counter()
        self.lock = threading.Lock()

    def wait_until_idle(self) -> None:
        """Return when no request is being carried out that was sent before.

        A process is resumed after that: what a killed process has sent is carried out or lost by then.
        """
        # Connections are accepted in their order: when this is answered, those of the killed process have begun.
        with urllib.request.urlopen(f"{self.url}/-/ping/-") as response:
            response.read()
        with self._idle:
            if not self._idle.wait_for(lambda: not self._busy.total(), timeout=60):
                raise TimeoutError("a request has not ended within a minute")

    def begin(self) -> None:
        with self._idle:
            self._busy["requests"] += 1

    def end(self) -> None:
        with self._idle:
            self._busy["requests"] -= 1
            self._idle.notify_all()

    def carry_out(self, world: World, operation: str, key: str) -> dict[str, Any]:
        """A write. Returns its answer, which depends on the operation alone."""
        name = key or operation
        with self.lock:
            if world.is_idempotent and name in world.by_key:
                return world.by_key[name]
            world.effects[operation] += 1
            answer = world.by_key[name] = {"operation": operation, "receipt": f"receipt of {operation}"}
        return answer

    @contextmanager
    def running(self) -> Iterator[Receiver]:
        """Answer requests until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:  # the process was killed while it sent this
            return
        receiver = self.server.receiver  # type: ignore[attr-defined]  # it is a `_Server`
        _, run, what, operation = self.path.split("/")
        if what == "ping":
            self._send({})
            return
        world: World = receiver.worlds[run]
        life = int(self.headers.get(LIFE_HEADER) or 1)
        time.sleep(LATENCY)
        is_struck = world.strike is not None and world.strike[1] == operation and self.command == "POST"
        if is_struck and world.strike is not None and world.strike[0] == "request lost":
            world.strike = None
            world.kill()
            return
        content = self._content(receiver, world, what, operation, life)
        if is_struck:
            world.strike = None
            world.kill()
            return
        time.sleep(LATENCY)
        self._send(content)

    def _content(self, receiver: Receiver, world: World, what: str, operation: str, life: int) -> dict[str, Any] | None:
        match what:
            case "write":
                return receiver.carry_out(world, operation, self.headers.get(KEY_HEADER) or "")
            case "key":  # whether the write with this key was carried out
                with receiver.lock:
                    return world.by_key.get(operation)
            case "effect":  # whether this operation was carried out
                with receiver.lock:
                    return {"times": world.effects[operation]}
            case "order":
                with receiver.lock:
                    written = sorted(
                        name for name, times in world.effects.items() if times and f"of {operation}" in name
                    )
                return {"order": operation, "written": written}
            case "ask":
                with receiver.lock:
                    world.asked[operation].append(life)
                return {"text": f"go on after {operation}"}
            case _:
                raise ValueError(what)

    def _send(self, content: dict[str, Any] | None) -> None:
        text = json.dumps(content).encode()
        try:
            self.send_response(200 if content is not None else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except ConnectionError:  # nobody waits for the answer any more
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100
    receiver: Receiver

    def process_request(self, request: Any, client_address: Any) -> None:
        self.receiver.begin()  # here and not in the thread, which may not have begun when it is asked for
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.receiver.end()

    def handle_error(self, *_: object) -> None:
        """A process that is killed in the middle of a request is what this is for."""
