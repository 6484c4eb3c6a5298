"""One store and one truth for several processes: they live in one of them, and the others ask over a unix socket.

Every request is one JSON line, answered at one instant of the authority's event loop. So all that happens to the store
has one order, and each read is judged against the truth of its own time, wherever it was made.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from benchmarks.retail.store import RetailStore
from benchmarks.retail.truth import ObservedStore, Verdict, Witness

LIMIT = 1 << 24


class Authority:
    """Keeps the store, in a thread of its own.

    Attributes:
        observed: the store. Its counts are whole when nobody asks any more.
    """

    def __init__(self, store: RetailStore, path: Path) -> None:
        self.observed = ObservedStore(store)
        self._path = path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="authority", daemon=True)

    def __enter__(self) -> Authority:
        self._thread.start()
        listening = asyncio.start_unix_server(self._serve, str(self._path), limit=LIMIT)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One session: it is a task, so what its write is about to replace is in its own context."""
        with ExitStack() as open_:
            witness: Witness | None = None
            while line := await reader.readline():
                match json.loads(line):
                    case ["answer", tool, arguments]:
                        said = self.observed.answer(tool, arguments)
                    case ["watch", tool, arguments]:
                        witness = open_.enter_context(self.observed.watching(tool, arguments))
                        said = "watching"
                    case ["judge", answer]:
                        assert witness is not None
                        said = witness.verdict(answer).name
                        open_.pop_all().close()
                    case ["write"]:
                        open_.enter_context(self.observed.writing())
                        said = "writing"
                    case ["written"]:
                        open_.pop_all().close()
                        said = "written"
                    case other:
                        raise ValueError(f"nobody asks this: {other!r}")
                writer.write(json.dumps(said).encode() + b"\n")
        writer.close()


_SPEAKER: ContextVar[Speaker] = ContextVar("speaker")


class Speaker:
    """One session's connection to the authority. It blocks while it asks: nothing of its process comes in between."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        _SPEAKER.set(self)

    def ask(self, *what: object) -> str:
        self._socket.sendall(json.dumps(what).encode() + b"\n")
        said: str = json.loads(self._lines.readline())
        return said

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """As `ObservedStore.writing`."""
        self.ask("write")
        try:
            yield
        finally:
            self.ask("written")

    def watch(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Begin to collect the true answers of a read."""
        self.ask("watch", tool, arguments)

    def judge(self, answer: str) -> Verdict:
        """End it, and say how an answer stands to them."""
        return Verdict[self.ask("judge", answer)]


class Far:
    """The store, for the tools of a process that does not have it."""

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run one tool at the authority."""
        return _SPEAKER.get().ask("answer", tool, arguments)
