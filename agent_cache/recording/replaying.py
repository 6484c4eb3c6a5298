"""The answers of a tape: recorded calls that answer those of a run, and where the run differs from them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Any

import msgspec

from agent_cache.errors import CassetteError, DivergenceError, ReplayExhausted
from agent_cache.recording.functions import ActiveCall
from agent_cache.recording.lanes import Lanes, Turns, checkpoint, wait_for_cancellation
from agent_cache.recording.match import ADVICE, Matcher, call_data, described, missing
from agent_cache.recording.outcomes import check_outcome, read_value
from agent_cache.recording.prices import Savings, model_calls, savings_of

_LOG = logging.getLogger("agent_cache")

_MAX_DIVERGENCES = 1000
_PATIENCE = 5.0
"""Seconds that a replay may be slower than the recorded run before a call that should be cancelled gives up waiting."""
_OPEN_ENDED = frozenset({"stream", "cancelled", "unfinished"})
"""Outcomes of calls that end by what their caller does."""


class Replaying:
    """A run whose calls a recording may answer.

    Args:
        answers: the recorded calls; None if there are none.
        strict: whether their order counts, and each must be made.

    Attributes:
        answers: as given.
        is_strict: likewise.
        cursor: how many calls were answered.
        divergences: where the run differs from the recording, in order: ``{"call_id", "expected", "actual"}``, as in
            `DivergenceError`.
        error: the first of these errors; it is raised again at the end, in case something has swallowed it.
        lanes: tasks and contexts of the run.
    """

    def __init__(self, answers: Matcher | None, *, strict: bool) -> None:
        self.answers = answers
        self.is_strict = strict
        self.lanes = Lanes()
        self.cursor = 0
        self.divergences: list[dict[str, Any]] = []
        self.error: CassetteError | None = None
        self._last: dict[tuple[int, int, int], int] = {}  # call, by parent, lane of the run and of the recording
        self._turns = Turns()
        self._answered: set[int] = set()
        self._began = time.perf_counter()
        if answers is not None and answers.cassette.is_partial:
            _LOG.warning("%s was left by a recording that was killed; calls may be missing", answers.cassette.path)

    @property
    def remaining(self) -> int:
        """How many recorded calls were neither answered nor enclosed by one that was."""
        return 0 if self.answers is None else self.answers.remaining

    @property
    def savings(self) -> Savings:
        """Model calls that were not made, because they, or the calls that enclose them, were answered so far.

        Their prices need `genai-prices` (``pip install "agent-cache[prices]"``).
        """
        answers = self.answers
        if answers is None:
            return Savings()

        def is_answered(index: int) -> bool:
            while index >= 0 and index not in self._answered:
                index = answers.parent(index)
            return index >= 0

        chosen = filter(is_answered, answers.outline.of_models)
        return savings_of(model_calls(answers.cassette.steps, chosen, answers.parent), answers.cassette.recorded_at)

    # Answers

    def take(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        """Answer a call with the recorded one at this index."""
        call.index = index
        try:
            call.recorded = answers.cassette.steps[index]
            outcome = call.recorded.outcome
            if len(outcome) > 1 or "value" not in outcome:
                check_outcome(outcome)
        except CassetteError as error:  # loading a cassette does not read the outcomes
            raise self.latch(error) from error.__cause__
        except msgspec.ValidationError as error:
            raise self.broken(index, f"has a malformed outcome: {error}") from error
        if self.is_strict:
            self._check_order(call, index, answers)
        answers.cover(index)
        self._answered.add(index)
        self.cursor += 1

    def pass_by(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        """Note a call that runs although it was recorded."""
        call.index = index
        answers.cover_alone(index)

    def read(self, call: ActiveCall, outcome: dict[str, Any], *, is_chunk: bool = False) -> Any:
        """A recorded value or chunk, as the annotation of the function describes it."""
        if "value" in outcome and "made" not in outcome:
            return outcome["value"]
        schema = call.function.chunk_schema if is_chunk else call.schema
        try:
            return read_value(outcome, schema, self.source_path, 0 if call.index is None else call.index + 2)
        except CassetteError as error:
            raise self.latch(error) from error.__cause__

    def turn(self, call: ActiveCall) -> Awaitable[None]:
        """Let other tasks run, as the recorded call did, and calls that had ended earlier be answered earlier."""
        answers = self.answers
        assert answers is not None
        assert call.index is not None
        assert call.recorded is not None
        if answers.is_concurrent and _OPEN_ENDED.isdisjoint(call.recorded.outcome):
            rank = answers.rank_of_end(call.index)
            return self._turns.take(rank, is_next=answers.has_made_all_before(rank))
        return checkpoint()

    async def wait_until_cancelled(self, call: ActiveCall, *, is_for_ever: bool = False) -> None:
        """Wait until this task is cancelled, as it was when the call was recorded: by a timeout of the caller, say.

        The wait ends `_PATIENCE` after the recorded run had come to this point. A call that had not ended when the
        recording did may wait for ever.
        """
        recorded = call.recorded
        assert recorded is not None
        ended = (recorded.started_ms + recorded.duration_ms) / 1000 - (time.perf_counter() - self._began)
        is_for_ever = is_for_ever or "unfinished" in recorded.outcome
        await wait_for_cancellation(None if is_for_ever else max(0.0, ended) + _PATIENCE)
        text = (
            f"{described(call.function.name, call.arguments)} was cancelled when it was recorded, so there is no "
            "answer, and now nobody has cancelled it"
        )
        raise self.diverged(-1 if call.index is None else call.index, call_data(call), f"{text}\n{ADVICE}")

    # Errors

    @property
    def source_path(self) -> str:
        """The path of the recording that answers."""
        return "" if self.answers is None else self.answers.cassette.path

    def latch(self, error: CassetteError) -> CassetteError:
        """Keep the first error, to raise it again at the end."""
        self.error = self.error or error
        return error

    def broken(self, index: int | None, reason: str) -> CassetteError:
        """The error for a recorded call that cannot be replayed. It is latched."""
        return self.latch(CassetteError(reason, self.source_path, (index or 0) + 2))

    def diverged(
        self,
        index: int,
        actual: dict[str, Any] | None,
        text: str,
        kind: type[DivergenceError | ReplayExhausted] = DivergenceError,
    ) -> CassetteError:
        """The error for a place where the run differs from the recording. It is noted, and latched."""
        number, expected = None, None
        if index >= 0 and self.answers is not None:
            call = self.answers.shown(index)
            number, expected = call.id, {"name": call.name, "arguments": call.arguments}
        if len(self.divergences) < _MAX_DIVERGENCES:
            self.divergences.append({"call_id": number, "expected": expected, "actual": actual})
        return self.latch(kind(number, expected, actual, text, self.source_path))

    def missed(self, call: ActiveCall, answers: Matcher, rule: str = "") -> CassetteError:
        """The error for a call that has no recorded answer, or may not have it by this rule."""
        index, text, kind = missing(answers, call, rule)
        return self.diverged(index, call_data(call), text, kind)

    def _check_order(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        """Calls of one task come in the order in which one task had made them.

        The order between tasks does not count, nor which of them takes which work of a queue, nor calls that several
        tasks made alike.
        """
        if not answers.is_of_one_task(index):
            return
        key = answers.parent(index), call.lane, answers.outline.lanes[index]
        last = self._last.setdefault(key, index)
        if answers.rank_of_start(last) <= answers.rank_of_start(index):
            self._last[key] = index
            return
        later, first = answers.shown(last), answers.shown(index)
        text = (
            f"{described(later.name, later.arguments)} was called too early: call {first.id}, "
            f"{described(first.name, first.arguments)}, came before it in the same task when this was recorded"
        )
        raise self.diverged(index, {"name": later.name, "arguments": later.arguments}, text)

    # The end

    def check_finished(self, answers: Matcher) -> None:
        """Check the replay at its end."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.is_strict and answers.remaining:
            index = next(answers.left_over())
            call = answers.shown(index)
            text = (
                f"{answers.remaining} recorded calls were not made. The first is call {call.id}, "
                f"{described(call.name, call.arguments)}"
            )
            raise self.diverged(index, None, text)
