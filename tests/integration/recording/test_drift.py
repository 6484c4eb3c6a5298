"""Drift of runs that tools, tasks and models make: what counts, how much, and what is accepted."""

from __future__ import annotations

import copy
import itertools
import json
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, ConfigurationError
from agent_cache.recording import (
    Baseline,
    Cassette,
    DriftDetector,
    DriftEvent,
    DriftSeverity,
    RecordedCall,
    Tolerance,
    intercept,
    now,
    observe,
    record,
    uuid4,
)
from agent_cache.testing import reset

INFO, WARNING, CRITICAL = DriftSeverity.INFO, DriftSeverity.WARNING, DriftSeverity.CRITICAL


class Shop:
    """A shop whose tools are recorded. Each run has a new one."""

    def __init__(self, **status: str) -> None:
        self.status = {"W1": "pending", "W2": "pending"} | status
        self.failing: set[str] = set()
        self.request = 0

        @AgentCache("order:{order_id}", name="shop:get_order", maxsize=None)
        async def get_order(order_id: str) -> dict[str, Any]:
            return self.answer("get_order", {"id": order_id, "status": self.status.get(order_id, "none")})

        @AgentCacheInvalidator("order:{order_id}", name="shop:cancel")
        async def cancel(order_id: str, reason: str = "") -> dict[str, Any]:
            self.status[order_id] = "cancelled"
            return self.answer("cancel", {"id": order_id})

        @AgentCacheInvalidator("order", name="shop:cancel_all")
        async def cancel_all() -> str:
            return "done"

        @intercept(kind="llm", name="model:ask")
        async def ask(prompt: str) -> str:
            return f"about {prompt}"

        @intercept(kind="write", name="mail:send")
        async def send(text: str) -> str:
            return self.answer("send", "sent")

        self.get_order, self.cancel, self.cancel_all, self.ask, self.send = get_order, cancel, cancel_all, ask, send

    def answer(self, tool: str, value: Any) -> Any:
        if tool in self.failing:
            raise ConnectionError("the backend is down")
        if self.request and isinstance(value, dict):
            self.request += 1
            value = {**value, "request_id": self.request, "meta": {"took": self.request * 7}}
        return value


Script = Callable[[Shop], Awaitable[Any]]
Runs = Callable[..., Awaitable[Cassette]]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Record runs into a folder."""
    numbers = itertools.count(1)

    async def made(script: Script, shop: Shop | None = None, *, drift: Any = None, **options: Any) -> Cassette:
        reset()
        path = tmp_path / f"{next(numbers)}.jsonl"
        async with AgentCacheSession(loop_detection=False, drift=drift):
            with record(path, **options):
                await script(shop or Shop())
        return Cassette.load(path)

    return made


def script(*calls: tuple[Any, ...]) -> Script:
    """Calls in sequence: a tool's name and its arguments."""

    async def make(shop: Shop) -> None:
        for name, *arguments in calls:
            try:
                await getattr(shop, name)(*arguments)
            except ConnectionError:
                pass

    return make


def brief(drifts: list[DriftEvent]) -> list[tuple[DriftSeverity, str, str]]:
    return [(one.severity, one.kind, one.name) for one in drifts]


ASK, READ, WRITE, OTHER = ("ask", "a"), ("get_order", "W1"), ("cancel", "W1"), ("get_order", "W2")
LATE = ("cancel", "W1", "late")
BASE = (ASK, READ, WRITE, OTHER, ("cancel", "W2"), ("ask", "b"))


# Severities, row by row

ARGUMENTS, MISSING, EXTRA, REPEATED, ORDER = "arguments", "missing", "extra", "repeated", "order"


@pytest.mark.parametrize(
    ("base", "new", "drift"),
    [
        (BASE, [ASK, READ, LATE, *BASE[3:]], (CRITICAL, ARGUMENTS, "shop:cancel")),
        (BASE, [*BASE[:2], *BASE[3:]], (CRITICAL, MISSING, "shop:cancel")),
        (BASE, [*BASE, ("send", "hello")], (CRITICAL, EXTRA, "mail:send")),
        (BASE, [*BASE, ("cancel", "W2")], (CRITICAL, REPEATED, "shop:cancel")),
        (BASE, [("ask", "c"), *BASE[1:]], (WARNING, ARGUMENTS, "model:ask")),
        (BASE, [ASK, *BASE[2:]], (WARNING, MISSING, "shop:get_order")),
        (BASE, [*BASE, ("get_order", "W3")], (WARNING, EXTRA, "shop:get_order")),
        (BASE, [*BASE[:2], READ, *BASE[2:]], (INFO, REPEATED, "shop:get_order")),
        (BASE, [READ, ASK, *BASE[2:]], (INFO, ORDER, "shop:get_order")),
        (BASE, [ASK, OTHER, WRITE, READ, *BASE[4:]], (WARNING, ORDER, "shop:get_order")),  # a read over a write
        ([WRITE, LATE], [LATE, WRITE], (CRITICAL, ORDER, "shop:cancel")),  # of one order
        ([WRITE, ("cancel", "W2")], [("cancel", "W2"), WRITE], (INFO, ORDER, "shop:cancel")),
        ([WRITE, ("cancel_all",)], [("cancel_all",), WRITE], (CRITICAL, ORDER, "shop:cancel_all")),
        ([("send", "x"), WRITE], [WRITE, ("send", "x")], (CRITICAL, ORDER, "shop:cancel")),  # a mail may touch it
    ],
)  # fmt: skip
async def test_each_drift_has_its_severity(runs: Runs, base: Any, new: Any, drift: tuple[Any, ...]) -> None:
    baseline = Baseline(await runs(script(*base)))
    drifts = baseline.compare(await runs(script(*new)))
    assert drift in brief(drifts)
    assert max(one.severity for one in drifts) is drift[0]
    assert baseline.compare(await runs(script(*base))) == []


async def test_a_changed_result_of_a_read_is_a_warning(runs: Runs) -> None:
    baseline = Baseline(await runs(script(ASK, READ)))
    (drift,) = baseline.compare(await runs(script(ASK, READ), Shop(W1="delivered")))
    text = "get_order(order_id='W1') had another outcome: result.status: pending -> delivered"
    values = "pending", "delivered", "tool", 2, "result.status"
    assert drift == DriftEvent(WARNING, "result", "shop:get_order", text, *values)


async def test_a_new_error_is_critical_and_one_that_is_gone_is_a_warning(runs: Runs) -> None:
    calls, shop = [READ, WRITE, ("send", "W1")], Shop()
    shop.failing |= {"get_order", "send"}
    fine, failed = await runs(script(*calls)), await runs(script(*calls), shop)
    drifts = Baseline(fine).compare(failed)
    assert brief(drifts) == [(CRITICAL, "error", name) for name in ("shop:get_order", "mail:send")]
    assert "raised ConnectionError('the backend is down'), and in the baseline did not" in drifts[0].description
    drifts = Baseline(failed).compare(fine)
    assert brief(drifts) == [(WARNING, "error", "shop:get_order"), (CRITICAL, "error", "mail:send")]


def call(name: str, **outcome: Any) -> Cassette:
    return Cassette([RecordedCall(id=1, kind="http" if "://" in name else "tool", name=name, outcome=outcome)])


def test_a_status_from_400_is_an_error_and_headers_do_not_count() -> None:
    def run(status: int, date: str) -> Cassette:
        return call("GET https://a/b", response={"status": status, "headers": [["date", date]], "json": {"id": 1}})

    baseline = Baseline(run(200, "monday"))
    assert baseline.compare(run(200, "tuesday")) == []
    assert brief(baseline.compare(run(500, "monday"))) == [(CRITICAL, "error", "GET https://a/b")]


def test_a_text_that_is_json_is_compared_as_what_it_says() -> None:
    baseline = Baseline(call("shop:find", value='{"a": 1, "b": [2]}'))
    assert baseline.compare(call("shop:find", value='{"b":[2],"a":1}')) == []
    (drift,) = baseline.compare(call("shop:find", value='{"b":[3],"a":1}'))
    assert (drift.path, drift.original_value, drift.restored_value) == ("result.b[*]", 2, 3)


@pytest.mark.parametrize(
    ("was", "now", "shown"),
    [
        ("asks whether her order", "asks whether her order has been", "her order {+has been +}sent to the new addr"),
        ("asks\nwhether it has been", "asks\nwhether it was", "line 2: whether it [-has been-]{+was+}"),
    ],
)
def test_a_change_of_a_long_text_is_shown_with_a_little_around_it(was: str, now: str, shown: str) -> None:
    tail = " sent to the new address, and nobody has told her until now.\nPlease answer."
    (drift,) = Baseline(call("mail:read", value=was + tail)).compare(call("mail:read", value=now + tail))
    assert shown in drift.description


def steps(*calls: tuple[str, Any], lanes: str = "") -> Cassette:
    """Calls of a write or of reads with what they return, each made by the task of its lane."""
    return Cassette([
        RecordedCall(id=number, kind="write" if name == "write" else "tool", name=name, digest=name.encode().hex(),
                     lane=int(lanes[number - 1 :][:1] or 0), started_ms=number, outcome={"value": value})
        for number, (name, value) in enumerate(calls, 1)
    ])  # fmt: skip


def sent(*texts: str) -> Cassette:
    """Mails to these, one behind the other."""
    return Cassette([
        RecordedCall(id=number, kind="write", name="mail:send", digest=f"{text}@{number}".encode().hex(),
                     arguments={"to": text, "at": number}, started_ms=number, outcome={"value": None})
        for number, text in enumerate(texts, 1)
    ])  # fmt: skip


def test_a_call_is_known_by_its_place_in_its_task_and_a_task_by_its_calls() -> None:
    baseline = Baseline(steps(("read", 1), ("write", 0), ("read", 2)))
    drifts = baseline.compare(steps(("write", 0), ("read", 3)))  # also if its result has changed
    assert [(one.kind, one.original_value) for one in drifts] == [("result", 2), ("missing", {})]
    calls = ("read", 1), ("write", 0), ("look", 2)
    assert Baseline(steps(*calls)).compare(steps(*calls, lanes="010")) == []
    one, other = calls[:2], (("write", 0), ("read", 1))  # whichever task began first
    assert Baseline(steps(*one, *other, lanes="1122")).compare(steps(*other, *one, lanes="1122")) == []


def test_a_run_that_was_shuffled_takes_memory_by_its_calls_and_not_by_their_square() -> None:
    def memory_of(number: int) -> int:
        made = [("write" if n % 10 == 0 else f"read{n}", n) for n in range(number)]
        baseline, new = Baseline(steps(*made)), steps(*random.Random(1).sample(made, number))
        tracemalloc.start()
        try:
            assert len(baseline.compare(new)) > number / 2
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert memory_of(800) < 6 * memory_of(200)


@pytest.mark.parametrize("is_polled", [False, True])
def test_what_is_told_at_a_call_does_not_ask_each_call_of_the_baseline(is_polled: bool) -> None:
    def functions_of(number: int) -> int:
        same: dict[str, Any] = {"arguments": {}, "digest": "00"} if is_polled else {}
        calls = [msgspec.structs.replace(one, outcome={"value": one.id}, **same) for one in sent(*"ab" * number)]
        detector, count = DriftDetector(Baseline(Cassette(calls[:number]))), Counter[str]()
        sys.setprofile(lambda _, event, __: count.update([event]))
        for call in calls[number:]:
            detector.on_start(call)
            detector.on_end(call)
        sys.setprofile(None)
        assert len(detector.drifts) == number
        return count["call"]

    assert functions_of(80) < 6 * functions_of(20)


async def test_recorded_times_and_random_values_do_not_count(runs: Runs) -> None:
    async def make(shop: Shop) -> None:
        now()
        await script(*BASE)(shop)
        uuid4()

    baseline = Baseline(await runs(make))
    assert baseline.compare(await runs(make)) == baseline.compare(await runs(script(*BASE))) == []


# Several recordings


async def test_what_varies_between_the_recordings_of_a_baseline_is_accepted(runs: Runs) -> None:
    async def made(request: int, status: str = "pending") -> Cassette:
        shop = Shop(W1=status)
        shop.request = request
        return await runs(script(READ, OTHER), shop)

    one = Baseline(await made(10))
    two = Baseline(await made(10), await made(20))
    new = await made(30)
    assert brief(one.compare(new)) == [(WARNING, "result", "shop:get_order")] * 2
    assert two.compare(new) == []
    (drift,) = two.compare(await made(40, "delivered"))
    assert (drift.path, drift.restored_value) == ("result.status", "delivered")


async def test_an_argument_that_always_varies_is_accepted_and_one_that_is_another_call_is_not(runs: Runs) -> None:
    def made(today: str, order: str) -> Script:
        return script(("ask", f"{today}"), ("get_order", "W1"), ("get_order", order))

    baseline = Baseline(await runs(made("monday", "W2")), await runs(made("tuesday", "W3")))
    assert baseline.compare(await runs(made("friday", "W2"))) == []
    assert baseline.compare(await runs(made("friday", "W3"))) == []
    assert brief(baseline.compare(await runs(made("friday", "W4")))) == [(WARNING, "arguments", "shop:get_order")]
    assert brief(baseline.compare(await runs(script(("ask", "friday"))))) == [(WARNING, "missing", "shop:get_order")]


async def test_calls_and_orders_that_vary_are_accepted_and_others_are_not(runs: Runs) -> None:
    write, model = ("cancel", "W3"), ("ask", "b")
    approved = ((ASK, READ, OTHER, write), (ASK, OTHER, READ, write, model))
    baseline = Baseline(*[await runs(script(*calls)) for calls in approved])
    for calls in (*approved, (ASK, OTHER, READ, write)):
        assert baseline.compare(await runs(script(*calls))) == []
    told: list[DriftEvent] = []
    await runs(script(*approved[1]), drift=DriftDetector(baseline, on_drift=told.append))
    assert told == []
    (moved,) = baseline.compare(await runs(script(ASK, write, READ, OTHER)))
    assert (moved.severity, moved.kind) == (WARNING, "order")
    assert brief(baseline.compare(await runs(script(ASK, READ, OTHER)))) == [(CRITICAL, "missing", "shop:cancel")]


# Tolerance


async def test_ignored_places_do_not_count(runs: Runs) -> None:
    shop, later = Shop(), Shop(W1="delivered")
    shop.request, later.request = 10, 50
    baseline, new = Baseline(await runs(script(READ), shop)), await runs(script(READ), later)
    for ignored in (
        ("get_order:result.request_id", "get_order:result.meta.took"),
        ("shop:get_order:result.request_id", "shop:get_order:result.meta"),
        ("*:result.request_id", "get_*:result.meta.*"),
    ):
        (drift,) = baseline.compare(new, Tolerance(ignore=ignored))
        assert drift.path == "result.status"
    assert baseline.compare(new, Tolerance(ignore=["get_order:result"])) == []
    assert len(baseline.compare(new, Tolerance(ignore=["cancel:result"]))) == 1


def test_ignored_arguments_find_their_call_wherever_it_stands() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    drifts = Baseline(sent(*letters)).compare(sent(*letters[1:]), Tolerance(ignore=["send:arguments.at"]))
    assert brief(drifts) == [(CRITICAL, "missing", "mail:send")]
    assert drifts[0].original_value["to"] == "a"


async def test_arguments_are_the_same_that_a_function_says_are(runs: Runs) -> None:
    def same(expected: dict[str, Any], actual: dict[str, Any]) -> bool:
        return bool(expected["order_id"].lower() == actual["order_id"].lower())

    baseline = Baseline(await runs(script(("cancel", "w1"), ("get_order", "w1"))))
    new = await runs(script(("cancel", "W1"), ("get_order", "W1")))
    tolerance = Tolerance(same_arguments={"cancel": same}, ignore=["*:result"])
    assert brief(baseline.compare(new, tolerance)) == [(WARNING, "arguments", "shop:get_order")]
    # What it raises is raised by the report.
    tolerance = Tolerance(same_arguments={"get_order": lambda expected, actual: 1 / 0})
    detector = DriftDetector(Baseline(await runs(script(READ))), tolerance=tolerance)
    assert len(await runs(script(OTHER), drift=detector)) == 1
    with pytest.raises(ZeroDivisionError):
        detector.report()


async def test_a_number_of_calls_more_or_less_is_accepted_but_no_write(runs: Runs) -> None:
    baseline = Baseline(await runs(script(*BASE)))
    new = await runs(script(ASK, WRITE, OTHER, ("get_order", "W3"), ("cancel", "W2"), ("ask", "b"), ("send", "x")))
    assert len(baseline.compare(new, Tolerance(calls=0))) == 2  # one read by another, which is one drift
    new = await runs(script(*BASE, READ, ("get_order", "W3"), ("send", "x")))
    assert len(baseline.compare(new, Tolerance(calls=1))) == 3
    assert brief(baseline.compare(new, Tolerance(calls=2))) == [(CRITICAL, "extra", "mail:send")]


def tokens(cassette: Cassette, count: int) -> Cassette:
    """The same recording, whose model calls took so many tokens each."""
    found, about = copy.copy(cassette), {"input_tokens": count - 10, "output_tokens": 10}
    found.steps = [msgspec.structs.replace(one, **(about if one.kind == "llm" else {})) for one in cassette]
    return found


async def test_tokens_of_the_run_may_vary_by_a_fifth(runs: Runs) -> None:
    recorded = await runs(script(ASK, ("ask", "b")))
    baseline = Baseline(tokens(recorded, 100))
    for accepted in (tokens(recorded, 119), tokens(recorded, 81), recorded):  # the last one does not know its tokens
        assert baseline.compare(accepted) == []
    (more,), (fewer,) = (baseline.compare(tokens(recorded, count)) for count in (130, 70))
    text = "the model calls of the run took 260 tokens, and in the baseline 200: +30%, of which 20% are accepted"
    assert more == DriftEvent(WARNING, "tokens", "", text, 200, 260, "run")
    assert fewer.severity is INFO
    assert baseline.compare(tokens(recorded, 130), Tolerance(tokens=0.3)) == []
    assert baseline.compare(tokens(recorded, 900), Tolerance(tokens=None)) == []
    assert Baseline(tokens(recorded, 100), tokens(recorded, 200)).compare(tokens(recorded, 150)) == []


async def is_same_later(*_: Any) -> bool:
    """What it returns is true before it is awaited."""
    return False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ignore": ["get_order:status"]}, "ignore takes a name and a path"),
        ({"ignore": ["get_order:result.items[0].id"]}, "ignore takes a name and a path"),
        ({"same_arguments": {"get_order": "x"}}, "same_arguments of get_order must be a function"),
        ({"same_arguments": {"get_order": is_same_later}}, "same_arguments of get_order must be a plain function"),
        ({"calls": -1}, "calls: Expected `int` >= 0"),
        ({"fail_on": "fatal"}, "fail_on: Invalid enum value 'fatal'"),
    ],
)
def test_a_tolerance_or_a_listener_that_cannot_work_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Tolerance(**arguments)
    assert message in str(refused.value)
    for on_drift in ("x", is_same_later):
        with pytest.raises(ConfigurationError, match="on_drift must be a"):
            DriftDetector(Baseline(steps(("read", 1))), on_drift=on_drift)


@pytest.mark.parametrize("form", ["toml", "json"])
def test_a_tolerance_is_read_from_a_file(tmp_path: Path, form: str) -> None:
    given = {"ignore": ["get_order:result.id"], "tokens": 0.5, "fail_on": "critical"}
    path, lines = tmp_path / f"t.{form}", (f"{name} = {json.dumps(value)}" for name, value in given.items())
    path.write_text("\n".join(lines) if form == "toml" else json.dumps(given))
    assert Tolerance.load(path) == Tolerance(**given)


# Runs that go on


async def test_a_session_tells_its_drifts_at_the_calls_that_show_them(runs: Runs) -> None:
    told: list[tuple[str, str]] = []
    seen: list[str] = []
    baseline = Baseline(await runs(script(*BASE)))
    detector = DriftDetector(baseline, on_drift=lambda one: told.append((seen[-1], one.kind)))

    async def make(shop: Shop) -> None:
        for name, argument in (ASK, READ, ("cancel", "W9"), OTHER, ("get_order", "W9"), ("cancel", "W2")):
            seen.append(f"{name} {argument}")
            await getattr(shop, name)(argument)
        seen.append("the end")

    cassette = await runs(make, drift=detector)
    # That an argument has changed is known at the end.
    assert told == [("cancel W9", "extra"), ("get_order W9", "extra"), ("the end", "missing")]
    assert detector.drifts == baseline.compare(cassette)
    assert detector.report().counts == {CRITICAL: 1, WARNING: 2, INFO: 0}


async def test_a_detector_of_a_path_watches_one_run_after_another_and_two_at_once(runs: Runs, tmp_path: Path) -> None:
    await runs(script(READ, WRITE))
    detector = DriftDetector(tmp_path / "1.jsonl")
    for new, count in (((READ,), 1), ((READ, WRITE), 0)):
        reset()
        with observe(detector):
            await script(*new)(Shop())
        assert len(detector.drifts) == count
    with observe(detector):
        pass
    assert len(detector.drifts) == 2
    reset()
    first, second = detector.attach("a"), detector.attach("b")
    with first:
        await script(READ)(Shop())
        with second:
            await script(READ, WRITE)(Shop())
        assert detector.drifts == []


async def test_a_detector_redacts_as_its_baseline_does(runs: Runs) -> None:
    detector = DriftDetector(Baseline(await runs(script(READ, WRITE), redact=["order_id"])))
    await runs(script(READ, WRITE), drift=detector)
    assert detector.drifts == []


async def test_a_callback_that_raises_is_called_once_and_the_run_goes_on(runs: Runs) -> None:
    told: list[DriftEvent] = []

    def fail(drift: DriftEvent) -> None:
        told.append(drift)
        raise ValueError("the callback")

    detector = DriftDetector(Baseline(await runs(script(*BASE))), on_drift=fail)
    assert len(await runs(script(READ, ("send", "x")), drift=detector)) == 2
    assert (len(told), len(detector.drifts)) == (1, 6)
