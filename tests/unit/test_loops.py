"""Each sentence on loops that holds without an event loop, and a model that the detector must agree with."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sized
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import strategies as st

from agent_cache.core.options import LoopHints, checked_hints
from agent_cache.core.store import NEVER, Entry
from agent_cache.engine.state import WITNESSES, note_evicted
from agent_cache.errors import ConfigurationError
from agent_cache.session.loop_detector import NO_CALL, CallHistory, LoopDetector, RunState, ToolDetector, Verdict
from agent_cache.session.loop_policy import LoopPolicy, policy_of
from tests.harness.searches import searched
from tests.harness.slow import slow

_NUMBERS = count(1_000_000)


class Answer(Entry):
    """An entry."""

    __slots__ = ()

    def __init__(self, value: Hashable) -> None:
        super().__init__(value, NEVER, 0.0)


class Run:
    """A session without an event loop: every call is in a tick of its own, unless it says otherwise."""

    def __init__(self, policy: LoopPolicy | None = None) -> None:
        self.state = RunState(None)
        self.detector = LoopDetector(policy or LoopPolicy(), self.state)
        self.tick = 0
        self.answers: dict[Hashable, Answer] = {}
        self.tools: dict[str, ToolDetector] = {}
        self.identified = 0

    def at(self, tick: int | None = None, task: object = None) -> None:
        """What is seen next is seen in this iteration of the event loop, another one if none is said, by this task."""
        if tick is None or tick != self.tick:
            self.tick = next(_NUMBERS) if tick is None else tick
            self.state.end_iteration()
        self.state.switch_to(task)

    def an_answer(self, value: Hashable) -> Answer:
        """The same one each time."""
        return self.answers.setdefault(value, Answer(value))

    def identify(self, value: Hashable) -> Hashable:
        self.identified += 1
        return value

    def tool(self, name: str, *, is_write: bool = False, hints: LoopHints | None = None) -> ToolDetector:
        if name not in self.tools:
            self.tools[name] = ToolDetector(
                self.detector, name, hints or LoopHints(), is_write=is_write, identify=self.identify
            )
        return self.tools[name]

    def read(
        self,
        name: str,
        key: Hashable = 0,
        outcome: Hashable = "same",
        *,
        error: bool = False,
        hints: LoopHints | None = None,
        value: object = None,
    ) -> Verdict | None:
        self.at()
        return self.tool(name, hints=hints).record(key, outcome, error=error, value=value)

    def write(
        self,
        name: str,
        key: Hashable = 0,
        outcome: Hashable = "ok",
        *,
        error: bool = False,
        hints: LoopHints | None = None,
        value: object = None,
    ) -> Verdict | None:
        self.at()
        return self.tool(name, is_write=True, hints=hints).record(key, outcome, error=error, value=value)

    def hit(
        self,
        name: str,
        key: Hashable,
        entry: Answer,
        tick: int | None = None,
        task: object = None,
        hints: LoopHints | None = None,
    ) -> Verdict | None:
        self.at(tick, task)
        return self.tool(name, hints=hints).hit(key, entry)

    def ran(
        self,
        name: str,
        key: Hashable,
        outcome: Hashable,
        *,
        tick: int,
        task: object,
        began: int,
        error: bool = False,
        hints: LoopHints | None = None,
    ) -> Verdict | None:
        """A read that has ended here and began at a moment."""
        self.at(tick, task)
        return self.tool(name, hints=hints).record(key, outcome, error=error, began=began)


def acted(verdicts: Iterable[Verdict | None]) -> list[tuple[int, str]]:
    """Which calls, from one, met the action level, and by which check."""
    return [(at, v.kind) for at, v in enumerate(verdicts, 1) if v is not None and v.level == "action"]


def noticed(verdicts: Iterable[Verdict | None]) -> list[tuple[int, str]]:
    return [(at, v.kind) for at, v in enumerate(verdicts, 1) if v is not None and v.level == "notice"]


def test_the_fifth_identical_outcome_is_the_first_one_refused() -> None:
    """`repeat` acts on the r-th and on every later one; its notice is given once, at the third."""
    run = Run()
    verdicts = [run.read("get") for _ in range(7)]
    assert acted(verdicts) == [(5, "repeat"), (6, "repeat"), (7, "repeat")]
    assert noticed(verdicts) == [(3, "repeat")]


def test_hits_of_one_entry_count_as_its_outcome_and_need_no_fingerprint() -> None:
    """A hit of the same entry is the same outcome by definition."""
    run, entry = Run(), Answer("a")
    verdicts = [run.hit("get", 1, entry) for _ in range(6)]
    assert acted(verdicts) == [(5, "repeat"), (6, "repeat")]
    assert run.identified == 0


def test_an_entry_loaded_again_with_the_same_answer_goes_on_with_the_count() -> None:
    """Two entries are compared by what they hold."""
    run = Run()
    entries = [Answer("a") for _ in range(5)]
    assert acted([run.hit("get", 1, entry) for entry in entries]) == [(5, "repeat")]


def test_a_changing_result_is_no_loop() -> None:
    """The outcome is part of the signature."""
    run = Run()
    assert [run.read("status", 1, n) for n in range(50)] == [None] * 50


def test_an_outcome_that_comes_back_goes_on_with_its_own_count() -> None:
    """A counter of signatures, not of the last one."""
    run = Run()
    verdicts = [run.read("get", 1, outcome) for outcome in "aabaabaab"]
    assert acted(verdicts)[0][0] <= 7


def test_an_outcome_that_cannot_be_fingerprinted_counts_as_new() -> None:
    """Never as the same."""
    run = Run()
    assert [run.read("get", 1, None) for _ in range(50)] == [None] * 50


def test_the_fourth_same_error_of_one_call_is_acted_upon() -> None:
    """`error` is earlier than `repeat`, and its notice comes with the second."""
    run = Run()
    verdicts = [run.read("get", 1, "boom", error=True) for _ in range(4)]
    assert acted(verdicts) == [(4, "error")]
    assert noticed(verdicts)[0] == (2, "error")


def test_a_success_between_ends_a_row_of_errors() -> None:
    """`error` counts in a row; the same call's own row, whatever runs between."""
    run = Run()
    verdicts = [run.read("get", 1, o, error=o == "boom") for o in ("boom", "boom", "boom", "fine", "boom")]
    assert not acted(verdicts)


def test_the_sixth_same_error_of_one_tool_is_acted_upon_whatever_the_arguments() -> None:
    """`any_error`, and no other check: every signature is new."""
    run = Run()
    verdicts = [run.read("get", n, "boom", error=True) for n in range(6)]
    assert acted(verdicts) == [(6, "any_error")]
    assert noticed(verdicts) == [(4, "any_error")]


@pytest.mark.parametrize("between", ["another call", "another error", "another tool's error", "a new turn"])
def test_any_error_is_in_a_row(between: str) -> None:
    """Anything else between starts it afresh."""
    run = Run()
    verdicts = [run.read("get", n, "boom", error=True) for n in range(5)]
    match between:
        case "another call":
            run.read("list")
        case "another error":
            run.read("get", "x", "bang", error=True)
        case "another tool's error":
            run.read("list", 0, "boom", error=True)
        case _:
            run.detector.end_epoch()
    verdicts += [run.read("get", n, "boom", error=True) for n in range(5, 10)]
    assert not acted(verdicts)


def test_one_outage_met_by_a_fan_out_counts_once() -> None:
    """Twenty reads that began before the first of them had failed are one round."""
    run = Run()
    began = run.detector.clock
    verdicts = [run.ran("get", n, "down", error=True, tick=n + 1, task=n, began=began) for n in range(20)]
    assert verdicts == [None] * 20


def test_an_outage_that_every_round_of_a_fan_out_meets_is_acted_upon() -> None:
    """Twenty reads at once, six rounds of them."""
    run = Run()
    verdicts = []
    for tick in range(1, 7):
        began = run.detector.clock
        verdicts.append(
            [run.ran("get", (tick, n), "down", error=True, tick=tick, task=n, began=began) for n in range(20)]
        )
    assert [[v.level for v in each if v is not None] for each in verdicts] == [[], [], [], ["notice"], [], ["action"]]


@pytest.mark.parametrize("period", range(2, 41))
def test_a_cycle_of_any_period_is_found_and_named(period: int) -> None:
    """At five calls without news, the last seen three times; the report gives the whole round."""
    run = Run()
    verdicts = [run.read(f"t{n % period}", 0, n % period) for n in range(4 * period)]
    first = next(verdict for verdict in verdicts if verdict and verdict.level == "action")
    at, kind = acted(verdicts)[0]
    assert kind == "cycle"
    assert at == max(period + 5, 2 * period + 1)
    assert first.period == period
    assert sorted(first.calls) == sorted(f"t{n}" for n in range(period))


def test_the_notice_of_a_cycle_comes_once_and_first() -> None:
    """Two tools in turn: noticed at the third call without news that was seen three times."""
    run = Run(LoopPolicy(repeat=None, cycle=(3, 9)))
    verdicts = [run.read("ab"[n % 2]) for n in range(11)]
    assert noticed(verdicts) == [(5, "cycle")]
    assert acted(verdicts) == [(11, "cycle")]


def test_repeats_inside_of_a_cycle_belong_to_its_period() -> None:
    """a, a, b again and again is a round of three."""
    run = Run(LoopPolicy(repeat=99, error=99, any_error=99))
    verdicts = [run.read("aab"[n % 3]) for n in range(12)]
    first = next(verdict for verdict in verdicts if verdict and verdict.level == "action")
    assert first.period == 3
    assert sorted(first.calls) == ["a", "a", "b"]


@pytest.mark.parametrize("size", [1, 2, 5, 50, 500])
def test_a_set_of_entities_may_be_read_twice(size: int) -> None:
    """In sequence; the third pass is a cycle."""
    run = Run()
    assert not [v for _ in range(2) for n in range(size) if (v := run.read("get", n, n))]
    assert acted([run.read("get", n, n) for _ in range(3) for n in range(size)])


def test_one_signature_again_and_again_is_no_cycle() -> None:
    """A cycle needs two signatures in the streak, so that `max_tool_repeats` alone rules plain repeats."""
    run = Run(LoopPolicy(repeat=100))
    entry = Answer(1)
    run.read("list")
    assert not acted([run.hit("get", 1, entry) for _ in range(99)])
    assert acted([run.hit("get", 1, entry)]) == [(1, "repeat")]


def test_one_signature_after_something_new_is_no_cycle() -> None:
    """The news is not of the streak: one signature is left in it. Of hits, and of calls that ran."""
    run, entry = Run(LoopPolicy(repeat=100)), Answer(1)
    run.hit("get", 1, entry)
    run.read("list")
    assert not acted([run.hit("get", 1, entry) for _ in range(50)])
    run.read("list", 2)
    assert not acted([run.read("list", 0) for _ in range(50)])


def test_what_is_not_counted_does_not_make_a_cycle_of_repeats() -> None:
    """An unchanged poll, a tool that is off, and a call of the same round leave the streak as it was."""
    run, entry, poll, off = Run(LoopPolicy(repeat=100)), Answer(1), LoopHints(poll=True), LoopHints(off=True)
    run.read("status", hints=poll)
    run.read("list")
    for tick in range(20):
        assert not acted([run.hit("get", 1, entry, tick, task) for task in range(2)])
        assert not acted([run.read("status", hints=poll), run.read("wait", hints=off)])
    assert run.detector.position == 22


def test_the_round_of_hits_is_named_with_its_repeats() -> None:
    """Repeated hits are only counted; the order is filled in when it is asked for."""
    run, a, b = Run(LoopPolicy(repeat=9999, error=99, any_error=99)), Answer("a"), Answer("b")
    for _ in range(3):
        verdicts = [run.hit("get", "a", a) for _ in range(30)] + [run.hit("list", "b", b)]
    assert verdicts[-1] is not None
    assert verdicts[-1].period == 31
    assert Counter(verdicts[-1].calls) == {"get": 30, "list": 1}


def test_two_outcomes_of_one_call_in_turn_are_a_cycle() -> None:
    """Signatures make a cycle, not calls."""
    run = Run(LoopPolicy(repeat=99, error=99, any_error=99))
    assert acted([run.read("get", 1, n % 2) for n in range(8)])[0] == (7, "cycle")


# Progress: repetitions in useful work


def test_one_look_up_for_every_item_of_a_batch_is_no_loop() -> None:
    """However long the batch, and however many look-ups each item needs."""
    for lookups in (1, 2, 7):
        run, entries = Run(), [Answer(n) for n in range(lookups)]
        for item in range(60):
            assert not [v for n in range(lookups) if (v := run.hit("rate", n, entries[n]))]
            assert run.read("invoice", item, True) is None


def test_an_item_may_need_its_look_up_more_than_once_now_and_then() -> None:
    """Every fourth item reads it twice: the others outweigh that."""
    run, rate = Run(), Answer("1.08")
    for item in range(60):
        assert not any(run.hit("rate", "EUR", rate) for _ in range(1 + (item % 4 == 0)))
        assert run.read("invoice", item, "posted") is None


def test_a_write_that_leads_to_another_screen_each_time_is_no_loop() -> None:
    """The same successful write, and new results of one call."""
    run = Run()
    for page in range(60):
        assert run.write("next_page") is None
        assert run.read("screen", 0, page) is None


def test_workers_that_read_one_policy_in_turn_are_no_loop() -> None:
    """Behind a semaphore: each hit in another task and iteration, and one other worker has finished since."""
    run, policy = Run(), Answer("30 days")
    for worker in range(40):
        assert run.hit("policy", 0, policy, tick=100 + max(worker, 2), task=worker) is None
        if worker >= 3:
            assert run.ran("refund", worker - 3, "done", tick=200 + worker, task=worker - 3, began=0) is None


@pytest.mark.parametrize("how", ["read", "hit"])
@pytest.mark.parametrize("items", [0, 1, 5, 50])
def test_a_loop_after_a_batch_is_found_within_four_repetitions(items: int, how: str) -> None:
    """The batch has used up neither the count nor the balance."""
    run, entry = Run(), Answer("same")

    def look_up() -> Verdict | None:
        return run.read("rate", "EUR") if how == "read" else run.hit("rate", "EUR", entry)

    for item in range(items):
        assert look_up() is None
        assert run.read("invoice", item, item) is None
    (at, kind), *_ = acted([look_up() for _ in range(6)])
    assert kind == "repeat"
    assert at <= 5
    assert items < 5 or at == 4


def test_a_look_up_between_new_failures_is_a_loop_a_little_later() -> None:
    """Other arguments that fail are no progress; a batch with some failures in a row is none of a loop."""
    run = Run()
    assert acted([run.read("schema") for n in range(6) if not run.read("query", n, ("no", n), error=True)]) == [
        (6, "repeat")
    ]
    run = Run()
    for item in range(60):
        failed = item % 10 >= 6
        rate, invoice = run.read("rate", "EUR"), run.read("invoice", item, "no" if failed else "posted", error=failed)
        assert not acted([rate, invoice])


def test_one_error_in_every_item_of_a_batch_is_no_loop() -> None:
    """The run goes on without the rate. When only the error is left, the next one is acted upon."""
    run = Run()
    for item in range(60):
        assert run.read("rate", "EUR", "down", error=True) is None
        assert run.read("invoice", item, item) is None
    assert acted([run.read("rate", "EUR", "down", error=True) for _ in range(3)])[0] == (2, "error")


def test_a_result_that_cannot_be_compared_hides_no_loop_of_others() -> None:
    """It may be new or not; the call beside it is the same each time."""
    run = Run()
    verdicts = [run.read("rate", "EUR") for _ in range(5) if not run.read("chart", 0, None)]
    assert acted(verdicts) == [(5, "repeat")]
    run = Run()
    for item in range(60):
        assert run.read("rate", "EUR") is None
        assert run.read("chart", item, None) is None, "another call each time"


def test_something_new_in_every_round_makes_a_cycle_useful_work() -> None:
    """Also a clock does: it has to be declared, and is not looked at then."""
    run = Run()
    assert not acted([run.read("abc"[n % 3], 0, n if n % 3 == 2 else 0) for n in range(60)])
    run, off = Run(), LoopHints(off=True)
    verdicts = [run.read("abc"[n % 3], 0, n, hints=off) if n % 3 == 2 else run.read("abc"[n % 3]) for n in range(60)]
    assert acted(verdicts)[0] == (10, "cycle")


def test_something_new_ends_a_cycle() -> None:
    """One call with news, and the streak begins again."""
    run = Run(LoopPolicy(repeat=99, error=99, any_error=99))
    verdicts = [run.read(f"t{n % 2}") if n % 5 else run.read("news", n) for n in range(40)]
    assert not acted(verdicts)


def test_a_whole_cycle_is_blocked_not_one_of_its_tools() -> None:
    """Until something new is seen."""
    run = Run()
    verdicts = [run.read("ab"[n % 2]) for n in range(7)]
    assert verdicts[-1] is not None
    assert verdicts[-1].blocked == {("a", 0), ("b", 0)}
    assert run.tool("a").blocked(0) is verdicts[-1]
    assert run.tool("b").blocked(0) is verdicts[-1]
    assert run.tool("b").blocked(1) is None
    run.read("c")
    assert run.tool("a").blocked(0) is None


def test_a_successful_write_with_a_new_signature_ends_the_epoch() -> None:
    """What was asked before may have another answer."""
    run = Run()
    verdicts = []
    for n in range(10):
        verdicts.append(run.write("edit", n))
        verdicts += [run.read("test", 0, "1 failed", error=True) for _ in range(1)]
    assert not acted(verdicts)
    assert not noticed(verdicts)


@pytest.mark.parametrize(("key", "at"), [(lambda n: 0, 5), (lambda n: n, 6)], ids=["the same", "another each time"])
def test_a_failed_write_ends_no_epoch(key: Callable[[int], int], at: int) -> None:
    """It has changed nothing. New failures are half as suspicious as nothing new at all."""
    run = Run(LoopPolicy(cycle=None))
    verdicts = []
    for n in range(at):
        verdicts.append(run.read("get"))
        run.write("edit", key(n), ("no", key(n)), error=True)
    assert acted(verdicts) == [(at, "repeat")]


def test_a_write_that_was_seen_ends_no_epoch_however_long_ago() -> None:
    """On and off again is a loop, though each of the two is a successful write."""
    run = Run()
    assert acted([run.write("switch", n % 2) for n in range(20)])[0][1] == "cycle"


def test_a_new_turn_ends_the_epoch() -> None:
    """The same three reads in every turn of the user are work."""
    run = Run()
    for _ in range(20):
        assert [run.read("card", n, n) for n in range(3)] == [None] * 3
        run.detector.end_epoch()


def test_a_new_turn_ends_the_epoch_of_hits() -> None:
    """The fast path knows of it too."""
    run, entry = Run(), Answer(1)
    for _ in range(20):
        assert [run.hit("card", 1, entry) for _ in range(2)] == [None] * 2
        run.detector.end_epoch()


def test_a_write_that_succeeds_with_one_signature_has_its_own_level() -> None:
    """One more of the same item; after the tenth, the next one is refused before it runs."""
    run = Run()
    verdicts = [run.write("add", "apple") for _ in range(10)]
    assert acted(verdicts) == [(10, "repeat")]
    assert noticed(verdicts) == [(5, "repeat")]
    assert run.tool("add", is_write=True).blocked("apple") is verdicts[-1]
    assert run.tool("add", is_write=True).blocked("pear") is None
    run.write("add", "pear")
    assert run.tool("add", is_write=True).blocked("apple") is None


def test_a_write_that_fails_has_the_levels_of_a_read() -> None:
    """Four times the same error."""
    run = Run()
    verdicts = [run.write("add", "apple", "full", error=True) for _ in range(4)]
    assert acted(verdicts) == [(4, "error")]
    assert run.tool("add", is_write=True).blocked("apple") is verdicts[-1]


def test_any_error_of_a_write_blocks_the_tool() -> None:
    """Its arguments were never the point."""
    run = Run()
    verdict = [run.write("add", n, "full", error=True) for n in range(6)][-1]
    assert run.tool("add", is_write=True).blocked("anything") is verdict
    assert run.tool("add", is_write=True).blocked(None) is verdict


def test_a_read_is_not_blocked_by_its_repeats() -> None:
    """Whether it goes on is known only when it has answered; another answer is no loop."""
    run = Run()
    for _ in range(5):
        run.read("get")
    assert run.tool("get").blocked(0) is None
    assert run.read("get", 0, "something else") is None


def test_identical_calls_of_one_tick_and_several_tasks_count_once() -> None:
    """A gather of fifty; the next one is the second round."""
    run, entry = Run(), Answer(1)
    for tick in range(2):
        assert [run.hit("get", 1, entry, tick, task) for task in range(50)] == [None] * 50
    assert noticed([run.hit("get", 1, entry, 2, task) for task in range(50)]) == [(1, "repeat")]


def test_identical_calls_of_one_tick_and_one_task_each_count() -> None:
    """Hits do not suspend, so a loop may live in one tick."""
    run, entry = Run(), Answer(1)
    assert acted([run.hit("get", 1, entry, 0, "task") for _ in range(5)]) == [(5, "repeat")]


def test_identical_calls_that_overlap_count_once() -> None:
    """Each began before the first had ended."""
    run = Run()
    for tick in range(2):
        began = run.detector.clock
        assert [run.ran("get", 1, "a", tick=100 * tick + n, task=n, began=began) for n in range(20)] == [None] * 20
    assert run.detector.position == 2


def test_a_gathered_set_may_be_read_twice() -> None:
    """Fifty entities in each of two rounds."""
    run = Run()
    entries = [Answer(n) for n in range(50)]
    assert not [v for tick in range(2) for n in range(50) if (v := run.hit("get", n, entries[n], tick, n))]


def test_a_declared_poll_may_go_on_unchanged() -> None:
    """Up to `max_unchanged` in a row, and it makes no cycle of what runs beside it."""
    run, hints = Run(), LoopHints(poll=True, max_unchanged=8)
    verdicts = [run.read("status", hints=hints) for _ in range(8)]
    assert acted(verdicts) == [(8, "repeat")]
    assert not noticed(verdicts)


def test_polls_that_overlap_count_once_and_others_each() -> None:
    """A poll is not counted in the position, so that cannot tell which came after which."""
    run, hints = Run(), LoopHints(poll=True, max_unchanged=4)
    verdicts = []
    for tick in range(6):
        began = run.detector.clock
        verdicts.append(
            [run.ran("status", 1, "a", tick=100 * tick + n, task=n, began=began, hints=hints) for n in range(20)]
        )
    assert [any(round_) for round_ in verdicts] == [False, False, False, True, True, True]
    assert [len([v for v in round_ if v]) for round_ in verdicts] == [0, 0, 0, 1, 1, 1]


def test_hits_of_a_poll_by_several_tasks_in_one_tick_count_once() -> None:
    """They take the long way, and nothing has begun before anything has ended."""
    run, entry = Run(), Answer("a")
    hints = LoopHints(poll=True, max_unchanged=3)
    rounds = [[run.hit("status", 1, entry, tick, task, hints) for task in range(20)] for tick in range(3)]
    assert [len([v for v in each if v]) for each in rounds] == [0, 0, 1]


def test_a_declared_poll_that_changes_begins_again_and_is_news() -> None:
    """Even if it changes back."""
    run, hints = Run(), LoopHints(poll=True, max_unchanged=3)
    assert not [v for n in range(40) if (v := run.read("status", 1, n // 2 % 2, hints=hints))]


def test_a_declared_poll_is_no_part_of_a_cycle() -> None:
    """A loop of two other calls is found with a poll between them."""
    run, hints = Run(), LoopHints(poll=True)
    verdicts = [run.read("apb"[n % 3], hints=hints if n % 3 == 1 else None) for n in range(12)]
    first = next(verdict for verdict in verdicts if verdict and verdict.level == "action")
    assert first.kind == "cycle"
    assert sorted(first.calls) == ["a", "b"]


def test_a_tool_that_is_off_is_not_looked_at_but_its_writes_change_the_world() -> None:
    """They end the epoch as any other does."""
    run, off = Run(), LoopHints(off=True)
    assert [run.read("wait", hints=off) for _ in range(50)] == [None] * 50
    for n in range(20):
        assert run.read("get") is None
        assert run.write("touch", n, hints=off) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"repeat": 1}, "repeat"),
        ({"repeat": True}, "repeat"),
        ({"error": (1, 4)}, "error's notice"),
        ({"cycle": (6, 5)}, "cycle.*must not come after"),
        ({"any_error": (3, 4, 5)}, "any_error"),
        ({"any_error": "6"}, "any_error"),
        ({"write_repeat": (5, 5.0)}, "write_repeat's action"),
        ({"max_execution_depth": 0}, "max_execution_depth"),
        ({"max_nesting": 0}, "max_nesting"),
        ({"max_duration": 0}, "max_duration"),
        ({"max_duration": "1h"}, "max_duration"),
        ({"new_turn_after": 0}, "new_turn_after"),
        ({"new_turn_after": "1h"}, "new_turn_after"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_tool_calls": {"search": 0}}, "max_tool_calls.*search"),
        ({"max_tool_calls": {"": 1}}, "max_tool_calls.*str"),
        ({"max_tool_calls": {7: 1}}, "max_tool_calls.*str"),
        ({"max_tool_calls": True}, "max_tool_calls"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(arguments: dict[str, object], says: str) -> None:
    """Levels below two, a notice that would come after the action, budgets of nothing."""
    with pytest.raises(ConfigurationError, match=says):
        LoopPolicy(**arguments)  # type: ignore[arg-type] # wrong on purpose


def test_a_policy_may_be_given_as_a_mapping_with_names_that_exist() -> None:
    """From a settings file; its short forms come on top."""
    assert policy_of({"repeat": 8}, None, None) == LoopPolicy(repeat=8)
    assert policy_of({"repeat": [4, 8]}, None, None).thresholds["repeat"] == (4, 8)
    assert policy_of({"repeat": 8}, 3, 50) == LoopPolicy(repeat=3, max_execution_depth=50)
    for wrong in ({"repeats": 8}, {"thresholds": {}}, "strict", 5):
        with pytest.raises(ConfigurationError, match="loop_policy"):
            policy_of(wrong, None, None)


@pytest.mark.parametrize("check", ["repeat", "error", "cycle", "any_error", "write_repeat"])
def test_a_check_may_be_switched_off(check: str) -> None:
    """It finds nothing then, and the others find what they did."""

    def kinds(policy: LoopPolicy) -> set[str]:
        found: list[Verdict | None] = []
        for steps in (
            lambda run: [run.read("get") for _ in range(20)],
            lambda run: [run.read("get", 0, "no", error=True) for _ in range(20)],
            lambda run: [run.read("ab"[n % 2]) for n in range(9)],
            lambda run: [run.read("get", n, "no", error=True) for n in range(20)],
            lambda run: [run.write("add") for _ in range(20)],
        ):
            found += steps(Run(policy))
        return {f"{v.kind} of {v.tool}" for v in found if v is not None}

    names = {
        "repeat": {"repeat of get", "repeat of a", "repeat of b"},
        "error": {"error of get"},
        "cycle": {"cycle of a", "cycle of b"},
        "any_error": {"any_error of get"},
        "write_repeat": {"repeat of add"},
    }
    everything = kinds(LoopPolicy())
    gone = everything - kinds(LoopPolicy(**{check: None}))
    assert gone <= names[check]
    assert gone or check in {"repeat", "any_error"}  # errors meet these two as well, if they go on for long


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_unchanged": 5}, "poll=True"),
        ({"poll": True, "max_unchanged": 1}, "max_unchanged"),
        ({"poll": True, "max_unchanged": True}, "max_unchanged"),
        ({"poll": "yes"}, "poll must be True or False"),
        ({"off": 1}, "off must be True or False"),
        ({"off": True, "poll": True}, "leave one out"),
        ({"off": True, "poll": True, "max_unchanged": 5}, "leave one out"),
        ({"loop_key": "x"}, "loop_key"),
    ],
)
def test_hints_that_cannot_work_are_refused(given: dict[str, Any], says: str) -> None:
    """A bound without a poll, what is off and judged all the same, and what is none of the kind."""
    with pytest.raises(ConfigurationError, match=says):
        LoopHints(**given)


@pytest.mark.parametrize(
    ("hints", "is_write", "says"),
    [
        (LoopHints(poll=True), True, "max_unchanged"),
        ({"poll": True}, False, "LoopHints"),
        (LoopHints(off=True, loop_key=len), False, "loop_key"),
        (LoopHints(off=True, outcome_key=len), False, "outcome_key"),
    ],
)
def test_hints_that_mean_nothing_for_a_tool_are_refused(hints: Any, is_write: bool, says: str) -> None:
    """A write that may be repeated for ever, and a read that says what to compare and is not looked at."""
    with pytest.raises(ConfigurationError, match=f"add: .*{says}"):
        checked_hints(hints, "add", is_write=is_write)
    if isinstance(hints, LoopHints):
        assert checked_hints(hints, "add", is_write=not is_write) is hints


class Strict(LoopPolicy):
    """A policy of somebody's own."""


@pytest.mark.parametrize(
    "one",
    [
        LoopPolicy(),
        LoopPolicy(repeat=(4, 8), any_error=None, max_duration=timedelta(minutes=5), max_tool_calls=7),
        LoopPolicy(repeat=[4, 8], max_tool_calls={"search": 20, "get": 5}),  # type: ignore[arg-type] # as settings files have it
        Strict(error=3),
        LoopHints(),
        LoopHints(poll=True, max_unchanged=5, outcome_key=len),
    ],
    ids=repr,
)
@pytest.mark.parametrize("how", ["pickled", "copied", "copied deeply", "replaced"])
def test_policies_and_hints_are_values(one: Any, how: str) -> None:
    """They can be sent to another process, copied, and be the key of a dict."""
    if how == "replaced":
        again = replace(one)
    else:
        again = {"pickled": lambda v: pickle.loads(pickle.dumps(v)), "copied": copy, "copied deeply": deepcopy}[how](
            one
        )
    assert again == one
    assert type(again) is type(one)
    assert {one: "found"}[again] == "found"
    assert len({one, again, replace(one)}) == 1
    if isinstance(one, LoopPolicy):
        assert again.thresholds == one.thresholds
        assert [again.calls_of(tool) for tool in ("search", "get", "list")] == [
            one.calls_of(tool) for tool in ("search", "get", "list")
        ]
        assert replace(one, repeat=99) != one


@pytest.mark.parametrize(("r", "notice"), [(2, 2), (3, 2), (4, 3), (5, 3), (50, 3)])
def test_max_tool_repeats_sets_the_action_and_lowers_the_notice(r: int, notice: int) -> None:
    """To min(3, r - 1), and never to the first call."""
    policy = policy_of(None, r, None)
    assert policy.thresholds["repeat"] == (notice, r)
    run = Run(policy)
    assert acted([run.read("get") for _ in range(r)]) == [(r, "repeat")]


def containers(held: object, path: str = "") -> Iterator[tuple[str, int]]:
    """Every container that is reached from here, by the attributes that lead to it, and how much is in it."""
    for name in type(held).__slots__:
        value = getattr(held, name)
        if isinstance(value, Sized) and not isinstance(value, str | bytes | tuple):
            yield f"{path}{name}", len(value)
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        for member in members:
            if isinstance(member, ToolDetector | CallHistory | RunState) and member is not NO_CALL:
                yield from containers(member, f"{path}{name}.")


@pytest.mark.slow
@pytest.mark.parametrize("last", [2_199, *slow(5_999, 19_999)])
def test_memory_is_bounded_however_long_the_session(last: int) -> None:
    """Calls, outcomes of one call, answers kept alive, order, blocks: all of it is full long before the end, and what
    there is then is all there will be.
    """
    run = Run(LoopPolicy(any_error=None))
    most: dict[int, dict[str, int]] = {}
    for n in range(last + 1):
        run.hit("get", n, Answer(n))
        run.hit("get", -1, Answer(n // 3))
        run.read("list", n)
        run.read("status", 1, n)
        if n == 1_000:
            run.write("put", n)
        for _ in range(4):
            run.write("add", n, "full", error=True)
        if n in (2_000, last):
            run.detector.tools = dict(run.tools)
            sizes = most[n] = {}
            for name, size in containers(run.detector):
                sizes[name] = max(size, sizes.get(name, 0))
    assert most[2_000] == most[last]
    assert most[last] == {
        "blocked": 1_000,
        "levels": 5,
        "recent": 128,
        "recent.others": 16,
        "run._iterations": 0,
        "run.running": 1,
        "run.used": 0,
        "tools": 5,
        "tools.calls": 1_000,
        "tools.calls.others": 16,
    }


def test_a_call_keeps_one_answer_alive_however_often_it_is_loaded_again() -> None:
    """Its hits need no fingerprint after a thousand of its loads."""
    run, other = Run(LoopPolicy(repeat=None)), Answer("other")
    run.hit("get", "other", other)
    for _ in range(1_000):
        entry = Answer("a")
        run.hit("get", 1, entry)
    assert run.identified == 1_000, "one for each load"
    for _ in range(10):
        run.hit("get", 1, entry)
        run.hit("get", "other", other)
    assert run.identified == 1_000
    assert {call.entry for tool in run.tools.values() for call in tool.calls.values()} == {entry, other}


_SIXTH: Any = LoopPolicy(repeat=(6, 99), error=None, cycle=None)
"""A signature is noticed when it is seen for the sixth time: that shows how often it is known to have been seen."""


def seen_before(again: Callable[[], Verdict | None]) -> int:
    """How often a signature is known to have been seen, under `_SIXTH`. It is seen up to six times more."""
    return next(6 - calls for calls in range(1, 7) if again() is not None)


def test_an_answer_that_came_again_is_known_when_the_cache_has_evicted_it() -> None:
    """Its fingerprint stays; what was seen once is new."""
    run, twice, once = Run(_SIXTH), Answer("twice"), Answer("once")
    run.hit("get", "twice", twice)
    run.hit("get", "twice", twice)
    run.hit("get", "once", once)
    for evicted in (twice, once):
        note_evicted(evicted)
        assert id(evicted) not in WITNESSES
    assert run.identified == 1, "the one that had come again"
    assert seen_before(lambda: run.hit("get", "twice", twice)) == 2
    assert seen_before(lambda: run.hit("get", "once", once)) == 0


def test_a_call_that_is_forgotten_keeps_no_answer() -> None:
    run, entry = Run(_SIXTH), Answer("a")
    run.hit("get", 1, entry)
    assert id(entry) in WITNESSES
    for n in range(1_000):
        run.hit("get", ("another", n), Answer(n))
    assert id(entry) not in WITNESSES
    assert seen_before(lambda: run.hit("get", 1, entry)) == 0


@pytest.mark.parametrize(("between", "is_known"), [(999, True), (1_000, False)])
def test_so_many_calls_of_one_tool_are_remembered(between: int, is_known: bool) -> None:
    """The bounds that the documentation names; others beside it do not count."""
    run = Run(_SIXTH)
    run.read("get", 1)
    run.read("get", 1)
    for n in range(between):
        run.read("get", ("another", n), n)
        run.read("list", n, n)
    assert seen_before(lambda: run.read("get", 1)) == 2 * is_known


@pytest.mark.parametrize(("between", "is_known"), [(16, True), (17, False)])
def test_so_many_outcomes_of_one_call_are_remembered(between: int, is_known: bool) -> None:
    """Beside the last one."""
    run = Run(_SIXTH)
    for outcome in ("a", *range(between)):
        run.read("get", 1, outcome)
    assert seen_before(lambda: run.read("get", 1, "a")) == is_known


def test_an_answer_that_is_followed_by_an_error_takes_up_no_room() -> None:
    """It is known by its fingerprint from then on."""
    run, entry = Run(_SIXTH), Answer("a")
    run.hit("get", 1, entry)
    run.read("get", 1, "boom", error=True)
    assert id(entry) not in WITNESSES
    assert seen_before(lambda: run.hit("get", 1, entry)) == 1


@pytest.mark.parametrize("how", ["hit", "loaded again", "let go", "uncached", "turned back", "write"])
def test_the_report_says_what_the_call_gave(how: str) -> None:
    """However the answer was kept, or whether it was."""
    run = Run(LoopPolicy(repeat=3, write_repeat=3, cycle=None))
    verdicts: list[Verdict | None] = []
    for n in range(4):
        match how:
            case "hit":
                verdicts.append(run.hit("get", 1, run.an_answer("a")))
            case "loaded again":
                verdicts.append(run.hit("get", 1, Answer("a")))
            case "let go":
                verdicts.append(run.hit("get", 1, run.an_answer("a")))
                if n == 1:
                    [run.hit("list", m, Answer(m)) for m in range(300)]
            case "uncached":
                verdicts.append(run.read("get", 1, "a", value="a"))
            case "turned back":
                verdicts.append(run.read("get", 1, "a", value="a"))
                run.read("get", 1, "b", value="b")
            case "write":
                verdicts.append(run.write("get", 1, "a", value="a"))
    told = [verdict for verdict in verdicts if verdict is not None]
    assert told
    assert {(verdict.first, verdict.last) for verdict in told} == {("'a'", "'a'")}


def test_the_report_on_errors_whatever_the_arguments_says_which() -> None:
    """Each call was made once."""
    run = Run()
    verdicts = [run.read("get", n, "down", error=True, value=LookupError("down")) for n in range(6)]
    assert {verdict.last for verdict in verdicts if verdict is not None} == {"LookupError('down')"}


@dataclass(frozen=True)
class Event:
    tool: str
    key: int
    outcome: int
    error: bool


_POLL = LoopHints(poll=True, max_unchanged=3)


class Model:
    """The contract, written with scans and no cleverness. Tools are reads, writes and polls by their first letter."""

    def __init__(self, policy: LoopPolicy) -> None:
        self.policy = policy
        self.epoch: list[Event] = []
        self.all: list[Event] = []
        self.rows: dict[tuple[str, int], tuple[Event, int]] = {}
        self.cycle_noticed = False
        self.changes: list[int] = []
        self.met: set[tuple[object, ...]] = set()

    def _end_epoch(self) -> None:
        self.epoch, self.changes, self.rows, self.cycle_noticed, self.met = [], [], {}, False, set()

    def new_turn(self) -> None:
        self._end_epoch()
        self.all.append(Event("user", 0, 0, error=False))

    def see(self, event: Event) -> tuple[str | None, set[str]]:
        """The level that is met, and by which checks."""
        has_written = event.tool.startswith("w") and not event.error
        if has_written and event not in self.all:
            self._end_epoch()
        before, row = self.rows.get((event.tool, event.key), (event, 0))
        row = row + 1 if before == event else 1
        self.rows[event.tool, event.key] = event, row
        if event.tool.startswith("p"):
            if row > 1:
                return ("action", {"repeat"}) if row >= 3 else (None, set())
            event = replace(event, outcome=1_000 + len(self.all))  # each change is news
        self.changes.append(2 if event in self.epoch else 1 if event.error else -1)
        self.epoch.append(event)
        self.all.append(event)
        if event.tool.startswith("p"):
            self.cycle_noticed = False
            return None, set()
        return self._level_of(event, row, "write_repeat" if has_written else "repeat")

    def _level_of(self, event: Event, row: int, repeat: str) -> tuple[str | None, set[str]]:
        streak: list[Event] = []
        seen: Counter[Event] = Counter()
        for each in self.epoch:
            streak = [*streak, each] if seen[each] else []
            seen[each] += 1
        if not streak:
            self.cycle_noticed = False
        tail = [(e.tool, e.outcome, e.error) for e in reversed(self.all)]
        errors = next((n for n, one in enumerate(tail) if one != tail[0]), len(tail))
        balance = self._balance_of(event)
        goes_round = len(streak) if seen[event] >= 3 and len(set(streak)) >= 2 and balance > 0 else 0
        levels = self.policy.thresholds

        def repeats(level: int) -> bool:
            return seen[event] >= level and balance >= min(5, level)

        def fails(level: int) -> bool:
            return event.error and row >= level and balance > 0

        actions = {
            "repeat": repeats(levels[repeat].action),
            "error": fails(levels["error"].action),
            "cycle": goes_round >= levels["cycle"].action,
            "any_error": event.error and errors >= levels["any_error"].action,
        }
        if met := {check for check, is_met in actions.items() if is_met}:
            return "action", met
        if goes_round >= levels["cycle"].notice and not self.cycle_noticed:
            self.cycle_noticed = True
            return "notice", {"cycle"}
        for check, is_met in (("repeat", repeats(levels[repeat].notice)), ("error", fails(levels["error"].notice))):
            if is_met and ("notice", check, event) not in self.met:
                self.met.add(("notice", check, event))
                return "notice", {check}
        return ("notice", {"any_error"}) if event.error and errors == levels["any_error"].notice else (None, set())

    def _balance_of(self, event: Event) -> int:
        """Two more for a repetition with nothing new since the last time, one more if only failures were new, and one
        less with progress; never below none.
        """
        places = [at for at, each in enumerate(self.epoch) if each == event]
        balance = 0
        for at, next_at in pairwise(places):
            balance = max(0, balance + min(self.changes[at + 1 : next_at], default=2))
        return balance


_EVENTS = st.builds(
    Event, st.sampled_from(["r1", "r2", "w1", "p1"]), st.integers(0, 2), st.integers(0, 1), error=st.booleans()
)
_HITS = st.lists(
    st.builds(Event, st.just("r1"), st.integers(0, 2), st.just(0), error=st.just(value=False)), max_size=40
)
_STEPS = st.lists(st.one_of(_EVENTS, _EVENTS, _EVENTS, st.none()), max_size=60)
_LOOPS = st.lists(_EVENTS, min_size=1, max_size=6).flatmap(lambda block: st.integers(1, 8).map(lambda n: block * n))
_POLICIES = st.sampled_from(
    [
        LoopPolicy(),
        LoopPolicy(repeat=30),
        LoopPolicy(write_repeat=3),
        LoopPolicy(repeat=9, error=9, cycle=4, any_error=9),
    ]
)


@searched(
    40, 600, steps=st.lists(st.one_of(_STEPS, _LOOPS, _HITS), max_size=4), policy=_POLICIES, with_entries=st.booleans()
)
def test_the_detector_agrees_with_the_contract_written_out(
    steps: list[list[Event | None]], policy: LoopPolicy, with_entries: bool
) -> None:
    """An action or a notice is given exactly where some check of the model is met at that level, and by one of those;
    with hits and without.
    """
    run, model, entries = Run(policy), Model(policy), dict[Event, Answer]()
    for event in (event for block in steps for event in block):
        if event is None:
            run.detector.end_epoch()
            model.new_turn()
            continue
        level, met = model.see(event)
        outcome, hints = (event.outcome, event.error), _POLL if event.tool.startswith("p") else None
        if event.tool.startswith("w"):
            verdict = run.write(event.tool, event.key, outcome, error=event.error)
        elif event.error or not with_entries:
            verdict = run.read(event.tool, event.key, outcome, error=event.error, hints=hints)
        else:
            verdict = run.hit(event.tool, event.key, entries.setdefault(event, Answer(outcome)), hints=hints)
        assert (None if verdict is None else verdict.level) == level
        assert verdict is None or verdict.kind in met


@searched(25, 200, sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_work_that_always_brings_news_is_never_stopped(sizes: list[int]) -> None:
    """Whatever is fanned out, paged or asked: no verdict without a signature that came back."""
    run, numbers = Run(), count()
    for size in sizes:
        assert [run.read("get", next(numbers)) for _ in range(size)] == [None] * size


def test_a_call_costs_no_more_after_100_000_than_after_50() -> None:
    """Counted in Python calls and lines, not in time: the hot path runs the same lines at any length of the session."""

    def lines(calls: int) -> int:
        run, entries = (
            Run(LoopPolicy(repeat=None, error=None, cycle=None, any_error=None)),
            [Answer(n) for n in range(7)],
        )
        hit = run.tool("get").hit
        for n in range(calls):
            hit(n % 7, entries[n % 7])
        seen = 0

        def trace(*_: object) -> object:
            nonlocal seen
            seen += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type] # a local tracer returns itself
        try:
            for n in range(70):
                hit(n % 7, entries[n % 7])
        finally:
            sys.settrace(before)
        return seen

    assert lines(100_002) == lines(56)
