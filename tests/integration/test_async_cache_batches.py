"""The batches of an `AsyncCache`: what is loaded together, whom it holds up, and what an answer must look like."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from agent_cache import AsyncCache
from tests.harness.loads import HeldLoader, begun, calls_of, in_batches, nothing_is_left


async def test_one_key_is_loaded_once_in_a_window_and_while_its_batch_runs():
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()
    gets = await begun(*(in_batches(cache, gate, key) for key in "aba"))
    await calls_of(gate, 1)
    gets += await begun(in_batches(cache, gate, "a"), cache.get("a", loader=HeldLoader("not called").load))
    gate.open()
    *batched, single = await asyncio.gather(*gets)
    assert batched == ["loaded"] * 4
    assert single == ("loaded", "a")
    assert gate.calls == [["a", "b"]]


async def test_a_cancelled_caller_disturbs_no_other_one():
    cache, gate = AsyncCache(batch_window_ms=0), HeldLoader()
    gone, *others = await begun(*(in_batches(cache, gate, key) for key in "abc"))
    gone.cancel()
    await asyncio.wait([gone])
    gate.open()
    assert await asyncio.gather(*others) == ["loaded"] * 2
    assert await in_batches(cache, gate, "a") == "loaded"
    assert nothing_is_left(cache)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda keys: ["v"] * (len(keys) - 1), ValueError, r"load\(\) returned 2 values for 3 keys"),
        (lambda keys: ["v"] * (len(keys) + 1), ValueError, r"load\(\) returned 4 values for 3 keys"),
        (lambda keys: [], ValueError, "0 values"),
        (lambda keys: None, TypeError, "it returned NoneType"),
        (lambda keys: "abc", TypeError, "it returned str"),
        (lambda keys: set(keys), TypeError, "it returned set"),
        (lambda keys: 3, TypeError, "it returned int"),
    ],
)
async def test_an_answer_that_cannot_be_matched_with_the_keys_is_an_error_and_not_a_guess(answer, error, words):
    cache = AsyncCache(batch_window_ms=0)

    async def load(keys):
        return answer(keys)

    outcomes = await asyncio.gather(*(cache.get(key, batch_loader=load) for key in "abc"), return_exceptions=True)
    for outcome in outcomes:
        with pytest.raises(error, match=words):
            raise outcome
    assert len(cache.cache) == 0
    assert nothing_is_left(cache)


@pytest.mark.parametrize("kind", [list, tuple, deque, lambda values: dict(enumerate(values)).values()])
async def test_values_in_the_order_of_the_keys_may_be_in_any_collection_that_has_an_order(kind):
    cache = AsyncCache(batch_window_ms=0)

    async def load(keys):
        return kind(key * 2 for key in keys)

    assert await asyncio.gather(*(cache.get(key, batch_loader=load) for key in "ab")) == ["aa", "bb"]


async def test_a_key_that_the_mapping_lacks_is_none_and_asked_for_again():
    cache, calls = AsyncCache(batch_window_ms=0), []

    async def load(keys):
        calls.append(list(keys))
        return {"a": 1, "none": None}

    for _ in range(2):
        gets = (cache.get(key, batch_loader=load) for key in ("a", "lacking", "none", "lacking"))
        assert await asyncio.gather(*gets) == [1, None, None, None]
    assert calls == [["a", "lacking", "none"], ["lacking"]]
    assert list(cache.cache) == ["a", "none"]
