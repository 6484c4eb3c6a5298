"""For how long local copies are trusted: one process, the connection of its subscription, and a clock.

Both directions of the connection keep order and may take any time, as over a network that stalls, so a process that is
stopped for a while is in here, too. A write elsewhere returns once; its message goes the way of all others. What the
process has kept must not be served later than `BOUND` after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.properties.checker import Model, Step
from tests.properties.fleet.rules import WHOLE, Rules

BOUND = 2
END = 7
NEWS = "news"


class State(NamedTuple):
    now: int = 0
    returned: int | None = None  # when the write did
    copy: int | None = 0  # the version that is kept locally
    trusted_until: int = 0
    pings: tuple[int, ...] = ()  # on their way: when each was sent
    answers: tuple[int | str, ...] = ()  # on their way back: PONGs by when their PING was sent, and news
    is_subscribed: bool = True
    losses: int = 1
    fills: int = 1


class Trust:
    """The steps of the subscription under a set of rules."""

    def __init__(self, rules: Rules = WHOLE) -> None:
        self.rules = rules

    def model(self) -> Model[State]:
        """For the checker."""
        return Model(State(), self.steps, self.broken)

    def broken(self, state: State) -> str | None:
        """Whether a read that starts now is served what it must not be."""
        is_served = state.copy == 0 and state.now < state.trusted_until
        if is_served and state.returned is not None and state.now - state.returned > BOUND:
            return f"a read at {state.now} is served what a write replaced at {state.returned}, {BOUND} is the bound"
        return None

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Everything that may happen next."""
        now = state.now
        if now < END:
            yield "time passes", state._replace(now=now + 1)
        if state.returned is None:
            news = (NEWS,) if state.is_subscribed else ()
            yield f"a write returns at {now}", state._replace(returned=now, answers=state.answers + news)
        if not state.pings and not any(answer != NEWS for answer in state.answers):
            yield f"PING at {now}", state._replace(pings=(now,))
        if state.pings and state.is_subscribed:
            answered = state._replace(pings=state.pings[1:], answers=(*state.answers, state.pings[0]))
            yield "the server answers", answered
        if state.answers:
            yield from self._heard(state)
        if state.copy is None and state.fills:
            yield "a read fills the copy", state._replace(copy=int(state.returned is not None), fills=0)
        if state.is_subscribed and state.losses:
            lost = state._replace(is_subscribed=False, losses=0, answers=())
            yield "the subscription BREAKS, unnoticed", lost
        if not state.is_subscribed:
            copy = None if self.rules.drops_on_resubscribe else state.copy
            again = state._replace(is_subscribed=True, pings=(), answers=(), copy=copy, trusted_until=0)
            yield "the process subscribes again", again

    def _heard(self, state: State) -> Iterator[Step[State]]:
        first, *rest = state.answers
        heard = state._replace(answers=tuple(rest))
        if isinstance(first, str):
            yield "the news arrive", heard._replace(copy=None)
        else:
            since = first if self.rules.trusts_from_sending else state.now
            until = max(state.trusted_until, since + BOUND)
            yield f"the PONG of {first} arrives at {state.now}", heard._replace(trusted_until=until)
