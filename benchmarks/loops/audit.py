"""Whether a session has skipped a write or invented an answer, judged by what the tools themselves have done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from agent_cache import AgentLoopDetectedError

Identity: TypeAlias = tuple[str, str]


class Asked(Protocol):
    """A call that was made: equal `identity` for equal arguments of one tool."""

    @property
    def tool(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def is_write(self) -> bool: ...


@dataclass(slots=True)
class Ledger:
    """What the tools' own bodies have given.

    Attributes:
        latest: the last answer to each call, which is what a cache may have of it.
        given: answers in the present round.
        runs: how often each call has run in the present round, failures included.
    """

    latest: dict[Identity, Any] = field(default_factory=dict)
    given: dict[Identity, list[Any]] = field(default_factory=dict)
    runs: Counter[Identity] = field(default_factory=Counter)

    def ran(self, call: Identity) -> None:
        self.runs[call] += 1

    def gave(self, call: Identity, answer: Any) -> None:
        self.latest[call] = answer
        self.given.setdefault(call, []).append(answer)

    def start_run(self) -> None:
        """Nothing is cached, so that nothing may be answered without a run."""
        self.latest.clear()
        self.start_round()

    def start_round(self) -> None:
        """Forget who ran in the last round, not what was answered."""
        self.given.clear()
        self.runs.clear()


@dataclass(slots=True)
class Audit:
    """Counts over many rounds of calls.

    Attributes:
        refused: calls that got `AgentLoopDetectedError`.
        repeated: reads that were answered, but not by a run of their own.
        skipped: writes that neither ran nor raised; 0, or the agent believes what never happened.
        invented: answers that no run of exactly this call has given: in this round if it ran, else the last before;
            0 likewise.
    """

    calls: int = 0
    refused: int = 0
    repeated: int = 0
    skipped: int = 0
    invented: int = 0

    def check(self, asked: Sequence[Asked], got: Sequence[Any], ledger: Ledger) -> None:
        """Judge one round: what was asked at once, and what each got, exceptions among it."""
        answered: Counter[Identity] = Counter()
        for call, answer in zip(asked, got, strict=True):
            self.calls += 1
            if isinstance(answer, BaseException):
                self.refused += isinstance(answer, AgentLoopDetectedError)
                continue
            identity = call.tool, call.identity
            if call.is_write:
                answered[identity] += 1
            elif identity not in ledger.runs:
                self.repeated += 1
            self.invented += not _is_one_of(answer, ledger, identity)
        self.skipped += sum(max(0, count - ledger.runs[identity]) for identity, count in answered.items())

    def add(self, other: Audit) -> None:
        self.calls += other.calls
        self.refused += other.refused
        self.repeated += other.repeated
        self.skipped += other.skipped
        self.invented += other.invented


def _is_one_of(answer: Any, ledger: Ledger, identity: Identity) -> bool:
    candidates: Iterable[Any] = ledger.given.get(identity) or (
        [ledger.latest[identity]] if identity in ledger.latest else []
    )
    return any(type(one) is type(answer) and one == answer for one in candidates)
