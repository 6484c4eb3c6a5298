"""A model of a server that stops and goes on, again and again, a write that it does not answer, and one process that
reads.

A server that is stopped loses nothing of what was sent over connections that it has accepted. When it goes on it takes
what has arrived over all of them, in any order, and only then what comes later: one *turn*. It may be stopped again at
any moment, and each answer may take any time. The promise: what the write has replaced is served for no longer than the
bound after it has returned.

`WITHOUT` are the parts that can be taken out. Each leads to an answer that is too old.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.properties.checker import Model, Step

__all__ = ["WITHOUT", "State", "model"]

BOUND = 1
END = 4
NEVER = -9
WITHOUT = ("a write is on its way when it returns", "copies count from the question before", "lookups follow an answer")


class Request(NamedTuple):
    """Something on its way to the server, or back: `at` is "sent", "in the turn" or "answered".

    Attributes:
        since: when it was sent.
        before: when the question was sent that had been answered by then.
        is_told: whether the write had landed when it was executed.
    """

    since: int
    before: int = NEVER
    at: str = "sent"
    is_told: bool = False


class State(NamedTuple):
    """One moment.

    Attributes:
        returned: when the write has.
        commit: "kept" by the writer alone, "sent", "in the turn", "landed".
        question, lookup: those that are under way.
        answered: when the latest question was sent that was answered; `proven`: from when copies count.
        has_copy: whether there is a copy of the old value.
        late: whether a lookup has served it too late.
    """

    now: int = 0
    returned: int | None = None
    commit: str = ""
    question: Request | None = None
    lookup: Request | None = None
    answered: int = NEVER
    proven: int = NEVER
    has_copy: bool = True
    late: bool = False

    def is_too_late(self, start: int) -> bool:
        """Whether a read that starts then must not get the old value."""
        return self.returned is not None and start - self.returned > BOUND


def model(without: str = "") -> Model[State]:
    """The model, maybe without a part."""
    return Model(State(), lambda state: steps(state, without), broken)


def broken(state: State) -> str | None:
    """Whether a read that starts now is served what it must not be, or one was."""
    is_served = state.has_copy and state.now < state.proven + BOUND
    return "stale for longer than the bound" if state.late or (is_served and state.is_too_late(state.now)) else None


def steps(state: State, without: str) -> Iterator[Step[State]]:
    """All that may happen next."""
    now, question, lookup = state.now, state.question, state.lookup
    if now < END:
        yield "time passes", state._replace(now=now + 1)
    if state.returned is None:
        commit = "kept" if without == WITHOUT[0] else "sent"
        yield "the write returns", state._replace(returned=now, commit=commit)
    if state.commit == "kept":
        yield "the write is sent at last", state._replace(commit="sent")
    if question is None:
        yield "ask", state._replace(question=Request(now, state.answered))
    elif question.at == "answered":
        counts = question.since if without == WITHOUT[1] else question.before
        yield (
            "the answer arrives",
            state._replace(
                question=None,
                answered=max(state.answered, question.since),
                proven=max(state.proven, counts),
                has_copy=state.has_copy and not question.is_told,
            ),
        )
    if lookup is None:
        if now < state.answered + BOUND or without == WITHOUT[2]:
            yield "look up", state._replace(lookup=Request(now))
    elif lookup.at == "answered":
        is_late = not lookup.is_told and state.is_too_late(lookup.since)
        yield "the value arrives", state._replace(lookup=None, late=state.late or is_late)
    yield from _server(state)


def _server(state: State) -> Iterator[Step[State]]:
    """The server goes on, or takes one thing more of what it has found."""
    question, lookup, is_landed = state.question, state.lookup, state.commit == "landed"
    places = {state.commit, *(each.at for each in (question, lookup) if each is not None)}
    if "in the turn" not in places and "sent" in places:
        commit = "in the turn" if state.commit == "sent" else state.commit
        yield "the server goes on", state._replace(commit=commit, question=_taken(question), lookup=_taken(lookup))
    if state.commit == "in the turn":
        yield "the write lands", state._replace(commit="landed")
    if question is not None and question.at == "in the turn":
        yield "the question is answered", state._replace(question=question._replace(at="answered", is_told=is_landed))
    if lookup is not None and lookup.at == "in the turn":
        yield "the lookup is answered", state._replace(lookup=lookup._replace(at="answered", is_told=is_landed))


def _taken(request: Request | None) -> Request | None:
    return request._replace(at="in the turn") if request is not None and request.at == "sent" else request
