"""A model of the tier on a server: a process that writes, one that reads, messages that come late, and a failover.

Time is counted in steps of a third of the bound of staleness. The reader asks for the feed; an answer may arrive any
time later. What it knows is complete until three steps after it has *sent* the question. The promise: a value is served
for no longer than that after a write has ended.

`WITHOUT` are the parts that can be taken out. Each leads to an answer that is too old.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.properties.checker import Model, Step

__all__ = ["WITHOUT", "State", "model"]

BOUND = 3
END = 9

WITHOUT = (
    "complete from the sending",
    "copies are dropped by what is applied",
    "a gap is a loss",
    "the identity of the server",
    "an end to trust",
)


@dataclass(frozen=True, slots=True)
class State:
    """One moment.

    Attributes:
        now: the time; `written`: when the write has ended.
        truth: what is read.
        number, cell: of the server: its newest step, and the last that changed the entity.
        server: its identity. A failover to an older replica forgets the steps since the start.
        first: the oldest step that the stream still has.
        copy: the local copy; None without one.
        stored: value, version and identity in the server.
        applied, known: the number and the identity up to which the reader has applied the feed.
        until: up to when copies are trusted.
        asked: when the question was sent that is under way; -1 without one.
        answered: number and identity in the answer that is under way.
        age: how long ago the write had ended for which the last answer was too old.
    """

    now: int = 0
    written: int = -1
    truth: int = 0
    number: int = 1
    cell: int = 1
    server: int = 0
    first: int = 1
    copy: int | None = 0
    stored: tuple[int, int, int] | None = (0, 1, 0)
    applied: int = 1
    known: int = 0
    until: int = BOUND
    asked: int = -1
    answered: tuple[int, int, int] | None = None
    age: int = 0


def model(without: str = "") -> Model[State]:
    """The model, maybe without a part."""
    return Model(State(), lambda state: steps(state, without), broken)


def broken(state: State) -> str | None:
    """Whether an answer is older than the bound."""
    return "stale for longer than the bound" if state.age > BOUND else None


def steps(state: State, without: str) -> Iterator[Step[State]]:
    """All that may happen next."""
    if state.now < END:
        yield "time passes", replace(state, now=state.now + 1)
    if state.written < 0:
        number = state.number + 1
        yield "a write begins and ends", replace(state, truth=1, number=number, cell=number, written=state.now)
        # Another entity is written on the primary; a replica that does not know of it takes its place.
        if state.server == 0 and state.number == 1:
            yield "another step", replace(state, number=2)
    if state.written >= 0 and state.server == 0:
        yield "failover to an older replica", replace(state, number=1, cell=1, first=1, server=1)
        yield "the stream is cut short", replace(state, first=state.number + 1)
    # The feed
    if state.asked < 0:
        yield "ask", replace(state, asked=state.now, answered=None)
    elif state.answered is None:
        yield "answer", replace(state, answered=(state.number, state.server, state.first))
        yield "the question is lost", replace(state, asked=-1)
    else:
        yield "receive", _received(state, without)
        yield "the answer is lost", replace(state, asked=-1, answered=None)
    # Reads
    must = state.written
    age = state.now - must if must >= 0 else 0
    if state.copy is not None and (state.now < state.until or without == "an end to trust"):
        yield "hit", replace(state, age=age if state.copy < state.truth else 0)
    elif state.now < state.until:
        found = state.stored
        same = found is not None and (found[2] == state.server or without == "the identity of the server")
        if found is not None and same and found[1] == state.cell:
            yield "found", replace(state, age=age if found[0] < state.truth else 0)
        else:
            stored = (state.truth, state.cell, state.server)
            yield "load", replace(state, age=0, copy=state.truth, stored=stored)


def _received(state: State, without: str) -> State:
    assert state.answered is not None
    number, server, first = state.answered
    sent = state.now if without == "complete from the sending" else state.asked
    is_gap = number < state.applied or (number > state.applied and first > state.applied + 1)
    if without == "a gap is a loss":
        is_gap = False
    is_lost = is_gap or (server != state.known and without != "the identity of the server")
    # The messages between are lost with the rows, if nobody notices.
    is_told = number > state.applied and first <= state.applied + 1
    drops = (is_lost or is_told) and without != "copies are dropped by what is applied"
    return replace(
        state,
        copy=None if drops else state.copy,
        applied=number,
        known=server,
        until=max(state.until, sent + BOUND),
        asked=-1,
        answered=None,
    )
