"""For how long a server that stops and goes on, again and again, keeps a write from being seen.

A write could not be announced, and returns; or it was, and does not wait for its commit, which never lands. A
server that is stopped loses nothing of what was sent over connections that it has accepted: when it goes on, it
takes what has arrived at all of them, in any order, and only then what has come meanwhile: one *turn*. It may be
stopped in the middle of one, and after it, for any time. What it answers keeps its order on each connection and may
take any time. One reading process has three of them: for heartbeats, for its subscription, and for lookups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.properties.checker import Model, Step
from tests.properties.fleet.rules import WHOLE, Rules

BOUND = 1
END = 4
NEVER = -9
NEWS = "news"


class Request(NamedTuple):
    """Something on its way to the server, or back.

    Attributes:
        since: when it was sent; of a PING: from when it proves something.
        at: "sent", "in the turn" or "answered".
        version: that a lookup has found.
        has_heard: a message has come since a lookup was sent.
    """

    since: int
    at: str = "sent"
    version: int = 0
    has_heard: bool = False


class State(NamedTuple):
    now: int = 0
    returned: int | None = None  # when the write did
    begin: str = ""  # "sent", "in the turn", "landed": from then on what it will replace is held, and not found
    commit: str = ""  # "kept" by the writer alone, "sent", "in the turn", "landed"
    beat: Request | None = None
    heard: int = NEVER  # when the latest answered heartbeat was sent
    ping: Request | None = None
    answers: tuple[int | str, ...] = ()  # of the subscription, in order: PONGs by what they prove, and news
    proven: int = NEVER
    lookup: Request | None = None
    copy: int | None = 0  # the version that is kept locally
    broken: str | None = None


class Stutter:
    """The steps of a server, of a write, and of a process that reads, under a set of rules.

    Args:
        is_announced: the write has a begin that was executed before it returns. Else it has none.
    """

    def __init__(self, rules: Rules = WHOLE, *, is_announced: bool = False) -> None:
        self.rules = rules
        self.is_announced = is_announced

    def model(self) -> Model[State]:
        """For the checker."""
        return Model(State(), self.steps, self.broken)

    def broken(self, state: State) -> str | None:
        """Whether a read that starts now is served what it must not be, or one was."""
        is_trusted = state.now < min(state.proven, state.heard) + BOUND
        if state.copy == 0 and is_trusted and _is_too_late(state, state.now):
            return f"a read at {state.now} is served what a write replaced at {state.returned}, {BOUND} is the bound"
        return state.broken

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Everything that may happen next."""
        now = state.now
        if now < END:
            yield "time passes", state._replace(now=now + 1)
        if self.is_announced and not state.begin:
            yield "a write announces itself", state._replace(begin="sent")
        waits = self.is_announced and self.rules.begins and state.begin != "landed"
        if state.returned is None and not waits:
            commit = "sent" if self.rules.hands_over and not self.is_announced else "kept"
            yield f"a write returns at {now}", state._replace(returned=now, commit=commit)
        if state.commit == "kept" and not self.is_announced:
            yield "the write is sent at last", state._replace(commit="sent")
        yield from self._asks(state)
        yield from _turn(state)
        yield from _hears(state)

    def _asks(self, state: State) -> Iterator[Step[State]]:
        now, heard = state.now, state.heard
        if state.beat is None:
            yield f"heartbeat at {now}", state._replace(beat=Request(now))
        is_waiting = state.ping is not None or any(answer != NEWS for answer in state.answers)
        if heard > NEVER and not is_waiting:
            since = heard if self.rules.trusts_from_heartbeat else now
            yield f"PING at {now}", state._replace(ping=Request(since))
        may_ask = now < heard + BOUND or not self.rules.lookups_follow_heartbeats
        if state.lookup is None and state.returned is not None and may_ask:
            yield f"a lookup at {now}", state._replace(lookup=Request(now))


def _is_too_late(state: State, start: int) -> bool:
    return state.returned is not None and start - state.returned > BOUND


def _turn(state: State) -> Iterator[Step[State]]:
    """The server goes on, or takes one thing more of what it has found."""
    beat, ping, lookup = state.beat, state.ping, state.lookup
    places = [state.begin, state.commit, *(each.at for each in (beat, ping, lookup) if each is not None)]
    if "in the turn" not in places and "sent" in places:
        commit = "in the turn" if state.commit == "sent" else state.commit
        begin = "in the turn" if state.begin == "sent" else state.begin
        taken = state._replace(begin=begin, commit=commit, beat=_taken(beat), ping=_taken(ping), lookup=_taken(lookup))
        yield "the server GOES ON", taken
    if state.begin == "in the turn":
        yield "the begin lands", state._replace(begin="landed", answers=(*state.answers, NEWS))
    if state.commit == "in the turn":
        yield "the commit lands", state._replace(commit="landed", answers=(*state.answers, NEWS))
    if beat is not None and beat.at == "in the turn":
        yield "the heartbeat is answered", state._replace(beat=beat._replace(at="answered"))
    if ping is not None and ping.at == "in the turn":
        yield "the PING is answered", state._replace(ping=None, answers=(*state.answers, ping.since))
    if lookup is not None and lookup.at == "in the turn":
        found = lookup._replace(at="answered", version=int("landed" in (state.begin, state.commit)))
        yield f"the lookup finds version {found.version}", state._replace(lookup=found)


def _taken(request: Request | None) -> Request | None:
    return request._replace(at="in the turn") if request is not None and request.at == "sent" else request


def _hears(state: State) -> Iterator[Step[State]]:
    """An answer or a message arrives at the process that reads."""
    beat, lookup = state.beat, state.lookup
    if beat is not None and beat.at == "answered":
        yield f"the heartbeat of {beat.since} is heard", state._replace(beat=None, heard=max(state.heard, beat.since))
    if state.answers:
        first, *rest = state.answers
        heard = state._replace(answers=tuple(rest))
        if isinstance(first, str):
            told = lookup and lookup._replace(has_heard=True)
            yield "the news arrive", heard._replace(copy=None, lookup=told)
        else:
            yield f"a PONG proves {first}", heard._replace(proven=max(state.proven, first))
    if lookup is not None and lookup.at == "answered":
        served = state._replace(lookup=None, copy=state.copy if lookup.has_heard else lookup.version)
        if lookup.version == 0 and _is_too_late(state, lookup.since):
            late = f"a lookup at {lookup.since} finds what a write replaced at {state.returned}, {BOUND} is the bound"
            served = served._replace(broken=late)
        yield "the lookup's answer arrives", served
