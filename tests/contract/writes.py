"""Writes that know their tags: what they end, what they keep from being stored, and for how long."""

from __future__ import annotations

from tests.contract.workbench import Workbench, commit, load, read, value_of, write, writing

__all__ = ["WriteTests"]

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
"""Tag of a read, tag of a write, and whether the write ends what the read has stored."""


class WriteTests(Workbench):
    """Begin, side effect, commit."""

    async def test_a_write_ends_what_meets_its_tag(self) -> None:
        """The entity, what is below it, and what depends on the whole root; no other."""
        for stored, written, is_ended in REACH:
            async with self.tiers() as (a, b):
                await load(a, read(stored), "old")
                async with writing(b, written):
                    pass
                assert await value_of(a, read(stored)) == ("nothing" if is_ended else "old"), (stored, written)

    async def test_nothing_is_found_while_a_write_runs(self) -> None:
        """What it touches may be half done."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            async with writing(b, "order:7"):
                assert await value_of(a, read("order:7")) == "nothing"

    async def test_what_is_loaded_while_a_write_runs_is_never_found(self) -> None:
        """Neither before it ends nor after."""
        async with self.tiers() as (a, b):
            async with writing(b, "order:7"):
                await load(a, read("order:7"), "half")
                assert await value_of(b, read("order:7")) == "nothing"
            assert await value_of(b, read("order:7")) == "nothing"

    async def test_a_load_that_a_write_overtakes_is_never_found(self) -> None:
        """It looked before the write began and stores when the write has ended."""
        async with self.tiers() as (a, b):
            _, ticket = await a.lookup(read("order:7"))
            async with writing(b, "order:7"):
                pass
            await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
            assert await value_of(b, read("order:7")) == "nothing"

    async def test_a_load_that_a_write_outlasts_is_never_found(self) -> None:
        """It looked before the write began and stores while the write runs."""
        async with self.tiers() as (a, b):
            _, ticket = await a.lookup(read("order:7"))
            async with writing(b, "order:7"):
                await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
                assert await value_of(b, read("order:7")) == "nothing"
            assert await value_of(b, read("order:7")) == "nothing"

    async def test_a_load_that_begins_in_a_write_and_ends_after_it_is_never_found(self) -> None:
        """It may have read what was there before the effect."""
        async with self.tiers() as (a, b):
            async with writing(b, "order:7"):
                _, ticket = await a.lookup(read("order:7"))
            await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
            assert await value_of(b, read("order:7")) == "nothing"

    async def test_what_is_loaded_after_a_write_is_found(self) -> None:
        """Once committed, a write is over."""
        async with self.tiers() as (a, b):
            async with writing(b, "order:7"):
                pass
            await load(a, read("order:7"), "new")
            assert await value_of(b, read("order:7")) == "new"

    async def test_a_hold_after_the_commit_keeps_loads_out(self) -> None:
        """A write in doubt may still take effect; so may one that settles. What was loaded inside is not stored
        after it.
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

    async def test_a_value_depends_on_each_of_its_tags(self) -> None:
        """Whichever root is written."""
        for written in ("order:7", "user:1"):
            async with self.tiers() as (a, b):
                await load(a, read("order:7", "user:1"), "old")
                async with writing(b, written):
                    pass
                assert await value_of(a, read("order:7", "user:1")) == "nothing"

    async def test_a_write_touches_each_of_its_tags(self) -> None:
        """Under several roots at once."""
        async with self.tiers() as (a, b):
            order, user = read("order:7"), read("user:1", tool="shop:get_user")
            async with writing(b, "order:7", "user:1"):
                await load(a, order, "half")
                await load(a, user, "half")
            assert await value_of(a, order) == "nothing"
            assert await value_of(a, user) == "nothing"

    async def test_one_writers_commit_does_not_end_anothers_hold(self) -> None:
        """Writers are known by id: counting them, a command that comes twice would let go of somebody else's."""
        async with self.tiers() as (a, b):
            first, second = write("order:7"), write("order:7")
            await a.begin(first)
            await b.begin(second)
            await commit(a, first)
            await commit(a, first)
            await load(a, read("order:7"), "half")
            assert await value_of(b, read("order:7")) == "nothing"
            await commit(b, second)
            await load(a, read("order:7"), "new")
            assert await value_of(b, read("order:7")) == "new"

    async def test_commands_that_come_twice_are_harmless(self) -> None:
        """After begin, begin, commit, commit the write is over."""
        async with self.tiers() as (a, b):
            intent = write("order:7")
            for _ in range(2):
                await b.begin(intent)
            for _ in range(2):
                await commit(b, intent)
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
