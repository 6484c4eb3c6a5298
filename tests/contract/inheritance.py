"""Contract of tiers, third part: values whose load has made other reads, and what they inherit from these."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.workbench import (
    RecordingListener,
    Workbench,
    commit,
    load,
    read,
    value_of,
    versions_of,
    write,
    writing,
)

__all__ = ["InheritanceTests"]

ORDER = read("order:7")
USER = read("user:1", tool="shop:get_user", key="1")
FIND = read(late=("order",), tool="shop:find_order", key="Mei")
REPORT = read("report", tool="shop:report", key="today")  # a read that is made of others


class InheritanceTests(Workbench):
    """A value depends on everything that the reads in its load depended on, as it was for them."""

    async def test_versions_are_known_when_a_value_is(self) -> None:
        """Those of a found value are those that it was stored under."""
        async with self.tiers() as (a, b):
            _, missed = await a.lookup(ORDER)
            assert missed.versions is None
            stored = await load(a, ORDER, "old")
            assert stored.versions
            _, found = await b.lookup(ORDER)
            assert found.versions == stored.versions

    async def test_a_write_ends_what_was_made_of_what_it_touches(self) -> None:
        """However the reads inside were answered; other entities do not matter."""
        for written, is_ended in (("order:7", True), ("order", True), ("report", True), ("order:8", False)):
            for reader in (0, 1):  # the second one finds the inner value in the tier
                async with self.tiers() as tiers:
                    await load(tiers[0], ORDER, "inner")
                    inner = await versions_of(tiers[reader], ORDER)
                    await load(tiers[reader], REPORT, "old", "order:7", inherited=[inner])
                    assert await value_of(tiers[1], REPORT) == "old"
                    async with writing(tiers[0], written):
                        assert await value_of(tiers[1], REPORT) == ("nothing" if is_ended else "old")
                    assert await value_of(tiers[1], REPORT) == ("nothing" if is_ended else "old"), written

    async def test_tags_that_an_inner_result_names_are_inherited(self) -> None:
        """The entity, and its root."""
        for written, is_ended in (("order:7", True), ("order", True), ("order:8", False)):
            async with self.tiers() as (a, b):
                inner = await versions_of(a, FIND, "order:7")
                await load(a, REPORT, "old", "order:7", inherited=[inner])
                found, _ = await b.lookup(REPORT)
                assert found is not None
                assert set(found.tags) == {"report", "order:7"}
                async with writing(b, written):
                    pass
                assert await value_of(b, REPORT) == ("nothing" if is_ended else "old"), written

    async def test_nothing_is_inherited_from_what_is_being_written(self) -> None:
        """Its writer may die: a value that was made of it could not be told from one that was made of the new state."""
        for intent in (write("order:7"), write(late=("order",))):
            async with self.tiers() as (a, b):
                await load(a, ORDER, "old")
                await b.begin(intent)
                for request in (ORDER, read("order:7", key="other"), read("order", key="all"), FIND):
                    assert await versions_of(a, request, *("order:7",) * (request is FIND)) is None
                await commit(b, intent, "order:7")
                assert await versions_of(a, ORDER)

    async def test_what_was_made_of_two_versions_is_not_stored(self) -> None:
        """A write came between two of its reads, so no state of the data ever was like this."""
        async with self.tiers() as (a, b):
            before = await versions_of(a, ORDER)
            async with writing(b, "order:7"):
                pass
            after = await versions_of(a, ORDER)
            for inherited in ([before, after], [after, before]):
                await load(a, REPORT, "old", "order:7", inherited=inherited)
                assert await value_of(b, REPORT) == "nothing"

    async def test_a_tag_that_nothing_covers_is_not_stored(self) -> None:
        """Nobody knows under which version it was read."""
        async with self.tiers() as (a, b):
            await load(a, REPORT, "old", "order:7", "user:1", inherited=[await versions_of(a, ORDER)])
            assert await value_of(b, REPORT) == "nothing"

    async def test_the_versions_of_a_found_value_are_not_those_of_one_that_is_loaded_nevertheless(self) -> None:
        """A `fresh` read may depend on other entities than the value that it replaces."""
        async with self.tiers() as (a, b):
            await load(a, FIND, "old", "order:7")
            _, ticket = await a.lookup(FIND)
            assert ticket.versions
            async with writing(b, "order:8"):
                pass
            await a.store(ticket, "new", ("order:8",), 0.5, age=0.0)
            assert ticket.versions is None

    async def test_a_discarded_value_takes_what_was_made_of_it_with_it(self) -> None:
        """It was discarded as wrong."""
        async with self.tiers() as (a, b):
            await load(a, REPORT, "old", "order:7", inherited=[await versions_of(a, ORDER)])
            await b.discard(ORDER)
            assert await value_of(a, REPORT) == "nothing"

    async def test_a_ticket_is_clean_until_what_is_inherited_is_touched(self) -> None:
        """In a process that has only found the value, which knows of its tags since then."""
        async with self.tiers() as (a, b):
            await load(a, REPORT, "old", "order:7", inherited=[await versions_of(a, ORDER)])
            _, ticket = await b.lookup(REPORT)
            async with writing(a, "order:8"):
                pass
            await self.arrive()
            assert ticket.is_clean()
            async with writing(a, "order:7"):
                pass
            await self.arrive()
            assert not ticket.is_clean()

    async def test_a_listener_is_told_of_what_was_made_of_a_discarded_entry(self) -> None:
        """A write of a single entry names no tags, and this process may never have read that entry."""
        async with self.tiers() as (a, b):
            received = RecordingListener()
            b.subscribe(received)
            await load(a, REPORT, "old", "order:7", inherited=[await versions_of(a, ORDER)])
            _, ticket = await b.lookup(REPORT)
            await a.discard(read("order:8", key="8"))
            await self.arrive()
            assert ticket.is_clean()
            received.clear()
            await a.discard(ORDER)
            await self.arrive()
            assert not ticket.is_clean()
            named = any(touched is None or (REPORT.tool, REPORT.key) in touched.keys for touched in received)
            assert named or received.concerns("order:7")

    async def test_strong_reads_pass_over_what_inherits_from_an_armed_root(self) -> None:
        """Its writer may have died after its effect."""
        async with self.tiers() as (a, b):
            await load(a, REPORT, "old", "order:7", inherited=[await versions_of(a, ORDER)])
            strong = replace(REPORT, strong=True)
            assert await value_of(b, strong) == "old"
            await a.begin(write(late=("order",)))
            assert await value_of(b, strong) == "nothing"
            assert await value_of(b, REPORT) == "old"
