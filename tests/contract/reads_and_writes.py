"""Contract of tiers, first part: which value a read finds, and what a write invalidates."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent_cache.remote import Request, Tier
from tests.contract.workbench import Workbench, commit, load, read, value_of, write, writing

__all__ = ["LateTagTests", "ReadTests", "WriteTests"]


class ReadTests(Workbench):
    """A stored value is found, for as long as it lives, by those it belongs to."""

    async def test_what_one_process_stores_another_finds(self) -> None:
        """The value comes with all its tags and with what its load cost."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7", "shop"), "old")
            found, ticket = await b.lookup(read("order:7", "shop"))
            assert found is not None
            assert (found.value, set(found.tags), found.cost) == ("old", {"order:7", "shop"}, 0.5)
            assert ticket.is_clean()

    async def test_a_value_belongs_to_whoever_asked(self) -> None:
        """Neither the loader nor a reader can change what others find."""
        async with self.tiers() as (a, _):
            loaded = {"items": ["shoe"]}
            await load(a, read("order:7"), loaded)
            loaded["items"].append("mine")
            found, _ = await a.lookup(read("order:7"))
            assert found is not None
            found.value["items"].append("yours")
            assert await value_of(a, read("order:7")) == {"items": ["shoe"]}

    async def test_a_ttl_counts_from_the_start_of_the_load(self) -> None:
        """Storing does not renew a value from a farther tier or a slow load."""
        async with self.tiers() as (a, b):
            request = read("order:7", ttl=self.moment * 4)
            _, ticket = await a.lookup(request)
            await a.store(ticket, "old", request.tags, 0.5, age=self.moment * 3)
            found, _ = await b.lookup(request)
            assert found is not None
            assert found.age >= self.moment * 3
            assert found.ttl is not None
            assert 0 < found.ttl <= self.moment
            await self.advance(self.moment * 1.1)
            assert await value_of(b, request) == "nothing"

    async def test_a_value_may_live_for_less_than_others_of_its_tool(self) -> None:
        """By a ttl of its own, which counts from the start of its load, too."""
        for age in (0.0, self.moment * 2):
            async with self.tiers() as (a, b):
                request = read("order:7", ttl=None if age else self.moment * 60)
                _, ticket = await a.lookup(request)
                await a.store(ticket, "old", request.tags, 0.5, age=age, ttl=self.moment * 3)
                found, _ = await b.lookup(request)
                assert found is not None
                assert found.ttl is not None
                assert 0 < found.ttl <= self.moment * 3 - age
                await self.advance(self.moment * 3.1 - age)
                assert await value_of(b, request) == "nothing"

    async def test_within_its_grace_a_value_is_known_to_be_old(self) -> None:
        """A tier with grace finds it, and lets at most one reader reload it. It does not outlive a write."""
        ttl = self.moment * 2
        for is_written in (False, True):
            async with self.tiers() as (a, b):
                request = replace(read("order:7", ttl=ttl), grace=ttl * 4)
                await load(a, request, "old")
                found, _ = await b.lookup(request)
                assert found is not None
                assert not found.is_to_refresh
                assert found.ttl is not None
                assert 0 < found.ttl <= ttl
                if is_written:
                    async with writing(a, "order:7"):
                        pass
                await self.advance(ttl * 1.1)
                late = [found for tier in (a, b, a, b) if (found := (await tier.lookup(request))[0]) is not None]
                assert not (late and is_written)
                assert all(found.ttl is not None and found.ttl <= 0 for found in late)
                assert sum(found.is_to_refresh for found in late) <= 1

    async def test_tools_calls_sessions_and_tenants_are_kept_apart(self) -> None:
        """One difference is enough."""
        async with self.tiers() as (a, b):
            mine = read("order:7", key="7", session="s", tenant="t")
            await load(a, mine, "mine")
            others = (
                replace(mine, tool="shop:get_user"),
                replace(mine, key="8", arguments=(("id", "8"),)),
                replace(mine, key=7, arguments=(("id", 7),)),
                replace(mine, session="other"),
                replace(mine, session=None),
                replace(mine, tenant="other"),
                replace(mine, tenant=None),
            )
            assert [await value_of(b, other) for other in others] == ["nothing"] * len(others)
            assert await value_of(b, mine) == "mine"

    async def test_a_discarded_value_is_gone_for_everyone(self) -> None:
        """`discard` returns whether there was one."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            _, ticket = await a.lookup(read("order:8", key="8"))
            await b.discard(read("order:8", key="8"))  # a load under way does not bring it back
            await a.store(ticket, "old", ("order:8",), 0.5, age=0.0)
            assert await value_of(b, read("order:8", key="8")) == "nothing"
            assert await b.discard(read("order:7"))
            assert not await b.discard(read("order:7"))
            assert await value_of(a, read("order:7")) == "nothing"

    async def test_several_event_loops_and_threads_share_a_client(self) -> None:
        """Each finds what the others have stored."""
        async with self.tiers() as (a, b):
            requests = [read("order", key=str(number)) for number in range(4)]
            for request in requests:
                await asyncio.to_thread(_load_alone, a, request)
            assert [await value_of(b, request) for request in requests] == ["old"] * 4


def _load_alone(tier: Tier, request: Request) -> None:
    """Load in an event loop of its own."""
    asyncio.run(load(tier, request, "old"))


REACH = (
    ("order:7", "order:7", True),
    ("order:7", "order", True),
    ("order", "order:7", True),
    ("order", "order", True),
    ("order:7", "order:8", False),
    ("order:7", "user:7", False),
    ("order", "user", False),
    ("order:7:items", "order:7", True),
    ("order:7", "order:7:items", True),
    ("order:a%3Ab", "order:a", False),
    ("order:a%3Ab", "order:a%3Ab", True),
)
"""Tag of a read, tag of a write, and whether the write invalidates the read's value."""


class WriteTests(Workbench):
    """Writes whose tags are known before they run: begin, side effect, commit."""

    async def test_a_write_ends_what_meets_its_tag(self) -> None:
        """The entity, those below it, and values that depend on the whole root; no other."""
        for stored, written, is_ended in REACH:
            async with self.tiers() as (a, b):
                await load(a, read(stored), "old")
                async with writing(b, written):
                    pass
                assert await value_of(a, read(stored)) == ("nothing" if is_ended else "old"), (stored, written)

    async def test_no_load_that_a_write_overlaps_is_ever_found(self) -> None:
        """Whatever it reads, however the write is told, and whenever it looks and stores. One after the write is."""
        async with self.tiers() as (a, b):
            for request in (read("order:7"), read("order", key="all"), WHO_HAS_SEVEN):
                for known, late, told, failed in (
                    (("order:7",), (), (), False),
                    (("order",), (), (), False),
                    ((), ("order",), ("order:7",), False),
                    ((), ("order",), (), True),
                ):
                    for looks, stores in ((0, 1), (0, 2), (1, 1), (1, 2)):
                        intent = write(*known, late=late)
                        for moment in range(3):
                            if looks == moment:
                                _, ticket = await a.lookup(request)
                            if stores == moment:
                                await a.store(ticket, "old", request.tags or ("order:7",), 0.5, age=0.0)
                            if moment == 0:
                                await b.begin(intent)
                            elif moment == 1:
                                await commit(b, intent, *told, failed=failed)
                        assert await value_of(b, request) == "nothing", (request, known, told, looks, stores)
                await load(a, request, "new", *(() if request.tags else ("order:7",)))
                assert await value_of(b, request) == "new"

    async def test_a_hold_after_the_commit_keeps_loads_out(self) -> None:
        """A write in doubt, or one with `settle`, may take effect after its commit. A load from inside the hold is not
        stored after it.
        """
        async with self.tiers() as (a, b):
            intent = write("order:7")
            await b.begin(intent)
            await commit(b, intent, hold=self.moment)
            await load(a, read("order:7"), "half")
            _, ticket = await a.lookup(read("order:7"))
            assert await value_of(b, read("order:7")) == "nothing"
            await self.advance(self.moment * 1.1)
            await a.store(ticket, "half", ("order:7",), 0.5, age=0.0)
            assert await value_of(b, read("order:7")) == "nothing"
            await load(a, read("order:7"), "new")
            assert await value_of(b, read("order:7")) == "new"

    async def test_a_write_of_single_entries_spares_the_others(self) -> None:
        """Those of the same tool and tags included."""
        async with self.tiers() as (a, b):
            seven, eight = read("order", key="7"), read("order", key="8")
            for request in (seven, eight):
                await load(a, request, "old")
            intent = write(entries=(seven,))
            await b.begin(intent)
            await load(a, seven, "half")
            assert await value_of(b, seven) == "nothing"
            _, ticket = await a.lookup(seven)
            await commit(b, intent)
            await a.store(ticket, "half", seven.tags, 0.5, age=0.0)
            assert await value_of(b, seven) == "nothing"
            assert await value_of(b, eight) == "old"
            await load(a, seven, "new")
            assert await value_of(b, seven) == "new"


WHO_HAS_SEVEN = read(late=("order",), tool="shop:find_order", key="Mei")


class LateTagTests(Workbench):
    """Reads and writes whose tags are known only from their results."""

    async def test_a_result_says_what_its_value_depends_on(self) -> None:
        """A write to another entity of the root keeps the value; one to the entity ends it."""
        async with self.tiers() as (a, b):
            await load(a, WHO_HAS_SEVEN, "old", "order:7")
            found, _ = await b.lookup(WHO_HAS_SEVEN)
            assert found is not None
            assert (found.value, found.tags) == ("old", ("order:7",))
            async with writing(b, "order:8"):
                pass
            assert await value_of(b, WHO_HAS_SEVEN) == "old"
            async with writing(b, "order:7"):
                pass
            assert await value_of(b, WHO_HAS_SEVEN) == "nothing"

    async def test_a_result_that_names_no_entity_depends_on_the_whole_root(self) -> None:
        """A search without a result depends on every entity that could become one."""
        async with self.tiers() as (a, b):
            await load(a, WHO_HAS_SEVEN, None, "order")
            assert await value_of(b, WHO_HAS_SEVEN) is None
            async with writing(b, "order:9"):
                pass
            assert await value_of(b, WHO_HAS_SEVEN) == "nothing"

    async def test_hits_go_on_until_a_write_tells_what_it_touches(self) -> None:
        """Its commit ends values of the entities it names, and those that depend on the whole root."""
        async with self.tiers() as (a, b):
            seven, eight, everything = read("order:7"), read("order:8", key="8"), read("order", key="all")
            for request in (seven, eight, everything):
                await load(a, request, "old")
            intent = write(late=("order",))
            await b.begin(intent)
            assert await value_of(a, seven) == "old"
            await commit(b, intent, "order:7")
            assert [await value_of(a, request) for request in (seven, eight, everything)] == [
                "nothing",
                "old",
                "nothing",
            ]
            await load(a, seven, "new")
            assert await value_of(b, seven) == "new"

    async def test_a_write_may_know_some_of_its_tags_and_be_told_others(self) -> None:
        """The known tags are held, the root of the others is armed, and the commit ends values of both."""
        async with self.tiers() as (a, b):
            seven, eight = read("order:7"), read("order:8", key="8")
            for request in (seven, eight):
                await load(a, request, "old")
            intent = write("order:7", late=("order",))
            await b.begin(intent)
            assert [await value_of(a, request) for request in (seven, eight)] == ["nothing", "old"]
            await commit(b, intent, "order:8")
            assert [await value_of(a, request) for request in (seven, eight)] == ["nothing", "nothing"]
