"""Servers that belong together and end together."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tests.harness.servers import Server


class Deployment:
    """As a context manager it is stopped at the end."""

    def __init__(self, servers: Iterable[Server]) -> None:
        self.servers = tuple(servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End them all, whatever one of them does."""
        with ExitStack() as exits:
            for server in self.servers:
                exits.callback(server.stop)
