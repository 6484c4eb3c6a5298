"""Tags that only a result tells: of a read, and of a write."""

from __future__ import annotations

from tests.contract.workbench import Workbench, commit, load, read, value_of, write, writing

__all__ = ["LateTagTests"]

WHO_HAS_SEVEN = read(late=("order",), tool="shop:find_order", key="Mei")


class LateTagTests(Workbench):
    """A reader that does not know what it depends on before it has read it; a writer that learns what it has
    touched.
    """

    async def test_a_result_says_what_its_value_depends_on(self) -> None:
        """Written elsewhere under the root, it stays; written itself, it goes."""
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

    async def test_a_write_to_the_root_ends_it_as_well(self) -> None:
        """An entity depends on its root."""
        async with self.tiers() as (a, b):
            await load(a, WHO_HAS_SEVEN, "old", "order:7")
            async with writing(b, "order"):
                pass
            assert await value_of(b, WHO_HAS_SEVEN) == "nothing"

    async def test_a_result_that_names_no_entity_depends_on_the_whole_root(self) -> None:
        """Nobody has order 7 yet; whoever gets one changes that."""
        async with self.tiers() as (a, b):
            await load(a, WHO_HAS_SEVEN, None, "order")
            assert await value_of(b, WHO_HAS_SEVEN) is None
            async with writing(b, "order:9"):
                pass
            assert await value_of(b, WHO_HAS_SEVEN) == "nothing"

    async def test_known_tags_count_beside_late_ones(self) -> None:
        """A value depends on all of them."""
        for written in ("user:Mei", "order:7"):
            async with self.tiers() as (a, b):
                request = read("user:Mei", late=("order",))
                await load(a, request, "old", "order:7")
                assert await value_of(b, request) == "old"
                async with writing(b, written):
                    pass
                assert await value_of(b, request) == "nothing"

    async def test_a_load_overtaken_by_a_write_to_what_it_turns_out_to_depend_on_is_never_found(self) -> None:
        """The entity's own version, read after the load, would look current for ever."""
        for written in ("order:7", "order"):
            async with self.tiers() as (a, b):
                _, ticket = await a.lookup(WHO_HAS_SEVEN)
                async with writing(b, written):
                    pass
                await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
                assert await value_of(b, WHO_HAS_SEVEN) == "nothing"

    async def test_a_load_that_begins_in_a_write_and_ends_after_it_is_never_found_either(self) -> None:
        """Whether the write ends by its commit or, dead, by its lease."""
        for is_dead in (False, True):
            async with self.tiers() as (a, b):
                intent = write("order:7")
                await b.begin(intent)
                _, ticket = await a.lookup(WHO_HAS_SEVEN)
                await (self.advance(b.lease * 1.1) if is_dead else commit(b, intent))
                await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
                assert await value_of(b, WHO_HAS_SEVEN) == "nothing"

    async def test_nothing_is_stored_while_what_it_depends_on_is_written(self) -> None:
        """And if the writer dies with its work done, nothing that was loaded before shows up."""
        async with self.tiers() as (a, b):
            _, early = await a.lookup(WHO_HAS_SEVEN)
            await b.begin(write("order:7"))
            await a.store(early, "old", ("order:7",), 0.5, age=0.0)
            await load(a, WHO_HAS_SEVEN, "old", "order:7")
            assert await value_of(b, WHO_HAS_SEVEN) == "nothing"
            await self.advance(b.lease * 1.1)
            assert await value_of(b, WHO_HAS_SEVEN) == "nothing"

    async def test_hits_go_on_until_a_write_tells_what_it_touches(self) -> None:
        """Only what it then names is gone, and what depends on the whole root."""
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

    async def test_a_load_overtaken_by_a_write_that_told_its_entity_is_never_found(self) -> None:
        """Both kinds of reads of the entity."""
        for request in (read("order:7"), WHO_HAS_SEVEN):
            async with self.tiers() as (a, b):
                _, ticket = await a.lookup(request)
                intent = write(late=("order",))
                await b.begin(intent)
                _, inside = await a.lookup(request)
                await commit(b, intent, "order:7")
                await a.store(ticket, "old", ("order:7",), 0.5, age=0.0)
                await a.store(inside, "old", ("order:7",), 0.5, age=0.0)
                assert await value_of(b, request) == "nothing"

    async def test_a_write_that_failed_without_telling_ends_the_whole_root(self) -> None:
        """It may have touched anything there."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            await load(a, read("user:1", tool="shop:get_user"), "old")
            intent = write(late=("order",))
            await b.begin(intent)
            await commit(b, intent, failed=True)
            assert await value_of(a, read("order:7")) == "nothing"
            assert await value_of(a, read("user:1", tool="shop:get_user")) == "old"

    async def test_a_write_that_touched_nothing_there_ends_nothing_there(self) -> None:
        """It did not fail, and its result names no entity of the root."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            intent = write(late=("order",))
            await b.begin(intent)
            await commit(b, intent)
            assert await value_of(a, read("order:7")) == "old"

    async def test_a_writer_that_dies_before_it_tells_takes_the_root_with_it(self) -> None:
        """When its lease is over: what was stored before, and what was stored meanwhile."""
        async with self.tiers() as (a, b):
            await load(a, read("order:7"), "old")
            await b.begin(write(late=("order",)))
            await load(a, read("order:8", key="8"), "old")
            await self.advance(b.lease * 1.1)
            assert await value_of(a, read("order:7")) == "nothing"
            assert await value_of(a, read("order:8", key="8")) == "nothing"
            await load(a, read("order:7"), "new")
            assert await value_of(b, read("order:7")) == "new"

    async def test_a_write_may_know_some_of_its_tags_and_be_told_others(self) -> None:
        """The known ones are held, the root of the others is not, and in the end both are gone."""
        async with self.tiers() as (a, b):
            seven, eight = read("order:7"), read("order:8", key="8")
            for request in (seven, eight):
                await load(a, request, "old")
            intent = write("order:7", late=("order",))
            await b.begin(intent)
            assert [await value_of(a, request) for request in (seven, eight)] == ["nothing", "old"]
            await commit(b, intent, "order:8")
            assert [await value_of(a, request) for request in (seven, eight)] == ["nothing", "nothing"]
