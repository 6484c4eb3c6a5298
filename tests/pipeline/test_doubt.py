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


async def test_a_write_that_failed_settles_nothing():
    """After a definite refusal there is nothing that replicas must learn."""
    shop = Shop(settle=30)
    await shop.fail(Rejected())
    assert await shop.is_kept()


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
