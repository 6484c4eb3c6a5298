"""The loop guard beside a model that keeps every call of the run, and reads docs/explanation/loops.md literally.

Reads, writes, polls and tools that are not judged are called in turn and at once, and go round. After each move the
guard must have said the same as the model, with a line in the log where a streak began, and let the same tools run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent_cache import (
    AgentCache,
    AgentCacheInvalidator,
    AgentCacheSession,
    AgentLoopDetectedError,
    LoopHints,
    LoopPolicy,
)
from tests.properties.machine import Machine, searches

UNCHANGED = 3  # How many equal answers of a poll are enough.
PAUSE = 60  # Seconds after which a turn begins.
NEVER = (9_999, 9_999)
CHECKS = ("repeat", "error", "cycle", "any_error", "write_repeat")
HINTS = {"poll": LoopHints(poll=True, max_unchanged=UNCHANGED), "off": LoopHints(off=True), "note": LoopHints(off=True)}
WRITES = ("add", "put", "note")
TOOLS = ("get", "get", "get", "list", "add", "add", "put", "note", "poll", "off")
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"repeat": (2, 4), "error": 3, "cycle": 7, "any_error": (2, 4), "write_repeat": 4},
    {"repeat": None, "new_turn_after": PAUSE},
    {"repeat": (4, 9), "error": None, "any_error": (2, 6)},
)


class Call(NamedTuple):
    """One call, and what it gives."""

    tool: str
    argument: int
    outcome: str
    fails: bool

    def __str__(self) -> str:
        return f"LookupError({self.outcome!r})" if self.fails else repr(self.outcome)


class Report(NamedTuple):
    """What the guard says of a call."""

    kind: str
    tool: str
    count: int
    calls: tuple[str, ...]
    last: str
    level: str


class Event(NamedTuple):
    """A call that was counted in this epoch, and the round that it belongs to."""

    call: Call
    is_new: bool
    round: int


Verdict = tuple[Report, bool]
"""A report, and whether it is the first one of its streak."""


@dataclass
class Model:
    """Says what the guard should.

    Args:
        levels: those of the checks.
        decision: what ``on_loop`` returns.
        keeps: whether answers are cached.
    """

    levels: dict[str, tuple[int, int]]
    decision: str | None
    keeps: bool
    said: list[Report] = field(default_factory=list)
    lines: int = 0
    acted: Counter[str] = field(default_factory=Counter)
    written: set[Call] = field(default_factory=set)
    epoch: list[Event] = field(default_factory=list)
    seen: dict[Call, tuple[int, int]] = field(default_factory=dict)  # How many events there were, and in which round.
    balance: Counter[Call] = field(default_factory=Counter)
    met: set[Any] = field(default_factory=set)
    blocked: dict[tuple[str, int | None], Report] = field(default_factory=dict)

    def end_epoch(self) -> None:
        for one in (self.epoch, self.seen, self.balance, self.met, self.blocked):
            one.clear()  # type: ignore[attr-defined] # all have it

    def admit(self, call: Call, cached: Call | None) -> object:
        """What a call gets that is refused before it runs; None if it is made."""
        report = self.blocked.get((call.tool, None)) or self.blocked.get((call.tool, call.argument))
        return None if report is None or HINTS.get(call.tool) == HINTS["off"] else self.react(report, False, cached)

    def end(self, call: Call, round_: int, *, overlaps: bool) -> object:
        """What a call gets in place of its outcome; None if it gets that."""
        report, is_first = self.count(call, round_, overlaps=overlaps) or (None, False)
        if report is None:
            return None
        if call.tool in WRITES and report.level == "action":  # Its answer is given, and the next call is refused.
            self.lines += is_first
            self.acted[report.kind] += is_first
            return None
        if report.level == "notice":
            self.said.append(report)
            return None
        return self.react(report, is_first, call if self.keeps and not call.fails else None)

    def react(self, report: Report, is_first: bool, cached: Call | None) -> object:
        self.said.append(report)
        self.lines += is_first
        self.acted[report.kind] += 1
        instead = {"notice": "a text", "short_circuit": cached or report.kind, None: None}
        return instead[self.decision]

    def count(self, call: Call, round_: int, *, overlaps: bool) -> Verdict | None:
        """Count the outcome of a call, and judge it."""
        if call.tool in WRITES:
            if not call.fails and call not in self.written:
                self.end_epoch()
            self.written.add(call)
        if HINTS.get(call.tool) == HINTS["off"]:
            return None
        of_call = [event.call for event in self.epoch if event.call[:2] == call[:2]]
        is_unchanged, before = of_call[-1:] == [call], of_call.count(call)
        at, last_round = self.seen.get(call, (0, -1))
        since = [event for event in self.epoch[at:] if event.is_new]
        if is_unchanged and last_round == round_ and (overlaps or not since):
            self.seen[call] = len(self.epoch), round_
            return None
        is_new = not before or (call.tool == "poll" and not is_unchanged)
        if before:
            change = -1 if any(not event.call.fails for event in since) else 1 if since else 2
            self.balance[call] = max(0, self.balance[call] + change)
        self.epoch.append(Event(call, is_new, round_))
        self.seen[call] = len(self.epoch), round_
        if is_new:
            self.met -= {"cycle noticed", "cycle"}
            kept = {one: why for one, why in self.blocked.items() if why.kind not in ("cycle", "any_error")}
            self.blocked = kept
        in_a_row = len(list(itertools.takewhile(call.__eq__, reversed([*of_call, call]))))
        if call.tool != "poll":
            return self.judge(call, before + 1, in_a_row)
        if is_new or in_a_row < UNCHANGED:
            return None
        return self.found("repeat", in_a_row, call), in_a_row == UNCHANGED

    def streak(self) -> list[Call]:
        """The calls since the last one that was new. Polls are no part of it."""
        calls: list[Call] = []
        for event in reversed(self.epoch):
            if event.is_new:
                break
            calls.insert(0, event.call)
        return [call for call in calls if call.tool != "poll"]

    def errors(self, call: Call) -> int:
        """In how many rounds in a row this tool alone was called, and gave this error. 0 in the midst of a round."""
        rounds: list[int] = []
        for event in reversed(self.epoch):
            if (event.call.tool, event.call.outcome, event.call.fails) != (call.tool, call.outcome, True):
                break
            rounds.append(event.round)
        return 0 if rounds[1:2] == rounds[:1] else len(set(rounds))

    def judge(self, call: Call, count: int, in_a_row: int) -> Verdict | None:
        """The first check that is met, those of the action level first."""
        repeat = self.levels["write_repeat" if call.tool in WRITES and not call.fails else "repeat"]
        error, cycle, any_error = self.levels["error"], self.levels["cycle"], self.levels["any_error"]
        errors, in_a_row = (self.errors(call), in_a_row) if call.fails else (0, 0)
        streak, balance = self.streak(), self.balance[call]
        is_cycle = len(set(streak)) > 1 and count >= 3 and balance > 0
        if count >= repeat[1] and balance >= min(5, repeat[1]):
            return self.found("repeat", count, call), self.first(call, "repeat")
        if in_a_row >= error[1] and balance:
            return self.found("error", in_a_row, call), self.first(call, "error")
        if is_cycle and len(streak) >= cycle[1]:
            return self.found("cycle", count, call), self.first("cycle")
        if errors >= any_error[1]:
            return self.found("any_error", errors, call), errors == any_error[1]
        if is_cycle and len(streak) >= cycle[0] and self.first("cycle noticed"):
            return self.found("cycle", count, call, "notice"), True
        if count >= repeat[0] and balance >= min(5, repeat[0]) and self.first(call, "repeat noticed"):
            return self.found("repeat", count, call, "notice"), True
        if in_a_row >= error[0] and balance and self.first(call, "error noticed"):
            return self.found("error", in_a_row, call, "notice"), True
        if errors == any_error[0]:
            return self.found("any_error", errors, call, "notice"), True
        return None

    def first(self, *met: Any) -> bool:
        """Note that a streak meets a level. Returns whether it has not met it before."""
        key = met if len(met) > 1 else met[0]
        is_first = key not in self.met
        self.met.add(key)
        return is_first

    def found(self, kind: str, count: int, call: Call, level: str = "action") -> Report:
        calls = last_round(self.streak()) if kind == "cycle" else [call]
        report = Report(kind, call.tool, count, tuple(one.tool for one in calls), str(calls[-1]), level)
        if level == "action" and kind == "cycle":
            self.blocked |= {one[:2]: report for one in calls}
        elif level == "action" and call.tool in WRITES:
            self.blocked[call.tool, None if kind == "any_error" else call.argument] = report
        return report


def last_round(streak: list[Call]) -> list[Call]:
    """The shortest round that explains all calls of the streak; without one, all of them."""
    for period in range(2, len(streak)):
        if streak[period:] == streak[:-period]:
            return streak[-period:]
    return list(dict.fromkeys(streak))


def made(name: str, way: str, world: dict[Any, Call], ran: list[Any], gate: asyncio.Semaphore) -> Any:
    """A tool that gives what its world says, once it is let through the gate.

    Args:
        way: "text"; "tree": each caller gets a dict of its own; "uncached": nothing is stored; "sync": it is a `def`.
    """

    def answer(argument: int) -> Any:
        call = world[name, argument]
        ran.append(call)
        if call.fails:
            raise LookupError(call.outcome)
        return {"answer": [call.outcome]} if way == "tree" else call.outcome

    async def gated(argument: int) -> Any:
        await gate.acquire()
        return answer(argument)

    hints, tool = HINTS.get(name, LoopHints()), answer if way == "sync" else gated
    if name in WRITES:
        return AgentCacheInvalidator("written", name=name, loop=hints)(tool)
    ttl = (lambda _answer: 0.0) if way == "uncached" else None
    return AgentCache("read", name=name, loop=hints, ttl=ttl, maxsize=None)(tool)


class Guarded(Machine):
    """Runs that repeat themselves, in a session that asks what to do."""

    steps = 50

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.exits.callback(self.loop.close)
        self.world: dict[tuple[str, int], Call] = {}
        self.kept: dict[tuple[str, int], Call] = {}
        self.ran: list[Call] = []
        self.gate = asyncio.Semaphore(0)
        self.calls: list[Call] = []
        self.numbers, self.rounds = itertools.count(10), itertools.count()
        self.said: list[Report] = []
        self.lines = self.idle = 0
        self.model: Model | None = None

    def moves(self) -> Iterator[str]:
        if self.model is None:
            yield "enter"
            return
        yield from ("call", "call", "fail_with_other_arguments", "end_the_turn")
        if self.calls:
            yield from [*["again"] * 5, *["go_round"] * 4, "change", "work", "at_once", "at_once", "in_one_iteration"]

    def check(self) -> None:
        assert self.model is not None
        assert self.said == self.model.said
        assert self.lines == self.model.lines, "a line for each streak"
        assert Counter(self.session.get_metrics()["loops"]) == self.model.acted

    # -- the moves ---------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Begin the run."""
        policy = self.choose("policy", POLICIES)
        decision = self.choose("decision", (None, "notice", "short_circuit"))
        self.way = self.choose("way", ("text", "tree", "uncached", "sync"))
        self.tools = {name: made(name, self.way, self.world, self.ran, self.gate) for name in set(TOOLS)}
        given = LoopPolicy(max_execution_depth=None, **policy)
        self.model = Model(
            {check: getattr(given, check) or NEVER for check in CHECKS}, decision, self.way != "uncached"
        )
        self.pauses = "new_turn_after" in policy

        def on_loop(loop: AgentLoopDetectedError) -> Any:
            on_notice(loop)
            return decision

        def on_notice(loop: AgentLoopDetectedError) -> None:
            last = loop.last.removeprefix("{'answer': [").removesuffix("]}")
            self.said.append(Report(loop.kind, loop.tool, loop.count, loop.calls, last, loop.level))

        def hear(record: logging.LogRecord) -> bool:
            self.lines += record.agent_cache_event == "loop"  # type: ignore[attr-defined] # an extra field
            return True

        session = AgentCacheSession(on_loop=on_loop, on_notice=on_notice, loop_policy=given)
        self.session = self.exits.enter_context(session)
        logger = logging.getLogger("agent_cache")
        self.exits.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.INFO)  # so that notices are heard as well, which are no such lines
        logger.addFilter(hear)
        self.exits.callback(logger.removeFilter, hear)

    def end_the_turn(self) -> None:
        """Let the user speak, or time pass."""
        assert self.model is not None
        is_said, seconds = self.choose("is said", (True, False, False)), self.choose("seconds", (PAUSE / 2, PAUSE, 61))
        if is_said:
            self.session.new_turn()
        self.clock.advance(seconds)
        self.idle += seconds
        if is_said or (self.pauses and self.idle > PAUSE):
            self.model.end_epoch()

    def call(self) -> None:
        """Call anything."""
        self.go([self.any_call()])

    def any_call(self) -> Call:
        outcome, fails = self.choose("outcome", ("same", "same", "another")), self.choose("fails", (False, False, True))
        return Call(self.choose("tool", TOOLS), self.choose("argument", (0, 1, 2)), outcome, fails)

    def again(self) -> None:
        """Make the same call again, a few times."""
        self.go(*[[self.choose("which", self.calls[-3:])]] * self.choose("times", (1, 2, 3)))

    def go_round(self) -> None:
        """Make the last calls again."""
        self.go(*[[call] for call in self.calls[-self.choose("period", (2, 3, 4)) :]] * self.choose("rounds", (1, 2)))

    def change(self) -> None:
        """Make the last call again: it gives something else."""
        outcome = self.choose("outcome", ("same", "another", "third"))
        self.go([self.calls[-1]._replace(outcome=outcome)])

    def work(self) -> None:
        """Make the last calls again and again, with something new between the rounds."""
        calls, fails = self.calls[-self.choose("period", (1, 1, 3, 5)) :], self.choose("fails", (False, False, True))
        for _ in range(self.choose("times", (1, 2, 4))):
            self.go([Call("list", next(self.numbers), "new", fails)], *[[call] for call in calls])

    def fail_with_other_arguments(self) -> None:
        """Meet one error with several arguments, in turn or at once."""
        tool = self.choose("tool", ("get", "add"))
        calls = [Call(tool, next(self.numbers), "down", fails=True) for _ in range(self.choose("times", (1, 2, 4)))]
        self.go(*([calls] if self.choose("at once", (True, False)) else [[call] for call in calls]))

    def at_once(self) -> None:
        """Make several calls at once."""
        calls = [self.choose("which", (*self.calls[-2:], self.any_call()))]
        calls += [self.choose("more", (calls[0], calls[0], self.any_call())) for _ in range(2)]
        of_one = {call[:2]: call for call in calls}
        self.go([of_one[call[:2]] for call in calls])

    def in_one_iteration(self) -> None:
        """Make the same call several times, without giving way to another task."""
        self.go(*[[self.calls[-1]]] * 3, pause=False)

    def go(self, *batches: list[Call], pause: bool = True) -> None:
        """Make calls, and have the model make them. Those of a batch are made at once.

        They overlap, and end in one iteration of the event loop or each in one of its own; or they do not, and each
        runs in that iteration.
        """
        hows = ("together", "one by one", "through")[2 * (len(batches[0]) == 1 or self.way == "sync") :]
        how = self.choose("how", hows)

        async def run() -> None:
            for calls in batches:
                await self.make_batch(calls, how)
                if pause:
                    await asyncio.sleep(0)

        self.loop.run_until_complete(run())

    async def make_batch(self, calls: list[Call], how: str) -> None:
        assert self.model is not None
        if any(call.tool != "off" for call in calls):
            self.idle = 0
        wanted: list[object] = []
        tasks: list[Any] = []
        self.ran.clear()
        round_, runs = next(self.rounds), list[Call]()
        overlaps = how != "through"
        for step in ("begin", "end") if overlaps else ("both",):
            for at, call in enumerate(calls):
                cached = self.kept.get(call[:2]) if step != "end" else None
                is_hit = cached == call and not overlaps
                if step != "end":
                    self.world[call[:2]] = call
                    wanted.append(None if is_hit else self.model.admit(call, cached))
                    tasks.append(self.outcome(call, is_fresh=overlaps or cached not in (None, call)))
                if step != "begin" and wanted[at] is None:
                    runs += [] if is_hit else [call]
                    wanted[at] = self.model.end(call, round_, overlaps=overlaps) or call
                    if not call.fails and call.tool not in WRITES and self.way != "uncached":
                        self.kept[call[:2]] = call
        if len(calls) == 1:
            self.gate.release()
            given = [await tasks[0]]
        else:
            tasks = list(map(asyncio.ensure_future, tasks))
            for _ in range(5 * overlaps):
                await asyncio.sleep(0)
            for _ in calls:
                self.gate.release()
                for _ in range(5 * (how == "one by one")):
                    await asyncio.sleep(0)
            given = await asyncio.gather(*tasks)
        while not self.gate.locked():
            await self.gate.acquire()
        self.calls += calls
        assert self.ran == runs
        if len(calls) == 1 or self.model.decision != "short_circuit":  # Refreshes at once need not be stored.
            outcomes = [(one.outcome, one.fails) if isinstance(one, Call) else (one, False) for one in wanted]
            assert given == outcomes

    async def outcome(self, call: Call, *, is_fresh: bool) -> tuple[str, bool]:
        """What a call gives, and whether that is an error; of a report its kind, and "a text" for one."""
        tool = self.tools[call.tool]
        try:
            given = (tool.fresh if is_fresh and call.tool not in WRITES else tool)(call.argument)
            given = given if self.way == "sync" else await given
        except AgentLoopDetectedError as loop:
            return loop.kind, False
        except LookupError as error:
            return str(error), True
        given = given["answer"][0] if type(given) is dict else given
        return "a text" if " " in given else given, False


globals().update(searches(Guarded, 50, 300))
