"""The calls of a run while they are made, and the file that grows with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from agent_cache.errors import CassetteError
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import Header, RecordedCall, Trailer, line_of, now_text
from agent_cache.recording.functions import ActiveCall
from agent_cache.recording.match import Matcher
from agent_cache.recording.outcomes import decode, encode
from agent_cache.recording.partial_file import PartialFile
from agent_cache.recording.redaction import Redaction, redact_key
from agent_cache.values.compare import utf8_text

_LOG = logging.getLogger("agent_cache")


class CallLog:
    """The calls of a run while they are made: numbers each that starts, and makes the recorded call when it has ended.

    The tape calls it under its lock. A subclass keeps the calls (`keep`).
    """

    needs_identity = True

    def __init__(self, redaction: Redaction) -> None:
        self.is_closed, self._redaction = False, redaction
        self._began = time.perf_counter()
        self._last_time, self._next_id, self._last_id = 0, 1, 0
        self._open: dict[int, ActiveCall] = {}

    def start(self, call: ActiveCall) -> None:
        """Number a call that starts."""
        self._last_time = max(self._last_time + 1, int((time.perf_counter() - self._began) * 1e6))  # as in `now`
        call.id, call.after, call.started = self._next_id, self._last_id, self._last_time
        self._next_id += 1
        self._open[call.id] = call

    def now(self) -> int:
        """Microseconds since the beginning. No two are the same, so that they tell the order of starts and ends."""
        self._last_time = max(self._last_time + 1, int((time.perf_counter() - self._began) * 1e6))
        return self._last_time

    def end(self, call: ActiveCall, outcome: dict[str, Any], source: str, tags: list[str]) -> None:
        """Keep a call that has ended."""
        if not self.is_closed and self._open.pop(call.id, None) is not None:
            self.keep(self.recorded(call, outcome, source, tags))

    def recorded(
        self, call: ActiveCall, outcome: dict[str, Any], source: str = "", tags: Sequence[str] = ()
    ) -> RecordedCall:
        """A call with this outcome, as a line of a log has it."""
        function, parent, usage = call.function, call.parent, call.usage
        self._last_time = now = max(self._last_time + 1, int((time.perf_counter() - self._began) * 1e6))  # as in `now`
        if call.is_awaited:
            outcome["awaited"] = True
        if tags and not call.clean_tags.issuperset(tags):
            tags = redacted_tags(call, tags, self._redaction)
        counted: dict[str, Any] = {}
        if usage is not None:
            model = None if usage.model is None else self._redaction.labelled("model", usage.model)
            counted = {**usage.tokens.fields(), "model": model}
        return RecordedCall(
            id=call.id, parent=None if parent is None else parent.id, kind=function.kind, name=function.name,
            arguments=call.arguments, key=call.key, digest=call.digest.hex(), asker=call.asker, after=call.after,
            lane=call.lane, forked=call.forked, outcome=outcome, source=source, tags=sorted({*tags}),
            started_ms=call.started / 1000, duration_ms=(now - call.started) / 1000, **counted,
        )  # fmt: skip

    def keep(self, call: RecordedCall) -> None:
        """Keep a call that has ended, after those that had ended before it."""

    def repeat(self, call: ActiveCall, answers: Matcher) -> None:  # noqa: ARG002 - a cassette copies what it enclosed
        """A call has ended that was answered from an earlier recording."""
        self._open.pop(call.id, None)

    def keep_rest(self, answers: Matcher) -> None:
        """The run has ended; what is left in the earlier recording was not made."""

    def end_open_calls(self) -> None:
        """End the calls that have not ended, as unfinished."""
        for call in list(self._open.values()):
            outcome: dict[str, Any] = {"unfinished": True}
            if call.chunks is not None:
                outcome = call.written(call.stream_outcome, outcome, self._redaction)
            elif call.exchange is not None:
                outcome = call.written(call.exchange.unfinished, self._redaction)
            self.end(call, outcome, "", [])

    def finish(self, error: BaseException | None) -> None:  # noqa: ARG002 - a file has it
        """End the calls that have not ended, and close."""
        self.end_open_calls()
        self.is_closed = True

    def discard(self) -> None:
        """Close, and keep nothing more."""
        self.is_closed = True


def redacted_tags(call: ActiveCall, tags: Sequence[str], redaction: Redaction) -> Sequence[str]:
    """Tags without what redaction has removed from the arguments of their call."""
    if call.given is None and all(map(str.isascii, tags)) and not redaction.may_change(encode(tags)):
        return tags
    given = call.arguments if call.given is None else call.given
    return [redact_key(utf8_text(tag), given, call.arguments, redaction) for tag in tags]


class CassetteLog(CallLog):
    """The file of a recording while it grows.

    If the disk does not take a line, writing stops and the run goes on; `finish` raises the error.
    """

    def __init__(
        self, path: Path, model: str | None, redaction: Redaction, http: dict[str, Any] | None = None,
        forked_from: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(redaction)
        self.path, self._written = path, 0
        self._failure: OSError | None = None
        self._copied_ids: dict[int, int] = {}
        self._copied_lanes = 0
        model = None if model is None else redaction.labelled("model", model)
        header = Header(
            recorded_at=now_text(), model=model, redact=redaction.describe(), log=True,
            http=msgspec.UNSET if http is None else http,
            forked_from=msgspec.UNSET if forked_from is None else forked_from,
        )  # fmt: skip
        self._file = PartialFile(path)
        try:
            with self._file.reported():
                self._file.append(line_of(header))
        except CassetteError:
            self._file.discard()
            raise

    def keep(self, call: RecordedCall) -> None:
        """Write a call."""
        self._last_id = call.id
        self._written += 1
        if self._failure is None:
            try:
                self._file.append(encode(call) + b"\n")
            except OSError as error:
                self._failure = error
                _LOG.error("recording to %s stopped: %s; the run goes on", self.path, error)

    def repeat(self, call: ActiveCall, answers: Matcher) -> None:
        """Write a call again that was answered from the old recording, and the calls that it enclosed.

        They have the times that they had, as if the run had taken them now.
        """
        if self.is_closed or self._open.pop(call.id, None) is None or call.index is None:
            return
        recorded = call.recorded
        assert recorded is not None
        self._copied_ids[call.index] = call.id
        shift = call.started - round(recorded.started_ms * 1000)
        self._copy(answers.inside(call.index), shift, {recorded.lane: call.lane}, call.lane, answers)
        self._pass_time(call.started + round(recorded.duration_ms * 1000))
        self.keep(
            msgspec.structs.replace(
                recorded, form="", name=call.function.name, arguments=call.arguments, digest=call.digest.hex(),
                id=call.id, parent=None if call.parent is None else call.parent.id, after=call.after, lane=call.lane,
                forked=call.forked, started_ms=call.started / 1000, duration_ms=(self.now() - call.started) / 1000,
            )
        )  # fmt: skip

    def keep_rest(self, answers: Matcher) -> None:
        """Write the calls of the old recording that this run has not made."""
        left = [index for index in answers.outline.starts() if not answers.is_covered[index]]
        if left:
            shift = self.now() - round(answers.cassette.steps[left[0]].started_ms * 1000)
            self._copy(left, shift, {0: 0}, 0, answers)

    def finish(self, error: BaseException | None) -> None:
        """Write the calls that have not ended and the trailer, and put the calls in the place of the old file."""
        super().finish(error)
        ended = "returned" if error is None else f"raised {type(error).__qualname__}"
        trailer = Trailer(calls=self._written, duration_ms=self.now() / 1000, ended=ended)
        try:
            if self._failure is None:
                self._file.append(line_of({"trailer": trailer}))
        except OSError as error:
            self._failure = error
        if self._failure is not None:
            self._file.discard(keeps_lines=True)
            text = f"could not be written: {self._failure.strerror}; what could be is in {self.path.name}.partial"
            raise CassetteError(text, self.path) from self._failure
        self._file.finish(lambda: Cassette.load(self._file.partial).lines())

    def discard(self) -> None:
        """Leave the old file as it is."""
        super().discard()
        self._file.discard()

    def _copy(self, indices: Sequence[int], shift: int, lanes: dict[int, int], forked: int, answers: Matcher) -> None:
        """Write calls of the old recording again, this many microseconds later; a call is behind what encloses it."""
        for index in indices:
            call = answers.cassette.steps[index]
            if call.lane not in lanes:
                self._copied_lanes += 1
                lanes[call.lane] = -self._copied_lanes
            self._copied_ids[index], started = self._next_id, round(call.started_ms * 1000) + shift
            self._next_id += 1
            self._pass_time(started + round(call.duration_ms * 1000))
            self.keep(
                msgspec.structs.replace(
                    call, id=self._copied_ids[index], parent=self._copied_ids.get(answers.parents[index]), after=0,
                    lane=lanes[call.lane], forked=lanes.get(call.forked, forked), started_ms=started / 1000,
                )
            )  # fmt: skip

    def _pass_time(self, until: int) -> None:
        """Let the clock of the recording show this many microseconds, at least."""
        self._began -= max(0, until - self.now()) / 1e6


# Listeners


@runtime_checkable
class CallListener(Protocol):
    """Sees the calls of an observed run.

    Calls of one observation come in one order, also from several threads, in the thread that makes the call, which
    waits meanwhile. A listener that raises is removed, and the error is logged: the run does not notice.

    It may also have these attributes, which `observe` asks for:

    - ``redaction``: a `Redaction` that is applied with that of `observe`, so that calls have the arguments and the
      digests of a recording that was made with it.
    - ``http``: an `Http`, or None: which requests it is shown, if `observe` is not given ``http=``.
    - ``on_close(error)``: called at the end of the block, with the exception that leaves it or None.
    """

    def on_start(self, call: RecordedCall) -> None:
        """A call starts. Its outcome is ``{"unfinished": True}``; `tags`, tokens and duration are not known yet."""

    def on_end(self, call: RecordedCall) -> None:
        """A call has ended, or the block has, and the call has not: then its outcome is ``{"unfinished": True}``.

        `after` is the id of the last call that had ended when it started.
        """


class ObservedCalls(CallLog):
    """Shows calls to listeners, and keeps none."""

    needs_identity = False

    def __init__(self, redaction: Redaction, listeners: tuple[CallListener, ...]) -> None:
        super().__init__(redaction)
        self._listeners = listeners

    def start(self, call: ActiveCall) -> None:
        """Number a call that starts, and show it."""
        super().start(call)
        started = self.recorded(call, {"unfinished": True})
        self._show(lambda listener: listener.on_start(started))

    def keep(self, call: RecordedCall) -> None:
        """Show a call that has ended."""
        self._last_id = call.id
        shown = msgspec.structs.replace(call, outcome=decode(encode(call.outcome)))  # parts of it are encoded already
        self._show(lambda listener: listener.on_end(shown))

    def finish(self, error: BaseException | None) -> None:
        """Show the calls that have not ended, and tell that the block has."""
        super().finish(error)
        self._show(lambda listener: getattr(listener, "on_close", lambda _: None)(error))

    def _show(self, show: Callable[[CallListener], object]) -> None:
        for listener in self._listeners:
            try:
                show(listener)
            except Exception:  # noqa: BLE001 - the user's; an observer changes nothing for the run
                self._listeners = tuple(one for one in self._listeners if one is not listener)
                _LOG.exception("%r raised, and sees no more calls of this run", listener)
