"""Who looks on while the agents run. This one sees everything and says nothing; others override what they show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent_cache._demo.chronicle import Act, Call, Chronicle

__all__ = ["Spectator"]


class Spectator:
    """Told of every act and every call that ends; `finished` comes once, after the last one."""

    def act_began(self, number: int, act: Act) -> None:
        """An act begins; the first has number 1."""

    def call_ended(self, call: Call) -> None:
        """A call is over, and its answer has been checked."""

    @asynccontextmanager
    async def watching(self, chronicle: Chronicle) -> AsyncIterator[None]:  # noqa: ARG002  # for those who override it
        """Surround the whole run."""
        yield

    def finished(self, chronicle: Chronicle) -> None:
        """The run is over, and nothing more will change."""
