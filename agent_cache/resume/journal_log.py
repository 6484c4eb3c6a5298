"""Answers the calls of a resumed run from its journal, and writes the others into it.

`JournalMatcher` has the outcomes of the calls that had ended, by the places that their lines have. `JournalWriter`
writes the lines of the calls that are made. `LaneNumbers` tells which task of the run is which task of the process
before, and `WritesLeft` which writes of that process have not been made again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent_cache.errors import CassetteError, JournalError
from agent_cache.recording.call_log import CallLog
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import Intent, OpenCall, Trailer, call_line, trailer_line
from agent_cache.recording.functions import ActiveCall
from agent_cache.recording.match import Matcher
from agent_cache.recording.outcomes import encode
from agent_cache.recording.redaction import Redaction
from agent_cache.resume.journal import JournalFile, JournalLine, StoredJournal, is_answer

_LOG = logging.getLogger("agent_cache")

UNREDACTED = Redaction(defaults=False)
"""Rules that remove nothing."""


# What redaction takes away


class NotingRedaction(Redaction):
    """Rules of redaction that note, in each thread, whether they have changed anything."""

    @classmethod
    def of(cls, rules: Redaction) -> NotingRedaction:
        """The same rules."""
        found = cls(rules.names, rules.patterns, rules.hook, replacement=rules.replacement, defaults=rules.defaults)
        found._noted = threading.local()
        return found

    _noted: threading.local

    def apply(self, data: Any) -> Any:
        """As in `Redaction`."""
        return self._compared(data, super().apply(data))

    def text(self, text: str) -> str:
        """As in `Redaction`."""
        return self._compared(text, super().text(text))  # type: ignore[no-any-return]

    def labelled(self, name: str, text: str) -> str:
        """As in `Redaction`."""
        return self._compared(text, super().labelled(name, text))  # type: ignore[no-any-return]

    def is_secret(self, name: str) -> bool:
        """As in `Redaction`."""
        found = super().is_secret(name)
        if found:
            self._noted.has_changed = True
        return found

    def take_note(self) -> bool:
        """Whether anything was changed since this was asked last."""
        found = self.has_note
        self._noted.has_changed = False
        return found

    @property
    def has_note(self) -> bool:
        """The same without forgetting it."""
        return getattr(self._noted, "has_changed", False)

    def _compared(self, before: Any, after: Any) -> Any:
        if after is not before and after != before:
            self._noted.has_changed = True
        return after


# Lanes


class LaneNumbers:
    """Which lane of the journal each lane of this process is.

    A lane is that of the journal whose calls were answered in it. If two lanes were answered from one, or one from two,
    as happens to workers that share a queue, that is not certain. Calls that several lanes had made with equal
    arguments say nothing: each lane may get the outcome of any other.
    """

    def __init__(self, lines: Sequence[JournalLine], opened: Sequence[OpenCall], ambiguous: frozenset[int]) -> None:
        self._ambiguous = ambiguous
        self._numbers = {0: 0}  # in the journal, by lane of this process
        self._taken = {0}
        self._next = 1 + max((*(one.lane for one in lines), *(one.lane for one in opened)), default=0)
        self._origins: dict[int, set[int]] = {}  # lanes of the journal, by lane of this process
        self._users: dict[int, set[int]] = {}  # the other way round

    def number(self, lane: int) -> int:
        """The number that a lane of this process has in the journal."""
        found = self._numbers.get(lane)
        if found is None:
            found = self._numbers[lane] = self._next
            self._next += 1
        return found

    def identify(self, lane: int, index: int, journaled: int) -> None:
        """A call of this lane was answered by one of that lane of the journal."""
        if index in self._ambiguous or not lane:
            return
        if lane not in self._numbers and journaled not in self._taken:
            self._numbers[lane] = journaled
            self._taken.add(journaled)
        self._origins.setdefault(lane, set()).add(journaled)
        self._users.setdefault(journaled, set()).add(lane)

    def certain(self, lane: int) -> int | None:
        """The lane of the journal that this one is, if that is certain."""
        if not lane:
            return 0
        origins = self._origins.get(lane, ())
        if len(origins) != 1:
            return None
        (journaled,) = origins
        return journaled if self._users[journaled] == {lane} else None


def ambiguous_calls(cassette: Cassette) -> frozenset[int]:
    """Indices of calls that several lanes have made in one place with equal arguments."""
    outline = cassette.outline
    lanes: dict[tuple[int, bytes], set[int]] = {}
    keys = list(zip(outline.parents, outline.digests, strict=True))
    for key, lane in zip(keys, outline.lanes, strict=True):
        lanes.setdefault(key, set()).add(lane)
    return frozenset(index for index, key in enumerate(keys) if len(lanes[key]) > 1)


# Writes that the journal has, and that this process has not come to yet


class WritesLeft:
    """The writes of the journal, ended or in doubt, that this process has not come to yet."""

    def __init__(self) -> None:
        self._writes: dict[int, tuple[int, str]] = {}  # lane and name, by id
        self._lanes: Counter[int] = Counter()

    def add(self, number: int, lane: int, name: str) -> None:
        """Add a write."""
        self._writes[number] = lane, name
        self._lanes[lane] += 1

    def remove(self, number: int) -> None:
        """This process has come to a write, or to a call that encloses it."""
        found = self._writes.pop(number, None)
        if found is not None:
            self._lanes[found[0]] -= 1

    def first(self, *, lane: int | None = None, name: str | None = None) -> tuple[int, str] | None:
        """Id and name of the first one in this lane, or of this name."""
        if not self._writes or (lane is not None and not self._lanes[lane]):
            return None
        for number in sorted(self._writes):
            found_lane, found_name = self._writes[number]
            if (lane is None or found_lane == lane) and (name is None or found_name == name):
                return number, found_name
        return None

    def __len__(self) -> int:
        return len(self._writes)

    def __str__(self) -> str:
        shown = [f"{name} (call {number})" for number, (_, name) in sorted(self._writes.items())]
        return ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")


class JournalMatcher(Matcher):
    """Finds calls by the places that their lines have."""

    def __init__(self, cassette: Cassette, lines: Sequence[JournalLine], left: WritesLeft) -> None:
        self._lines = lines
        self._left = left
        super().__init__(cassette, UNREDACTED)

    def cover_alone(self, index: int) -> None:
        """Mark a call as made again."""
        super().cover_alone(index)
        self._left.remove(self._lines[index].id)

    def _read_tree(self) -> None:
        for index, line in enumerate(self._lines):
            self._index_of.setdefault(line.place, index)
            parent = self._parents[index]
            if parent >= 0:
                self._children.setdefault(parent, []).append(index)


# Writing


class JournalWriter(CallLog):
    """Writes the lines of a run. The tape calls it under its lock.

    Calls that were cut off have no line until the run has come to its end: a resumed run makes them again. Nor has a
    stream that was closed by its consumer until its task makes another call: an exception may have closed it.
    """

    def __init__(
        self,
        file: JournalFile,
        redaction: Redaction,
        stored: StoredJournal | None,
    ) -> None:
        super().__init__(redaction)
        self.is_sealed = False
        self.latch: Callable[[CassetteError], CassetteError] = lambda error: error
        self._file = file
        self._begun: dict[str, OpenCall] = {}  # calls that had begun in an earlier process and not ended, by place
        self._known: set[int] = set()  # ids of calls whose place is in the journal
        self._void: set[int] = set()  # of calls in which the run was stopped: they will be made again
        self._cut: list[tuple[int, bytes]] = []
        self._closed: dict[int, list[tuple[ActiveCall, bytes]]] = {}  # streams, by lane
        self._originals: dict[int, str | None] = {}
        self._written = 0
        if stored is not None:
            ended = {line.id for line in stored.lines}
            for one in (*stored.opened.values(), *stored.intents.values()):
                self._known.add(one.id)
                if one.id not in ended:
                    self._begun[one.place] = one
            self._next_id = 1 + max((*ended, *self._known), default=0)
            self._last_id = stored.lines[-1].id if stored.lines else 0
            self._written = len(ended)
            self._began -= max((line.until_ms for line in stored.lines), default=0.0) / 1000

    @property
    def is_over(self) -> bool:
        """Whether nothing is written any more: the run has ended, or this is a forked child."""
        return self.is_closed or self._file.is_of_parent

    @property
    def last_id(self) -> int:
        """Id of the last call that has ended."""
        return self._last_id

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def start(self, call: ActiveCall) -> None:
        """Number a call that starts, as in the process before, if that had begun it."""
        if call.recorded is not None:
            call.id, call.after = call.recorded.id, call.recorded.after
            return
        if self._closed and not self.is_over and (closed := self._closed.pop(call.lane, None)) is not None:
            for stream, line in closed:
                self._put(stream, line)
        begun = self._begun.get(call.place.hex()) if self._begun else None
        super().start(call)
        if begun is not None and begun.id not in self._open:
            del self._open[call.id]
            self._next_id -= 1
            call.id, call.after = begun.id, begun.after
            self._open[call.id] = call

    def begin_write(self, call: ActiveCall, intent: Intent) -> None:
        """Write that a write begins.

        Raises:
            JournalError: if that is not possible. The write must not run then.
        """
        if call.id not in self._known:
            self._append(call, encode({"intent": intent}) + b"\n", is_urgent=True)
            self._known.add(call.id)

    def has_begun(self, call: ActiveCall) -> bool:
        """Whether the journal has the place of a call."""
        return call.id in self._known

    def keep_original(self, call: ActiveCall, original: str | None) -> None:
        """Note the outcome of a call that is about to end before redaction, encrypted; None if there is no key."""
        if len(self._originals) < 10_000:
            self._originals[call.id] = original

    def end(self, call: ActiveCall, outcome: dict[str, Any], source: str, tags: list[str]) -> None:
        """Write a call that has ended."""
        has_changed = call.id in self._originals
        original = self._originals.pop(call.id, None)
        if self.is_over or self._open.pop(call.id, None) is None:
            return
        recorded = self.recorded(call, outcome, source, tags)
        if call.id in self._void:
            self._void.discard(call.id)
            return
        more = b',"place":"%b"' % call.place.hex().encode()
        if original is not None:
            more += b',"original":"%b"' % original.encode()
        elif has_changed:
            more += b',"hidden":true'
        line = b"%b%b}\n" % (call_line(recorded)[:-2], more)
        if not is_answer(outcome) or (_is_plain_only(outcome) and not (recorded.is_write or recorded.kind == "llm")):
            self._cut.append((call.id, line))
        elif "closed" in (outcome.get("stream") or outcome.get("response") or {}).get("end", ()):
            self._closed.setdefault(call.lane, []).append((call, line))
        else:
            self._put(call, line, is_urgent=recorded.is_write)

    def put_checkpoint(self, line: bytes) -> None:
        """Write a checkpoint.

        Raises:
            JournalError: if that is not possible.
        """
        if self.is_over:
            raise self.ended()
        self._append(None, line, is_urgent=True)

    def void(self, call: ActiveCall | None) -> None:
        """The run is stopped in a call: what this and those that enclose it return then is no outcome of theirs."""
        while call is not None:
            self._void.add(call.id)
            call = call.parent

    def ended(self) -> JournalError:
        """The error for what would have to be written behind the end."""
        if self._file.is_of_parent:
            reason = "this is a forked process, which has no part in the journal of its parent"
        else:
            reason = "its run has ended with an error, and what a task that is left of it does now would be lost in it"
        return JournalError(f"{reason}: the write was not made", self.path)

    def finish(self, error: BaseException | None) -> None:
        """Seal the journal, if the run has come to its end, and close it.

        Args:
            error: what has ended the run otherwise, or None.

        Raises:
            JournalError: if it cannot be sealed. It can be resumed then.
        """
        try:
            if error is None and not self.is_over:
                running = [call.function.name for call in self._open.values() if self.has_begun(call)]
                self.end_open_calls()
                rest = [line for closed in self._closed.values() for _, line in closed]
                rest += [line for _, line in self._cut]
                duration = int((time.perf_counter() - self._began) * 1e6) / 1000
                trailer = Trailer(calls=self._written + len(rest), duration_ms=duration)
                self._append(None, *rest, trailer_line(trailer), is_urgent=True)
                self.is_sealed = True
                if running:
                    _LOG.warning("%s: the session has ended while %s was running", self.path, ", ".join(running))
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the journal. It can be resumed, unless it is sealed."""
        super().discard()
        self._file.close()

    def _put(self, call: ActiveCall, line: bytes, *, is_urgent: bool = False) -> None:
        self._append(call, line, is_urgent=is_urgent)
        self._written += 1
        self._last_id = call.id

    def _append(self, call: ActiveCall | None, *lines: bytes, is_urgent: bool = False) -> None:
        """Write lines, behind the places of the calls that enclose this one."""
        announced: list[ActiveCall] = []
        outer = None if call is None else call.parent
        while outer is not None and outer.id not in self._known and outer.id in self._open:
            announced.append(outer)
            outer = outer.parent
        if announced:
            lines = (*(_open_line(one) for one in reversed(announced)), *lines)
        try:
            if self._file.is_closed:
                raise OSError(0, "an earlier line was not written")  # noqa: TRY301 - one way for both
            self._file.append(*lines, is_urgent=is_urgent)
        except OSError as error:
            self.void(call)
            reason = f"cannot be written: {error.strerror}. The run is stopped; it can be resumed"
            if call is not None and self.has_begun(call):
                reason += f", and {call.function.name} is in doubt then: it has ended, and its outcome is lost"
            raise self.latch(JournalError(reason, self.path)) from error
        self._known.update(one.id for one in announced)


def _is_plain_only(outcome: dict[str, Any]) -> bool:
    """Whether a value does not come back as what it was."""
    return "unencodable" in outcome or "class" in outcome


def _open_line(call: ActiveCall) -> bytes:
    parent = None if call.parent is None else call.parent.id
    line = OpenCall(
        id=call.id, parent=parent, place=call.place.hex(), after=call.after, lane=call.lane, forked=call.forked
    )
    return encode({"open": line}) + b"\n"
