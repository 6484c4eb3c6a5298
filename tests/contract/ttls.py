"""The contract of tiers that pass on the ttls that are set at run time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.contract.workbench import Workbench, load, read, value_of

__all__ = ["TtlTests"]

GET, LIST = "shop:get_order", "shop:list_orders"


class Known(dict[str, float]):
    """What a listener was last told."""

    def __call__(self, ttls: Mapping[str, float]) -> None:
        self.clear()
        self.update(ttls)

    async def becomes(self, wanted: dict[str, float]) -> None:
        """Wait until it is this."""
        async with asyncio.timeout(15):
            while self != wanted:
                await asyncio.sleep(0.005)


class TtlTests(Workbench):
    """What is published in one process is known in all, whenever they come."""

    @asynccontextmanager
    async def following(self) -> AsyncIterator[tuple[Any, Any, Known, Known]]:
        """Two clients, and what their listeners know."""
        async with self.tiers() as (a, b):
            knows = Known(), Known()
            a.follow_ttls(knows[0])
            b.follow_ttls(knows[1])
            yield a, b, *knows

    async def test_a_ttl_is_known_everywhere_and_the_last_one_that_arrives_counts(self) -> None:
        """Until it is taken back. A listener that comes later is told what is known."""
        async with self.following() as (a, b, here, there):
            for tier, tool, ttl, wanted in (
                (a, GET, 12.5, {GET: 12.5}),
                (a, LIST, 3.0, {GET: 12.5, LIST: 3.0}),
                (b, GET, 2.0, {GET: 2.0, LIST: 3.0}),
                (b, LIST, None, {GET: 2.0}),
            ):
                tier.publish_ttl(tool, ttl)
                await here.becomes(wanted)
                await there.becomes(wanted)
            late = Known()
            b.follow_ttls(late)
            assert late == {GET: 2.0}

    async def test_what_is_older_than_the_ttl_of_a_read_is_not_found(self) -> None:
        """It was stored when the ttl of its tool was a longer one."""
        async with self.following() as (a, b, _, _):
            await load(a, read("order:7", ttl=1000 * self.moment), "old")
            assert await value_of(b, read("order:7", ttl=500 * self.moment)) == "old"
            await self.advance(self.moment)
            assert await value_of(b, read("order:7", ttl=self.moment / 2)) == "nothing"

    async def test_what_a_process_has_missed_it_learns_when_it_is_back(self) -> None:
        async with self.following() as (a, b, _, there):
            await self.cut(b)
            a.publish_ttl(GET, 12.5)
            await self.reconnect(b)
            await there.becomes({GET: 12.5})

    async def test_what_was_published_while_the_server_was_away_arrives_when_it_is_back(self) -> None:
        async with self.following() as (a, _, here, there):
            await self.stop_server()
            a.publish_ttl(GET, 12.5)
            await self.start_server()
            await a.lookup(read("order:7"))
            await there.becomes({GET: 12.5})
            assert here == {GET: 12.5}
