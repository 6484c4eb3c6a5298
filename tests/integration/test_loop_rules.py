"""The rules of the loop guard as a table: sequences of calls, and what a session that only warns says to which of them.

What it says to any other sequence, a model of its page knows: `tests/properties/test_loop_model.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, LoopHints


class Step(NamedTuple):
    """One call: of which tool, with which argument, and what it gives."""

    tool: str
    argument: int = 0
    answer: Any = "same"
    fails: bool = False


Sequence = list[Step]
NEW_TURN = Step("a new turn of the user")
HINTS = {"poll": LoopHints(poll=True, max_unchanged=3), "off": LoopHints(off=True), "write off": LoopHints(off=True)}


def read(tool: str = "get", argument: int = 0, answer: Any = "same") -> Sequence:
    return [Step(tool, argument, answer)]


def write(argument: int = 0, answer: Any = "ok", tool: str = "write") -> Sequence:
    return [Step(tool, argument, answer)]


def fails(argument: int = 0, error: str = "no", tool: str = "get") -> Sequence:
    return [Step(tool, argument, error, fails=True)]


def each(steps: Iterable[Sequence]) -> Sequence:
    return [step for one in steps for step in one]


def repeats(first: int, last: int, kind: str = "repeat") -> dict[int, str]:
    return dict.fromkeys(range(first, last + 1), kind)


AB = read("a") + read("b")
ABC = AB + read("c")
ONLY_CYCLES = {"repeat": 99, "error": 99, "any_error": 99}

RULES: dict[str, tuple[Sequence, dict[int, str], dict[str, Any]]] = {
    # repeat
    "the fifth same answer is the first one that is acted upon, after a notice at the third": (
        read() * 7,
        {3: "notice of repeat"} | repeats(5, 7),
        {},
    ),
    "another answer each time is no loop": (each(read(answer=n) for n in range(30)), {}, {}),
    "an answer that comes back goes on with its own count": (
        each(read(answer=a) for a in "aabaabaab"),
        {5: "notice of repeat", 7: "repeat", 8: "repeat", 9: "cycle"},
        {},
    ),
    "another argument is another call": (each(read(argument=n) for n in range(30)), {}, {}),
    "a lower limit comes with a lower notice": (read() * 4, {2: "notice of repeat"} | repeats(3, 4), {"repeat": 3}),
    "a check that is off finds nothing": (read() * 20, {}, {"repeat": None}),
    "a new turn begins anew": ((read() * 4 + [NEW_TURN]) * 4, dict.fromkeys((3, 7, 11, 15), "notice of repeat"), {}),
    # error
    "the fourth same error is the first one that is acted upon": (
        fails() * 5,
        {2: "notice of error", 3: "notice of repeat"} | repeats(4, 4, "error") | repeats(5, 5),
        {},
    ),
    "a success between ends a row of errors": (
        fails() * 3 + read() + fails(),
        {2: "notice of error", 3: "notice of repeat"},
        {},
    ),
    "another error between ends it as well": (
        fails() * 3 + fails(error="other") + fails() * 2,
        {2: "notice of error", 3: "notice of repeat", 6: "repeat"},
        {},
    ),
    # any_error
    "the sixth same error of one tool, whatever the arguments": (
        each(fails(n) for n in range(7)),
        {4: "notice of any_error"} | repeats(6, 7, "any_error"),
        {},
    ),
    "another call between ends the row of a tool": (
        each(fails(n) for n in range(5)) + read("list") + each(fails(n) for n in range(5, 10)),
        dict.fromkeys((4, 10), "notice of any_error"),
        {},
    ),
    "another tool's error between does, too": (
        each(fails(n) for n in range(5)) + fails(tool="list") + each(fails(n) for n in range(5, 10)),
        dict.fromkeys((4, 10), "notice of any_error"),
        {},
    ),
    # cycle
    "two calls in turn": (AB * 4, {5: "notice of cycle", 6: "notice of repeat"} | repeats(7, 8, "cycle"), {}),
    "three calls in turn": (ABC * 4, {7: "notice of cycle"} | repeats(8, 12, "cycle"), {}),
    "a set may be read twice": (each(read(argument=n) for n in range(30)) * 2, {}, {}),
    "and not three times": (
        each(read(argument=n) for n in range(10)) * 2 + each(read(argument=n) for n in range(4)),
        repeats(21, 24, "cycle"),
        {},
    ),
    "one call again and again is no cycle": (AB * 2 + read("list") + read() * 12, {}, {"repeat": (99, 100)}),
    "two answers of one call in turn": (
        each(read(answer=n % 2) for n in range(8)),
        {5: "notice of cycle"} | repeats(7, 8, "cycle"),
        ONLY_CYCLES | {"repeat": (98, 99)},
    ),
    "something new ends it": (
        each(read("news", n) if n % 5 == 0 else read("ab"[n % 2]) for n in range(40)),
        dict.fromkeys(range(9, 40, 5), "notice of cycle"),
        ONLY_CYCLES | {"repeat": (98, 99)},
    ),
    # progress
    "a look-up for every item of a batch": (each(read() + read("item", n) for n in range(40)), {}, {}),
    "that goes on when the batch is done": (
        each(read() + read("item", n) for n in range(40)) + read() * 6,
        {83: "notice of repeat"} | repeats(84, 86),
        {},
    ),
    "a look-up between new failures": (
        each(fails(n, f"no {n}", "query") + read() for n in range(8)),
        {8: "notice of repeat"} | dict.fromkeys((12, 14, 16), "repeat"),
        {},
    ),
    "progress takes back half of what a repetition had added": (
        read() * 3 + each(read("item", n) + read() for n in range(3)) + read() * 3,
        {3: "notice of repeat"} | repeats(11, 12),
        {},
    ),
    "one error for every item of a batch": (each(fails() + read("item", n) for n in range(40)), {}, {}),
    # writes
    "a write with a new signature begins anew": (each(read() * 2 + write(n) for n in range(10)), {}, {}),
    "the same write with the same answer does not": (
        (read() + write()) * 5,
        {6: "notice of cycle", 7: "notice of repeat"} | repeats(8, 10, "cycle"),
        {},
    ),
    "a failed write does not": (
        each(read() + fails(n, f"no {n}", "write") for n in range(6)),
        {7: "notice of repeat", 11: "repeat"},
        {},
    ),
    "a write was seen before, however long ago": (
        each(write(n % 2) for n in range(9)),
        {6: "notice of cycle"} | repeats(8, 9, "cycle"),
        {},
    ),
    "a write that succeeds has its own level": (
        write() * 11,
        {5: "notice of repeat"} | repeats(10, 11),
        {},
    ),
    "a write that fails has that of a read": (
        fails(tool="write") * 4,
        {2: "notice of error", 3: "notice of repeat", 4: "error"},
        {},
    ),
    # hints
    "a poll is judged by its own limit": (read("poll") * 5, repeats(3, 5), {}),
    "a poll that changes begins again": (each(read("poll", answer=n // 2 % 2) for n in range(30)), {}, {}),
    "a poll is no part of a cycle": (
        (read("a") + read("poll", answer="x") + read("b")) * 2,
        {},
        {"cycle": (3, 4)},
    ),
    "a tool that is off is not looked at": (read("off") * 30, {}, {}),
    "and its writes end the epoch": (each(read() + write(n, tool="write off") for n in range(20)), {}, {}),
}


class Tools(dict[str, Any]):
    """The tools of a sequence, made as they are needed. Each gives what the step says that is being made."""

    step: Step

    def __missing__(self, name: str) -> Any:
        def tool(argument: int) -> Any:
            if self.step.fails:
                raise LookupError(self.step.answer)
            return self.step.answer

        options: dict[str, Any] = {"name": name, "loop": HINTS.get(name, LoopHints())}
        if name.startswith("write"):
            self[name] = AgentCacheInvalidator("written", **options)(tool)
        else:
            self[name] = AgentCache("read", **options)(tool).fresh
        return self[name]

    def call(self, step: Step) -> None:
        self.step = step
        try:
            self[step.tool](step.argument)
        except LookupError:
            assert step.fails


def verdicts(steps: Sequence, **policy: Any) -> dict[int, str]:
    """What the guard says to which call, counted from one."""
    tools, found, heard, number = Tools(), dict[int, str](), Counter[str](), 0
    with AgentCacheSession(on_loop="warn", loop_policy={"max_execution_depth": None, **policy}) as session:
        for step in steps:
            if step is NEW_TURN:
                session.new_turn()
                continue
            tools.call(step)
            number += 1
            metrics = session.get_metrics()
            notices = {f"notice of {kind}": count for kind, count in metrics["loop_notices"].items()}
            before, heard = heard, Counter(notices) + Counter(metrics["loops"])
            if heard != before:
                (found[number],) = heard - before
    return found


def test_the_rules():
    said = {rule: verdicts(steps, **policy) for rule, (steps, _, policy) in RULES.items()}
    assert said == {rule: expected for rule, (_, expected, _) in RULES.items()}
