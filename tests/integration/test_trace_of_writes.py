"""The trace of a write says what it was called with, as that of a read does."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    Read,
    Toolbox,
    Write,
)

pytestmark = pytest.mark.usefixtures("clock")


@AgentCacheInvalidator("order:{order_id}", name="cancel")
async def cancel(order_id: str, reason: str = "none") -> str:
    return order_id


def keys(session: AgentCacheSession, kind: str = "write") -> list[Any]:
    return [record.key for record in session.get_execution_trace() if record.kind == kind]


@pytest.mark.parametrize("detects", [True, False])
async def test_two_writes_have_the_keys_of_their_arguments(*, detects: bool):
    async with AgentCacheSession(loop_detection=detects) as session:
        await cancel("W1")
        await cancel("W2")
        await cancel(reason="none", order_id="W1")
        await cancel("W1", "late")
    one, other, spelled_otherwise, late = keys(session)
    assert one == spelled_otherwise
    assert len({one, other, late}) == 3
    assert "W1" in repr(one)
    assert "late" in repr(late)


async def test_a_read_of_the_same_arguments_has_the_same_key():
    get = AgentCache("order:{order_id}")(cancel.__wrapped__)
    async with AgentCacheSession() as session:
        await cancel("W1")
        await get("W1")
    assert keys(session) == keys(session, "read")


async def test_a_write_of_a_method_a_def_and_one_known_by_name():
    class Shop:
        @AgentCacheInvalidator("order:{order_id}")
        def cancel(self, order_id: str) -> None: ...

    box = Toolbox({"cancel": Write("order:{order_id}"), "get": Read("order:{order_id}")}, namespace="trace_of_writes")
    shop = Shop()
    async with AgentCacheSession() as session:
        for order_id in ("W1", "W2", "W1"):
            shop.cancel(order_id)
        for order_id in ("W1", "W2", "W1"):
            box.call_sync("cancel", {"order_id": order_id}, lambda: None)
    methods, by_name = keys(session)[:3], keys(session)[3:]
    assert methods[0] == methods[2] != methods[1]
    assert by_name[0] == by_name[2] != by_name[1]


async def test_a_write_that_was_refused_has_its_key():
    with contextlib.suppress(AgentLoopDetectedError):
        async with AgentCacheSession(max_execution_depth=1) as session:
            await cancel("W1")
            await cancel("W2")
    assert [record.source for record in session.get_execution_trace()] == ["write", "blocked"]
    assert "W2" in repr(keys(session)[1])


async def test_one_without_identity_has_none_and_a_long_one_is_not_kept_alive():
    async with AgentCacheSession() as session:
        await cancel(object())  # type: ignore[arg-type]
        await cancel("x" * 100_000)
        await cancel("x" * 100_000)
    unknown, long, again = keys(session)
    assert unknown is None
    assert long == again != unknown
    assert len(repr(long)) < 1_000
