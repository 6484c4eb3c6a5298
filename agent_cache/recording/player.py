"""`Player`: answers the calls of a run from a recording, and notices where they differ."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from agent_cache.errors import CassetteError, DivergenceError, ReplayExhausted
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.format import RecordedCall
from agent_cache.recording.frame import Frame
from agent_cache.recording.identity import ROOT_PLACE
from agent_cache.recording.matching import Matcher
from agent_cache.recording.nearest import described, differences, nearest_to
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.shapes import check_outcome

__all__ = ["Player"]

_LOG = logging.getLogger("agent_cache")


class Player:
    """A recording while it is replayed.

    Attributes:
        cassette: the recording.
        cursor: how many calls were answered from it.
        divergences: what the run did that the recording does not have, in order: ``{"index", "expected", "actual"}``.
        error: the first of them, as it was raised; raised again at the end, in case something has swallowed it.
    """

    def __init__(self, cassette: Cassette, redaction: Redaction, *, strict: bool) -> None:
        self.cassette = cassette
        if cassette.is_partial:
            _LOG.warning("%s was left by a recording that was killed; calls may be missing", cassette.path)
        self.matcher = Matcher(cassette, redaction)
        self.strict = strict
        self.cursor = 0
        self.divergences: list[dict[str, Any]] = []
        self.error: CassetteError | None = None
        self._began = time.perf_counter()

    @property
    def remaining(self) -> int:
        """How many recorded calls were neither answered nor enclosed by one that was."""
        return self.matcher.remaining

    def find(self, frame: Frame) -> int | None:
        """Index of the recorded call in the same place."""
        if self.matcher.has_foreign:
            self.matcher.adopt(frame.subject)
        return self.matcher.find(frame.place)

    def take(self, frame: Frame, index: int) -> None:
        """Answer a call with that recorded one."""
        frame.index = index
        try:
            frame.recorded = self.cassette.steps[index]
            outcome = frame.recorded.outcome
            if len(outcome) > 1 or "value" not in outcome:
                check_outcome(outcome)
        except CassetteError as error:  # a load does not read answers
            raise self.latch(error) from error.__cause__
        except msgspec.ValidationError as error:
            reason = f"has an outcome that is none: {error}"
            raise self.latch(CassetteError(reason, self.cassette.path, index + 2)) from error
        if self.strict:
            self._check_order(frame, index)
        self.matcher.cover(index)
        self.cursor += 1

    def end(self, frame: Frame) -> None:
        """A call that was answered has ended."""
        if frame.index is not None:
            self.matcher.end(frame.index)

    def miss(self, frame: Frame, rule: str = "") -> CassetteError:
        """The error for a call that is not recorded, with the nearest one that is."""
        enclosing = ROOT_PLACE if frame.parent is None else frame.parent.place
        is_known = not rule and self.matcher.knows(enclosing, frame.digest)
        actual = _shown(frame)
        if is_known:
            times = frame.parent.counts[frame.digest] if frame.parent is not None else frame.tape.counts[frame.digest]
            index = self.matcher.find_last(enclosing, frame.digest)
            expected = self._expected(index)
            call = described(frame.subject.name, frame.arguments)
            text = f"{call} was recorded {times - 1} times, and was called once more"
            return self._noted(ReplayExhausted(index, expected, actual, f"{text}. {_ADVICE}", self.cassette.path))
        nearest = nearest_to(self.matcher, frame)
        index, expected = (-1, None) if nearest is None else (nearest, self._expected(nearest))
        text = rule or f"{described(frame.subject.name, frame.arguments)} was not recorded{_where(frame)}"
        if nearest is None:
            text += f". No call of {frame.subject.name} was recorded"
        elif not rule:
            state = "played already" if self.matcher.is_covered(nearest) else "not played yet"
            text += f". Nearest is step {nearest}, {state}:\n{differences(self.cassette.steps[nearest], frame)}"
        return self._noted(DivergenceError(index, expected, actual, f"{text}\n{_ADVICE}", self.cassette.path))

    def time_left(self, call: RecordedCall) -> float:
        """Seconds until the recorded run was at the end of this call, and some more: a replay is not slower by much."""
        return max(0.0, (call.started_ms + call.duration_ms) / 1000 - (time.perf_counter() - self._began)) + _PATIENCE

    def not_cancelled(self, frame: Frame) -> DivergenceError | ReplayExhausted:
        """The error for a call that was cancelled when it was recorded, and is still awaited."""
        index = -1 if frame.index is None else frame.index
        call = described(frame.subject.name, frame.arguments)
        text = f"{call} was cancelled when it was recorded, so there is no answer, and now nobody has cancelled it"
        error = DivergenceError(index, self._expected(index), _shown(frame), f"{text}\n{_ADVICE}", self.cassette.path)
        return self._noted(error)

    def check_finished(self) -> None:
        """Raise what was swallowed; in a strict replay also if anything recorded was not called.

        Raises:
            CassetteError: if so.
        """
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.strict and self.matcher.remaining:
            index = next(iter(self.matcher.left_over()))
            call = self.cassette.steps[index]
            text = (
                f"{self.matcher.remaining} recorded calls were not made. The first is step {index}, "
                f"{described(call.name, call.arguments)}"
            )
            raise self._noted(DivergenceError(index, self._expected(index), None, text, self.cassette.path))

    def latch(self, error: CassetteError) -> CassetteError:
        """Keep the first error, to raise it again at the end."""
        self.error = self.error or error
        return error

    def _check_order(self, frame: Frame, index: int) -> None:
        late = self.matcher.late(index)
        if late is None or late == index:
            return
        call = self.cassette.steps[late]
        text = (
            f"{described(frame.subject.name, frame.arguments)} was called too early: step {late}, "
            f"{described(call.name, call.arguments)}, had ended before it was called when this was recorded"
        )
        raise self._noted(DivergenceError(late, self._expected(late), _shown(frame), text, self.cassette.path))

    def _expected(self, index: int) -> dict[str, Any] | None:
        if index < 0:
            return None
        call = self.cassette.steps[index]
        return {"name": call.name, "arguments": call.arguments}

    def _noted(self, error: DivergenceError | ReplayExhausted) -> DivergenceError | ReplayExhausted:
        if len(self.divergences) < _MOST:
            self.divergences.append({"index": error.step_index, "expected": error.expected, "actual": error.actual})
        self.latch(error)
        return error


_MOST = 1000
_PATIENCE = 5.0
"""Seconds that a replay may be slower than what was recorded, before a call that should be cancelled gives up."""
_ADVICE = 'If the run has changed on purpose, record it again, or record what is new with mode="new_episodes".'


def _shown(frame: Frame) -> dict[str, Any]:
    return {"name": frame.subject.name, "arguments": frame.arguments}


def _where(frame: Frame) -> str:
    return "" if frame.parent is None else f" inside {described(frame.parent.subject.name, frame.parent.arguments)}"
