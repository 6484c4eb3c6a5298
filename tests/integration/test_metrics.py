"""Everything is counted once, where it happened: in the process and in each session, per tool and per resource."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    get_metrics,
    invalidate,
    tags_from,
    writing,
)
from tests.harness import library
from tests.harness.gates import Gate, cancelled, started
from tests.harness.slow import slow
from tests.harness.threads import in_threads

pytestmark = pytest.mark.usefixtures("clock")

COUNTERS = (
    *("calls", "hits", "misses", "shared", "invalidations", "uncached", "writes", "evictions", "errors", "stale"),
    *("audits", "stale_found", "validated"),
)
PUBLIC = {*COUNTERS, "time_saved", "hit_rate"}
LOOPS = {"loop_detections", "loops", "loop_notices", "callback_errors"}


def counted(metrics: dict[str, Any], **expected: Any) -> None:
    """These counters are so, and all others are zero."""
    assert {name: metrics[name] for name in COUNTERS} == dict.fromkeys(COUNTERS, 0) | expected


def agree(metrics: dict[str, Any]) -> None:
    """The sums are those of the tools, and each has the same keys. Tools here have one resource each."""
    assert set(metrics) == PUBLIC | LOOPS | {"resources", "tools"}
    for breakdown in ("resources", "tools"):
        for name, numbers in metrics[breakdown].items():
            assert set(numbers) == PUBLIC, name
            assert numbers["hit_rate"] == hit_rate(numbers)
        for counter in COUNTERS:
            if (breakdown, counter) != ("tools", "invalidations"):  # `invalidate(...)` stands for no tool
                assert sum(numbers[counter] for numbers in metrics[breakdown].values()) == metrics[counter], counter
    assert metrics["hit_rate"] == hit_rate(metrics)
    assert sum(one["time_saved"] for one in metrics["tools"].values()) == pytest.approx(metrics["time_saved"])


def hit_rate(numbers: dict[str, Any]) -> float:
    reads = numbers["hits"] + numbers["misses"] + numbers["shared"] + numbers["validated"]
    return numbers["hits"] / reads if reads else 0.0


@pytest.fixture(params=["outside", "in a session", "in two sessions", "for a tenant"])
def counts(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run something where it says, and give the metrics of the process and of every session around it."""

    async def run(body: Callable[[], Any]) -> list[dict[str, Any]]:
        if request.param == "outside":
            await body()
            return [get_metrics()]
        async with AgentCacheSession(tenant="t" if request.param == "for a tenant" else None) as session:
            if request.param != "in two sessions":
                await body()
                return [get_metrics(), session.get_metrics()]
            async with AgentCacheSession() as inner:
                await body()
            return [get_metrics(), session.get_metrics(), inner.get_metrics()]

    return run


def tools(clock: library.Clock) -> tuple[Any, Any]:
    @AgentCache("order:{id}", name="get", maxsize=2)
    async def get(id: Any) -> str:
        clock.advance(2.0)
        if id == "bad":
            raise LookupError(id)
        return str(id)

    @AgentCacheInvalidator("order:{id}", name="put")
    async def put(id: Any) -> str:
        if id == "bad":
            raise LookupError(id)
        return "done"

    return get, put


async def test_hits_and_misses_and_the_time_they_saved(clock: library.Clock, counts: Any):
    get, _ = tools(clock)

    async def body() -> None:
        for id in ("7", "7", "8", "7"):
            await get(id)

    for metrics in await counts(body):
        counted(metrics, calls=4, hits=2, misses=2)
        assert metrics["hit_rate"] == 0.5
        assert metrics["time_saved"] == 4.0
        assert metrics["tools"]["get"]["hits"] == 2
        assert metrics["resources"]["order"]["misses"] == 2
        agree(metrics)


async def test_a_shared_run_is_one_miss_and_saves_no_time_to_who_waits_for_it(clock: library.Clock, counts: Any):
    gate = Gate()

    @AgentCache("order", name="get")
    async def get() -> Any:
        return await gate()

    async def body() -> None:
        tasks = [asyncio.ensure_future(get()) for _ in range(4)]
        await started(asyncio.sleep(0))
        clock.advance(3.0)
        gate.last.returns("x")
        await asyncio.gather(*tasks)
        failing = [asyncio.ensure_future(get.fresh()), asyncio.ensure_future(get())]
        await started(asyncio.sleep(0))
        gate.last.raises(LookupError())
        await asyncio.gather(*failing, return_exceptions=True)

    for metrics in await counts(body):
        # The reader hits what is still kept; only `fresh` runs the tool.
        counted(metrics, calls=6, misses=2, shared=3, hits=1, errors=1)
        assert metrics["time_saved"] == 3.0  # of the hit
        assert metrics["hit_rate"] == 1 / 6
        agree(metrics)


async def test_a_cancelled_call_is_counted_and_is_no_error(counts: Any):
    gate = Gate()

    @AgentCache("order", name="get")
    async def get() -> Any:
        return await gate()

    @AgentCacheInvalidator("order", name="put")
    async def put() -> Any:
        return await gate()

    async def body() -> None:
        await cancelled(await started(get()))
        await cancelled(await started(put()))

    for metrics in await counts(body):
        counted(metrics, calls=2, misses=1, invalidations=1, writes=1)


def failing(arguments: Any, result: Any) -> Any:
    raise LookupError


def failing_early(arguments: Any) -> Any:
    raise LookupError


NOT_KEPT: dict[str, dict[str, Any]] = {
    "tags that cannot be computed": {"resource": tags_from("order", failing), "copy": "never"},
    "a result that cannot be copied": {"resource": "order"},
    "cache_if that raises": {"resource": "order", "cache_if": failing_early, "copy": "never"},
    "for two reasons, and still one answer": {"resource": tags_from("order", failing)},
}


@pytest.mark.parametrize("why", NOT_KEPT)
async def test_answers_that_could_not_be_kept(counts: Any, why: str):
    options = dict(NOT_KEPT[why])

    @AgentCache(options.pop("resource"), name="get", **options)
    async def get() -> Any:
        return threading.Lock()

    async def body() -> None:
        await get()
        await get()

    for metrics in await counts(body):
        counted(metrics, calls=2, misses=2, uncached=2)
        agree(metrics)


async def test_every_way_to_invalidate_counts_once(clock: library.Clock, counts: Any):
    get, put = tools(clock)

    async def body() -> None:
        await put("7")
        await get.invalidate("7")
        await invalidate("order:7")
        async with writing("order:7"):
            pass

    for metrics in await counts(body):
        counted(metrics, calls=1, invalidations=4, writes=1)
        assert metrics["tools"]["put"]["invalidations"] == 1
        assert metrics["tools"]["get"]["invalidations"] == 1
        assert metrics["resources"]["order"]["invalidations"] == 4
        agree(metrics)


# -- Concurrency ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [100, *slow(400)])
def test_counts_are_exact_when_several_threads_read_and_write(rounds: int):
    threads = 4

    @AgentCache("order:{id}", name="get", maxsize=None)
    async def get(id: int) -> int:
        return id

    @AgentCacheInvalidator("order:{id}", name="put")
    async def put(id: int) -> None: ...

    async def run(number: int) -> None:
        for turn in range(rounds):
            await get(turn % 5)
            await get(object())  # type: ignore[arg-type]
            await put(turn % 5)

    in_threads(threads, lambda number: asyncio.run(run(number)))
    metrics = get_metrics()
    total = threads * rounds
    assert metrics["hits"] + metrics["misses"] + metrics["shared"] == total
    assert metrics["uncached"] == metrics["invalidations"] == total
    assert metrics["calls"] == 3 * total
    agree(metrics)
