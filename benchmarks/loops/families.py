"""Calls to append to a recorded run: loops of ten copies, and useful work that resembles a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from agent_cache import LoopHints
from benchmarks.loops.agent import Asked, Step
from benchmarks.recorded_runs import RecordedCall, Run
from benchmarks.retail.store import READ_TOOLS

COPIES: Final = 10
MANY: Final = 20

HINTS: Final[Mapping[str, LoopHints]] = {
    "search": LoopHints(loop_key=lambda arguments: arguments["key"]),
    "listing": LoopHints(outcome_key=lambda result: result["items"]),
    "job": LoopHints(poll=True, max_unchanged=50),
    "short_job": LoopHints(poll=True, max_unchanged=5),
    "clock": LoopHints(off=True),
}
"""Loop hints of the scripted tools; the others have none."""

Family: TypeAlias = Callable[[Run, int], Iterable[Asked] | None]
"""The calls to append to a run; the seed differs from run to run. None if the run lacks the calls to repeat."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A family, and the number of calls in one round of it; 0 where it is no loop."""

    length: int
    family: Family


def is_success(answer: object) -> bool:
    """Some scripted tools return a text that says they failed, as the retail store's tools do."""
    return not (isinstance(answer, str) and answer.startswith("Error: "))


def _reads_again(count: int) -> Family:
    """Some of the run's own reads, through the store's tools."""

    def family(run: Run, seed: int) -> list[Asked] | None:
        reads = list({(call.tool, call.identity): call for call in run.calls if _is_answered_read(call)}.values())
        if len(reads) < count:
            return None
        start = seed % (len(reads) - count + 1)
        return [*reads[start : start + count]] * COPIES

    return family


def _is_answered_read(call: RecordedCall) -> bool:
    return call.tool in READ_TOOLS and not call.error and not call.is_oddity


def _copies(*steps: Step) -> Family:
    return lambda run, seed: [*steps] * COPIES


def _numbered(one: Callable[[int], Step], count: int) -> Family:
    return lambda run, seed: [one(n) for n in range(count)]


def _reads_at_once(run: Run, seed: int) -> list[Step]:
    return [Step("get", n, n, round=copy) for copy in range(COPIES) for n in range(3)]


class Unkeyed:
    """An argument without identity, such as a client or a callback."""

    def __repr__(self) -> str:
        return "unkeyed"


_CLIENT: Final = Unkeyed()


def _beside(tool: str, make: Callable[[], Unkeyed] | None = None) -> Family:
    """Two reads that return the same in each round, and a third call that does not, or that has no key."""

    def family(run: Run, seed: int) -> Iterator[Step]:
        for n in range(COPIES):
            yield Step("get", "7", "seven")
            yield Step("get", "8", "eight")
            yield Step(tool, "now", n, is_fresh=True) if make is None else Step(tool, "x", "same", request=make())

    return family


def _retry_with_schema(run: Run, seed: int) -> Iterator[Step]:
    for n in range(COPIES):
        yield Step("schema", "all", "orders, items")
        yield Step("query", n, f"no such column: c{n}", fails=True)


_WRITE = Step("set_status", "7", "ok", is_write=True)
_REFUSED_WRITE = replace(_WRITE, gives="denied", fails=True)
_STATUS = Step("get_status", "7", "pending")

LOOPS: Final[Mapping[str, Loop]] = {
    **{f"period {n}, through the store's tools": Loop(n, _reads_again(n)) for n in range(1, 7)},
    "three reads at once, again and again": Loop(3, _reads_at_once),
    "one call, same error": Loop(1, _copies(Step("lookup", "#1", "not found", fails=True))),
    "one call, same error in words": Loop(1, _copies(Step("lookup", "#1", "Error: not found"))),
    "creative retry of a read": Loop(1, _numbered(lambda n: Step("lookup", n, "not found", fails=True), COPIES)),
    "creative retry, error in words": Loop(1, _numbered(lambda n: Step("lookup", n, "Error: not found"), COPIES)),
    "creative retry of a write": Loop(
        1, _numbered(lambda n: Step("edit", n, "does not apply", fails=True, is_write=True), COPIES)
    ),
    "volatile arguments, loop_key": Loop(1, _numbered(lambda n: Step("search", "x", "nothing", request=n), COPIES)),
    "volatile results, outcome_key": Loop(
        1, _numbered(lambda n: Step("listing", "x", {"items": (), "at": n}, is_fresh=True), COPIES)
    ),
    "declared poll, longer than max_unchanged": Loop(1, _copies(Step("short_job", "7", "pending", is_fresh=True))),
    "a write without effect": Loop(1, _copies(_WRITE)),
    "a write and a read without effect": Loop(2, _copies(_WRITE, _STATUS)),
    "a refused write and a read": Loop(2, _copies(_REFUSED_WRITE, _STATUS)),
    "another query that fails, after the same schema": Loop(2, _retry_with_schema),
    "two reads, and a clock that is off": Loop(2, _beside("clock")),
    "one call, its argument has no key": Loop(1, _copies(Step("send", "x", "nothing", request=_CLIENT))),
    "two reads, and a call without a key": Loop(3, _beside("send", lambda: _CLIENT)),
    "the same, another object each time": Loop(3, _beside("send", Unkeyed)),
}

UNSEEN: Final[Mapping[str, Loop]] = {
    "two reads, and a clock": Loop(3, _beside("watch")),
}
"""Loops with something new in every round. Nothing distinguishes them from useful work; the run's budget ends them."""


def _polled(tool: str, status: Callable[[int], Any]) -> Family:
    return _numbered(lambda n: Step(tool, "7", status(n), is_fresh=True), MANY)


def _poll_and_log(run: Run, seed: int) -> Iterator[Step]:
    for n in range(MANY):
        yield Step("job", "7", n, is_fresh=True)
        yield Step("log", n, "")


def _two_tools_over_ids(run: Run, seed: int) -> Iterator[Step]:
    for n in range(MANY):
        yield Step("get", n, "active")
        yield Step("check", n, True)


def _get_update_get(run: Run, seed: int) -> Iterator[Step]:
    for n in range(MANY):
        yield Step("get", n, f"old {n}")
        yield Step("update", n, "ok", is_write=True)
        yield Step("get", n, f"new {n}")


def _edit_and_test(*, fails: bool) -> Family:
    def family(run: Run, seed: int) -> Iterator[Step]:
        for n in range(MANY):
            yield Step("edit", n, "ok", is_write=True)
            yield Step("test", "all", "1 failed", fails=fails)

    return family


def _once_a_turn(run: Run, seed: int) -> list[Step]:
    return [Step("card", n, n, is_turn=n == 0) for _ in range(12) for n in range(3)]


def _twice(*, at_once: bool) -> Family:
    return lambda run, seed: [
        Step("get", n, n, round=again if at_once else -1) for again in range(2) for n in range(MANY)
    ]


def _crowd(*, is_fresh: bool, is_cached: bool = False) -> Family:
    def family(run: Run, seed: int) -> list[Step]:
        step = Step("get", "7", "seven", is_fresh=is_fresh)
        return [step] * is_cached + [replace(step, round=0)] * MANY

    return family


def _two_crowds(run: Run, seed: int) -> list[Step]:
    two = [Step("get", "7", "seven"), Step("get", "8", "eight")]
    return [*two, *(replace(step, round=0) for step in two * (MANY // 2))]


def _one_more(run: Run, seed: int) -> Iterator[Step]:
    for n in range(8):
        yield Step("add_to_cart", "7", "added", is_write=True)
        yield Step("get_cart", "me", n)


def _paging(run: Run, seed: int) -> Iterator[Step]:
    for n in range(2 * MANY):
        yield Step("next_page", "", "ok", is_write=True)
        yield Step("screen", "", f"screen {n}")


def _batch(
    lookups: int,
    *,
    items: int = 2 * MANY,
    answer: Callable[[int], Any] = str,
    fails: Callable[[int], bool] = lambda n: False,
) -> Family:
    """One item after the other, each with the same look-ups."""

    def family(run: Run, seed: int) -> Iterator[Step]:
        for n in range(items):
            for at in range(lookups):
                yield Step("rate", at, 1.08)
            yield Step("invoice", n, "no such invoice" if fails(n) else answer(n), fails=fails(n))

    return family


def _workers(at_once: int) -> Family:
    """Each worker reads the policy, then makes a call of its own; when one ends, the next one begins."""

    def family(run: Run, seed: int) -> Iterator[Step]:
        for _ in range(at_once):
            yield Step("policy", "all", "30 days", round=0)
        for n in range(2 * MANY):
            yield Step("refund", n, "done", round=2 * n + 1)
            yield Step("policy", "all", "30 days", round=2 * n + 2)

    return family


def _documents(run: Run, seed: int) -> list[Step]:
    return [Step("index", "x", "ok", request=Unkeyed(), is_write=True) for _ in range(MANY)]


UNDECLARED_POLL: Final = "undeclared polling, status unchanged"
"""Cannot be told from a loop without a declaration: the one honest family that may be stopped."""

HONEST: Final[Mapping[str, Loop]] = {
    UNDECLARED_POLL: Loop(0, _polled("status", lambda n: "pending")),
    "declared polling, status unchanged": Loop(0, _polled("job", lambda n: "pending")),
    "declared polling, status changes, beside a log": Loop(0, _poll_and_log),
    "undeclared polling, status changes": Loop(0, _polled("status", lambda n: n)),
    "undeclared polling, changes every third time": Loop(0, _polled("status", lambda n: n // 3)),
    "pagination": Loop(0, _numbered(lambda n: Step("page", n, f"page {n}"), MANY)),
    "two-tool batches over ids": Loop(0, _two_tools_over_ids),
    "get/update/get over ids": Loop(0, _get_update_get),
    "edit/test, the test answers the same": Loop(0, _edit_and_test(fails=False)),
    "edit/test, the test raises the same": Loop(0, _edit_and_test(fails=True)),
    "batch of reads that all return True": Loop(0, _numbered(lambda n: Step("flag", n, True), MANY)),
    "batch of writes that all return True": Loop(0, _numbered(lambda n: Step("flag", n, True, is_write=True), MANY)),
    "empty look-ups": Loop(0, _numbered(lambda n: Step("find", n, ()), MANY)),
    "three re-reads in each of 12 user turns": Loop(0, _once_a_turn),
    f"{MANY} entities read twice, in sequence": Loop(0, _twice(at_once=False)),
    f"{MANY} entities read twice, at once": Loop(0, _twice(at_once=True)),
    f"{MANY} identical reads at once": Loop(0, _crowd(is_fresh=False)),
    f"{MANY} identical reads at once, cached": Loop(0, _crowd(is_fresh=False, is_cached=True)),
    f"{MANY} identical fresh reads at once": Loop(0, _crowd(is_fresh=True)),
    f"{MANY} reads of the same two at once, cached": Loop(0, _two_crowds),
    f"{MANY} reads at once, one outage": Loop(
        0, _numbered(lambda n: Step("get", n, "down", fails=True, round=0), MANY)
    ),
    "eight more of the same item": Loop(0, _one_more),
    f"{2 * MANY} screens, next_page says ok": Loop(0, _paging),
    f"{2 * MANY} items, one look-up": Loop(0, _batch(1)),
    f"{2 * MANY} items, one look-up, all return True": Loop(0, _batch(1, answer=lambda n: True)),
    "12 items, seven look-ups": Loop(0, _batch(7, items=12)),
    f"{2 * MANY} items, one look-up, four failures in a row": Loop(0, _batch(1, fails=lambda n: n % 10 > 5)),
    f"{2 * MANY} workers one by one, one policy": Loop(0, _workers(1)),
    f"{2 * MANY} workers, three at once, one policy": Loop(0, _workers(3)),
    f"writes of {MANY} objects without a key, all ok": Loop(0, _documents),
}
