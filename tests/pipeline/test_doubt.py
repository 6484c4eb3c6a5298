"""Writes that may still take effect after they have ended, and sources that settle late: nothing is kept meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, writing
from tests.harness.gates import Gate, cancelled, expire, idle, started

pytestmark = pytest.mark.usefixtures("nothing_left")

DOUBT = 5.0


class Rejected(Exception):
    """The store's definite refusal."""


class Lost(Exception):
    """Some client's own word for a request without an answer."""


class Shop:
    """Two orders; reads answer at once unless they are held."""

    def __init__(self, **options: object) -> None:
        self.versions = {"7": 0, "8": 0}
        self.loads = 0
        self.writing, self.loading = Gate(), Gate()
        self.is_held = False

        @AgentCache("order:{id}")
        async def get(id: str) -> int:
            self.loads += 1
            seen = self.versions[id]
            if self.is_held:
                await self.loading()
            return seen

        @AgentCache("order")
        async def all_orders() -> tuple[int, ...]:
            self.loads += 1
            return tuple(self.versions.values())

        @AgentCacheInvalidator("order:{id}", **options)
        async def change(id: str) -> None:
            await self.writing()

        self.get, self.all_orders, self.change = get, all_orders, change

    async def fail(self, error: BaseException, id: str = "7") -> None:
        """Let a write of the order end with an error."""
        writer = await started(self.change(id))
        self.writing.last.raises(error)
        with pytest.raises(type(error)):
            await writer

    async def lose(self, id: str = "7") -> None:
        """Cancel a write of the order on its way."""
        await cancelled(await started(self.change(id)))

    async def is_kept(self, id: str = "7") -> bool:
        """Whether what is read now is there for the next reader."""
        await self.get(id)
        loads = self.loads
        await self.get(id)
        return self.loads == loads


async def test_after_a_cancelled_write_nothing_is_kept_until_its_doubt_is_over(clock):
    """Every read asks the source for five seconds; then answers are kept again."""
    shop = Shop()
    await shop.lose()
    assert not await shop.is_kept()
    clock.advance(DOUBT - 0.1)
    assert not await shop.is_kept()
    clock.advance(0.2)
    assert await shop.is_kept()


async def test_an_effect_that_lands_in_doubt_is_seen_by_the_next_read(clock):
    """A cancelled request arrives after all: no answer from before it outlives it."""
    shop = Shop()
    await shop.lose()
    assert await shop.get("7") == 0
    clock.advance(2)
    shop.versions["7"] = 1
    assert await shop.get("7") == 1
    clock.advance(DOUBT)
    assert await shop.get("7") == 1


async def test_a_load_that_began_in_doubt_is_not_kept_after_it(clock):
    """The end of doubt is a move: the load had looked before the effect landed."""
    shop = Shop()
    await shop.lose()
    shop.is_held = True
    reader = await started(shop.get("7"))
    clock.advance(DOUBT - 0.1)
    shop.versions["7"] = 1
    clock.advance(0.2)
    shop.loading.last.returns(None)
    assert await reader == 0
    shop.is_held = False
    assert await shop.get("7") == 1


async def test_a_flight_that_was_led_in_doubt_is_not_joined_after_it(clock):
    """Who starts after the end of doubt asks the source, although a load from inside still runs."""
    shop = Shop()
    await shop.lose()
    shop.is_held = True
    early = await started(shop.get("7"))
    shop.versions["7"] = 1
    clock.advance(DOUBT + 0.1)
    late = await started(shop.get("7"))
    assert shop.loads == 2
    for held in shop.loading.running:
        held.returns(None)
    assert (await early, await late) == (0, 1)
    shop.is_held = False
    assert await shop.get("7") == 1
    assert shop.loads == 2


async def test_inside_doubt_concurrent_readers_still_share_one_load():
    """Doubt is about what is kept; identical reads at one time are one run as ever."""
    shop = Shop()
    await shop.lose()
    shop.is_held = True
    readers = [await started(shop.get("7")) for _ in range(3)]
    assert shop.loads == 1
    shop.loading.last.returns(None)
    assert await asyncio.gather(*readers) == [0, 0, 0]


async def test_doubt_concerns_what_the_write_names_and_nothing_beside_it():
    """The sibling is kept, before and after; the list that shows them all is not."""
    shop = Shop()
    await shop.get("8")
    await shop.lose("7")
    loads = shop.loads
    await shop.get("8")
    assert shop.loads == loads
    await shop.all_orders()
    await shop.all_orders()
    assert shop.loads == loads + 2


def plain(error: Exception) -> Exception:
    return error


def from_cause(error: Exception) -> Exception:
    raised = RuntimeError("wrapped")
    raised.__cause__ = error
    return raised


def from_context(error: Exception) -> Exception:
    raised = RuntimeError("while handling")
    raised.__context__ = error
    return raised


def from_a_hidden_context(error: Exception) -> Exception:
    raised = from_context(error)
    raised.__suppress_context__ = True
    return raised


def from_deep_down(error: Exception) -> Exception:
    return from_cause(from_context(from_cause(error)))


WRAPPINGS = (plain, from_cause, from_context, from_a_hidden_context, from_deep_down)


@pytest.mark.parametrize("error", [TimeoutError, OSError, ConnectionResetError], ids=lambda e: e.__name__)
@pytest.mark.parametrize("wrapped", WRAPPINGS, ids=lambda f: f.__name__)
async def test_a_timeout_or_a_lost_connection_leaves_a_write_in_doubt(clock, wrapped, error):
    """Raised as it is, or anywhere in the chain of causes and contexts."""
    shop = Shop()
    await shop.fail(wrapped(error()))
    assert not await shop.is_kept()
    clock.advance(DOUBT + 0.1)
    assert await shop.is_kept()


@pytest.mark.parametrize("wrapped", WRAPPINGS, ids=lambda f: f.__name__)
async def test_other_exceptions_are_definite_unless_they_are_named(wrapped):
    """`in_doubt=` makes a client's own timeout one that leaves the write open; without it it is an answer."""
    named, unnamed = Shop(in_doubt=(Lost,)), Shop()
    await named.fail(wrapped(Lost()))
    await unnamed.fail(wrapped(Lost()), "8")
    assert not await named.is_kept("7")
    assert await unnamed.is_kept("8")


async def test_a_ring_of_causes_is_walked_once():
    """Exceptions may refer to each other; that hangs nobody."""
    one, other = Rejected(), Rejected()
    one.__cause__, other.__cause__ = other, one
    shop = Shop()
    await shop.fail(one)
    assert await shop.is_kept()


async def test_a_definite_failure_drops_and_holds_nothing():
    """The store said no: entries are dropped, and the next answer is kept."""
    shop = Shop()
    await shop.get("7")
    await shop.fail(Rejected())
    shop.versions["7"] = 1
    assert await shop.get("7") == 1
    assert await shop.is_kept()


async def test_a_timeout_around_a_write_leaves_it_in_doubt():
    """`asyncio.timeout` cancels the write, so it may have happened."""
    shop = Shop()
    timeout = asyncio.timeout(None)

    async def impatient() -> None:
        async with timeout:
            await shop.change("7")

    writer = await started(impatient())
    await expire(timeout)
    with pytest.raises(TimeoutError):
        await writer
    assert not await shop.is_kept()


async def test_a_body_of_writing_that_is_cancelled_is_in_doubt(clock):
    """What is no tool is treated like one."""
    shop = Shop()

    async def change() -> None:
        async with writing("order:7"):
            await shop.writing()

    await cancelled(await started(change()))
    assert not await shop.is_kept()
    clock.advance(DOUBT + 0.1)
    assert await shop.is_kept()


async def test_doubt_lasts_as_long_as_the_tool_says(clock):
    """`doubt=` is for sources that give up earlier, or later, than five seconds."""
    shop = Shop(doubt=60)
    await shop.lose()
    clock.advance(59)
    assert not await shop.is_kept()
    clock.advance(2)
    assert await shop.is_kept()


async def test_a_successful_write_does_not_end_the_doubt_of_another():
    """The lost request may arrive after the one that came through."""
    shop = Shop()
    await shop.lose()
    writer = await started(shop.change("7"))
    shop.writing.last.returns(None)
    await writer
    assert not await shop.is_kept()


async def test_of_two_doubts_the_later_one_counts(clock):
    """Each lost write has its own five seconds."""
    shop = Shop()
    await shop.lose()
    clock.advance(3)
    await shop.lose()
    clock.advance(3)
    assert not await shop.is_kept()
    clock.advance(3)
    assert await shop.is_kept()


async def test_a_source_that_settles_is_not_believed_before(clock):
    """`settle=`: after a successful write nothing under its tags is kept for that long."""
    shop = Shop(settle=30)
    await shop.get("8")
    writer = await started(shop.change("7"))
    shop.writing.last.returns(None)
    await writer
    assert not await shop.is_kept("7")
    clock.advance(29)
    assert not await shop.is_kept("7")
    assert await shop.is_kept("8")
    clock.advance(2)
    assert await shop.is_kept("7")


async def test_a_load_that_began_while_its_source_settled_is_not_kept_after_it(clock):
    """It may have asked a replica that did not know yet."""
    shop = Shop(settle=30)
    writer = await started(shop.change("7"))
    shop.writing.last.returns(None)
    await writer
    shop.is_held = True
    reader = await started(shop.get("7"))
    shop.versions["7"] = 1
    clock.advance(31)
    shop.loading.last.returns(None)
    assert await reader == 0
    shop.is_held = False
    assert await shop.get("7") == 1


async def test_a_write_that_failed_settles_nothing():
    """After a definite refusal there is nothing that replicas must learn."""
    shop = Shop(settle=30)
    await shop.fail(Rejected())
    assert await shop.is_kept()


@pytest.mark.parametrize("ending", ["lost", "settles"])
async def test_a_write_that_names_no_entity_holds_what_depends_on_all(clock, ending):
    """An id of None touches no single order, but the list of all is in doubt, or settles, like anything named."""
    gate = Gate()
    orders = ["one"]
    loads = 0

    @AgentCache("order")
    async def all_orders() -> tuple[str, ...]:
        nonlocal loads
        loads += 1
        return tuple(orders)

    @AgentCacheInvalidator("order:{id}", settle=DOUBT)
    async def create(id: str | None) -> None:
        await gate()

    writer = await started(create(None))
    if ending == "lost":
        await cancelled(writer)
    else:
        gate.last.returns(None)
        await writer
    await all_orders()
    orders.append("two")
    assert await all_orders() == ("one", "two")
    clock.advance(DOUBT + 0.1)
    await all_orders()
    await all_orders()
    assert loads == 3


async def test_a_write_whose_tag_only_the_result_tells_puts_all_in_doubt_when_it_is_lost(clock):
    """Nobody knows what it names: the whole root is held until the doubt is over."""
    shop = Shop()
    gate = Gate()

    @AgentCacheInvalidator("order:{result}")
    async def change_some() -> str:
        return await gate()

    await shop.get("7")
    await cancelled(await started(change_some()))
    assert not await shop.is_kept("7")
    assert not await shop.is_kept("8")
    clock.advance(DOUBT + 0.1)
    assert await shop.is_kept("7")
    assert await shop.is_kept("8")


async def test_a_write_cancelled_twice_is_in_doubt_all_the_same():
    """A second cancellation while the first is being handled changes nothing."""
    shop = Shop()
    writer = await started(shop.change("7"))
    writer.cancel()
    await asyncio.sleep(0)
    writer.cancel()
    await idle()
    assert writer.cancelled()
    assert not await shop.is_kept()


async def test_a_write_whose_coroutine_is_closed_is_in_doubt():
    """Closing is how an abandoned call ends; its request may be on the wire."""
    shop = Shop()
    writer = shop.change("7")
    writer.send(None)
    writer.close()
    assert not await shop.is_kept()
