"""What a restored session is for: a worker opens it, gets from it what has been done already, and goes on."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("openapi_spec_validator")

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.recording import cached_llm_call
from agent_cache.resume import InDoubtError, Journal, NotDone, idempotency_key
from tests.harness.checkpoint_service import Client


class Killed(BaseException):
    """Ends a run where a signal would."""


class Shop:
    """An agent with a model, a read and two writes. What is really done is listed."""

    def __init__(self):
        self.done = []
        self.keys = []
        self.dies_in = ""

        @cached_llm_call(name="think")
        async def think(prompt: str) -> str:
            self.done.append("think")
            return f"about {prompt}"

        @AgentCache("order:{order_id}", name="get_order")
        async def get_order(order_id: str) -> dict:
            self.done.append("get_order")
            return {"id": order_id}

        @AgentCacheInvalidator("order:{order_id}", name="pay")
        async def pay(order_id: str) -> str:
            self._do("pay")
            return "paid"

        @AgentCacheInvalidator("order:{order_id}", name="ship")
        async def ship(order_id: str) -> str:
            self._do("ship")
            return "shipped"

        self.think, self.get_order, self.pay, self.ship = think, get_order, pay, ship

    def _do(self, name):
        self.done.append(name)
        self.keys.append(idempotency_key())
        if name == self.dies_in:
            raise Killed

    async def handle(self, session, order_id="7"):
        await self.think("the order")
        await self.get_order(order_id)
        await self.pay(order_id)
        await session.checkpoint("paid", {"order_id": order_id, "step": 3})
        await self.think("the parcel")
        await self.get_order(order_id)
        return await self.ship(order_id)


async def run(shop, store, session_id, **settings):
    """The run, and what it did itself."""
    shop.done = []
    async with AgentCacheSession(session_id, journal=Journal(store, **settings)) as session:
        answer = await shop.handle(session)
    return answer, shop.done


async def killed_run(store, dies_in="ship"):
    shop = Shop()
    shop.dies_in = dies_in
    with pytest.raises(Killed):
        await run(shop, store, "ann-1")
    shop.dies_in = ""
    return shop


def restored(url, **body):
    with Client(url) as client:
        [checkpoint] = client.get("/checkpoints", params={"label": "paid"}).json()["checkpoints"]
        answer = client.post(f"/checkpoints/{checkpoint['id']}/restore", json=body)
        assert answer.status_code == 200
        return answer.json()


def drift_of(url, session_id):
    with Client(url) as client:
        return client.get(f"/sessions/{session_id}/drift").raise_for_status().json()


async def test_a_worker_goes_on_from_the_checkpoint(served, store):
    shop = await killed_run(store)
    answer = restored(served, session_id="ann-2", track_drift=True)
    assert answer["state"] == {"framework": "custom", "order_id": "7", "step": 3}
    assert (answer["copied_call_count"], answer["replayed_events_count"]) == (3, 0)
    assert [(one["name"], one["key"]) for one in answer["in_doubt"]] == [("ship", shop.keys[-1])]
    result, done = await run(shop, store, "ann-2")
    assert (result, done) == ("shipped", ["think", "get_order", "ship"])
    assert shop.keys[-1] not in shop.keys[:-1]  # a write of another run
    report = drift_of(served, "ann-2")
    assert (report["is_ended"], report["drifts"]) == (True, [])


async def test_a_worker_with_the_later_calls_goes_on_where_the_run_was_killed(served, store):
    shop = await killed_run(store)
    answer = restored(served, session_id="ann-2", replay_events=True, track_drift=True)
    assert (answer["copied_call_count"], answer["replayed_events_count"]) == (3, 2)
    with pytest.raises(InDoubtError) as error:
        await run(shop, store, "ann-2")
    assert (error.value.key, shop.done) == (answer["in_doubt"][0]["key"], [])
    asked = []

    def was_shipped(arguments, key):
        asked.append(key)
        raise NotDone

    result, done = await run(shop, store, "ann-2", on_doubt={shop.ship: was_shipped})
    assert (result, done) == ("shipped", ["ship"])
    assert asked == [answer["in_doubt"][0]["key"]]


async def test_the_drift_of_a_worker_is_seen_while_it_runs(served, store):
    shop = await killed_run(store)
    await run(shop, store, "ann-1", on_doubt="rerun")
    restored(served, session_id="ann-2", track_drift=True)
    shop.done = []
    async with AgentCacheSession("ann-2", journal=Journal(store)) as session:
        assert drift_of(served, "ann-2")["drifts"] == []
        await shop.think("the order")
        await shop.get_order("7")
        await shop.pay("7")
        assert drift_of(served, "ann-2")["drifts"] == []
        await shop.pay("8")
        found = drift_of(served, "ann-2")
        assert (found["is_ended"], found["worst"]) == (False, "critical")
        assert {one["provisional"] for one in found["drifts"]} == {True}
        assert any(one["name"] == "pay" and "8" in str(one["restored_value"]) for one in found["drifts"])
        del session
    ended = drift_of(served, "ann-2")
    assert ended["is_ended"] is True
    assert {"ship"} <= {one["name"] for one in ended["drifts"]}
    assert shop.done == ["pay"]
