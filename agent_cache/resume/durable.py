"""`Journal`: a run whose process may die, and which a later process of the same session id goes on with.

The hardest case: it dies while a write is on the wire. The *intent* is in the journal since before the write began, and
nothing says whether it took effect. In the next process every call that had ended gets its outcome from the journal,
and nothing of it runs; at the intent it drops what the caches have under its tags, and does what ``on_doubt=`` says.
So a write never takes effect twice without anybody being told.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, suppress
from hashlib import blake2b
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from agent_cache.core.options import checked_choice, checked_flag, takes
from agent_cache.core.tags import root_of, unescape
from agent_cache.engine.blocking import run_blocking
from agent_cache.engine.hooks import BUDGETS, CURRENT_CALL, RUN, HookedCall, replay_into_sessions
from agent_cache.engine.scope import PLACE
from agent_cache.engine.state import warn_once
from agent_cache.engine.write import tags_of_intent
from agent_cache.errors import (
    CassetteError,
    ConfigurationError,
    DivergenceError,
    InDoubtError,
    JournalEnded,
    JournalError,
)
from agent_cache.recording.api import Block, checked_path
from agent_cache.recording.call_log import CallLog, redacted_tags
from agent_cache.recording.call_text import function_in, has_error
from agent_cache.recording.encryption import LineCipher
from agent_cache.recording.file import (
    UNKNOWN_ASKER,
    Intent,
    OpenCall,
    RecordedCall,
    Trailer,
    digest_of,
    is_inside,
    line_of,
    now_text,
    with_asker,
)
from agent_cache.recording.functions import ActiveCall, FunctionCall, RecordedFunction, recorded_function
from agent_cache.recording.http.identity import Http
from agent_cache.recording.match import Matcher, by_nobody, described, place_of
from agent_cache.recording.outcomes import check_outcome, decode, encode
from agent_cache.recording.redaction import Redaction, redaction_of
from agent_cache.recording.tape import Tape
from agent_cache.resume.checkpoints import Checkpoint, checkpoint_line, checkpoint_of, state_data
from agent_cache.resume.journal import (
    JournalFile,
    JournalHeader,
    NotingRedaction,
    StoredJournal,
    is_answer,
    journal_path,
)
from agent_cache.tools import invalidate_sync
from agent_cache.values.compare import utf8_text

__all__ = ["Journal", "NotDone", "idempotency_key"]

_LOG = logging.getLogger("agent_cache")

Check: TypeAlias = Callable[[dict[str, Any], str], Any]
Word: TypeAlias = Literal["raise", "rerun", "notice"]

_WORDS = ("raise", "rerun", "notice")
_BEGAN = "had begun when a process of this run ended or an interrupt left it, and nothing says whether it took effect"
_FIND_OUT = "Find out, and say so: on_doubt={{{!r}: check}}: check(arguments, key) returns what it returned, or NotDone"


class NotDone(Exception):
    """What a check function raises, or returns, if a write in doubt has not taken effect: it is made again."""


class Journal:
    """A directory in which runs are written down while they are made, so that a later process can go on with them.

    Use it as ``AgentCacheSession("order-7", journal=Journal("runs"))``. Each call gets a line when it has ended, and
    each write one before it begins. If the block raises, or its process dies, the next session of this id resumes the
    run: calls that had ended get their outcomes from the journal and do not run, answered model calls included. What
    had failed last, and is no write, runs again. A block that returns seals its journal: the run has ended. A later
    session of the id raises `JournalEnded` when it is entered, since a program that is started again after its end must
    not make its writes again unasked.

    Writes are tools under `AgentCacheInvalidator`, functions under ``intercept(kind="write")``, and, with ``http=``,
    requests of unsafe methods other than those to models. One that had begun and not ended when the process died is *in
    doubt*.

    Args:
        directory: where the journals are, a file for each session id. It is created.
        on_doubt: what happens to a write in doubt, when the resumed run comes to it.

            ``"raise"`` raises `InDoubtError`, which stops the run. The next resume can do otherwise.
            ``"rerun"`` runs it again, with the same idempotency key: for writes that can be repeated.
            ``"notice"`` returns a text for the model, which says that the outcome is not known.
            A mapping gives one of these words, or a function, by tool: the decorated function itself, or its name, with
            or without the module; of a request its method and URL. Others raise. The function ``check(arguments, key)``
            asks the receiver: it returns what the call returns, or `NotDone`. It may be asynchronous if the tool is. If
            it raises, the write stays in doubt. What it calls is made each time, and neither cached nor written down,
            so it may use tools of the run to look.
        durability: ``"process"``: what is in the journal outlives the process. ``"machine"``: it also outlives the
            machine; each write then waits twice for the disk.
        key: 16, 24 or 32 random bytes that encrypt the journal. Without it secrets are redacted in outcomes, and a run
            that needs such an outcome cannot be resumed. Needs ``agent-cache[crypto]``.
        restart: True begins a new run where the last one of the session has ended. The journal of that one gets another
            name. A run that has not ended is resumed all the same.
        redact: as in `agent_cache.recording.record`.
        http: likewise.

    Raises:
        ConfigurationError: if an argument cannot work; when the session is entered, if the run was begun with others.
        JournalEnded: then, if the run has come to its end, without ``restart=True``.
        JournalError: then, if another session is writing the journal, or it cannot be read, written or resumed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        on_doubt: Word | Mapping[Any, Word | Check] = "raise",
        durability: Literal["process", "machine"] = "process",
        key: bytes | None = None,
        restart: bool = False,
        redact: Any = None,
        http: bool | Http | None = None,
    ) -> None:
        self.directory = checked_path(directory, "Journal: directory")
        self._default, self._choices = _choices(on_doubt)
        self.is_durable = checked_choice(durability, ("process", "machine"), "Journal: durability") == "machine"
        if key is not None:
            LineCipher(key)
        self.key = key
        self.restarts = checked_flag(restart, "Journal: restart")
        self.redaction = redaction_of(redact)
        self.http = Http.of(http, "Journal")

    def path(self, session_id: str) -> Path:
        """The file of a session's journal, whether it is there or not."""
        return journal_path(self.directory, session_id)

    def attach(self, session_id: str) -> AbstractContextManager[Any]:
        """The block in which the calls of a session are written down. `AgentCacheSession` enters it."""
        return _Attached(self, session_id)

    def settings(self) -> dict[str, Any]:
        """What a run is resumed with as it was begun, as the header has it."""
        http = msgspec.UNSET if self.http is None else self.http.describe(self.redaction)
        return {"redact": self.redaction.describe(), "http": http}

    def choice(self, *names: str) -> str | Check:
        """What is done with a write in doubt that has these names."""
        return next((self._choices[name] for name in names if name in self._choices), self._default)


def _choices(given: Any) -> tuple[str, dict[str, str | Check]]:
    """What was declared by ``on_doubt=``: the word for all tools, and those by name."""
    if not isinstance(given, Mapping):
        return checked_choice(given, _WORDS, "Journal: on_doubt", "a mapping of tools to these or to functions"), {}
    found: dict[str, str | Check] = {}
    for tool, choice in given.items():
        name = tool if isinstance(tool, str) else getattr(recorded_function(tool), "name", None)
        if name is None:
            raise ConfigurationError(f"Journal: on_doubt maps tools, or their names, to what is done; got {tool!r}")
        if not callable(choice) or isinstance(choice, type):
            checked_choice(choice, _WORDS, f"Journal: on_doubt of {name}", "a function")
        elif not takes(choice, 2):
            raise ConfigurationError(f"Journal: on_doubt of {name} is called as check(arguments, key), got {choice!r}")
        found[name] = choice
    return "raise", found


def idempotency_key() -> str | None:
    """The idempotency key of the innermost write that runs here and is in a journal; None outside of one.

    It is 32 hexadecimal digits. If the write is made again because the process died, it has the same key; any other
    write, and that of another run, has another one. Give it to a receiver that ignores what it has already done. Also
    works in threads that were started with the context, as by `asyncio.to_thread`.
    """
    call = CURRENT_CALL.get()
    while call is not None:
        if isinstance(call.owner, _JournalTape) and call.is_write:
            return call.owner.key_of(call)
        call = call.outer
    return None


class _JournalTape(Tape):
    """The tape of a run that is written down: the journal answers, and new calls go to its end."""

    answers: Matcher
    file: _JournalLog
    redaction: NotingRedaction

    def __init__(self, journal: Journal, stored: StoredJournal, file: JournalFile) -> None:
        self.journal = journal
        self._run, self._secret = bytes.fromhex(stored.run), bytes.fromhex(stored.header.secret)
        self._root = blake2b(key=self._secret, digest_size=12, person=b"places").digest()
        self._sequence = len(stored.checkpoints)
        self._earlier: dict[Hashable, list[Checkpoint]] = {}  # that this process has not come to, by their content
        for one in stored.checkpoints:
            self._earlier.setdefault(_content(one), []).append(one)
        # Writes of the journal that this process has not come to, by id: those that have ended, and those in doubt.
        left: list[RecordedCall | Intent] = [*filter(attrgetter("is_write"), stored.calls), *stored.in_doubt]
        self._left = {one.id: one for one in sorted(left, key=attrgetter("id"))}
        self._new_writes: dict[str | bytes, ActiveCall] = {}  # that may be some of these, by name and by arguments
        self._paused: dict[tuple[bytes, bytes], list[int]] = {}  # numbers of calls that LangGraph makes again
        placed: list[RecordedCall | OpenCall] = [*stored.calls, *stored.begun.values()]
        self._lanes_before = max((one.lane for one in placed), default=0)
        # In an encrypted journal all is as the run has seen it; whoever reads it redacts it.
        rules = NotingRedaction(Redaction(defaults=False) if journal.key else journal.redaction)
        log = _JournalLog(self, file, rules, stored)
        super().__init__(file.path, "journal", rules, answers=self._load(stored, rules), file=log, http=journal.http)
        if tags := {tuple(map(unescape, tag.split(":"))) for one in stored.in_doubt for tag in one.tags}:
            invalidate_sync(*tags)  # what writes in doubt may have changed

    def _load(self, stored: StoredJournal, rules: NotingRedaction) -> Matcher:
        self._stored = stored
        self._index_of = {bytes.fromhex(call.place): index for index, call in enumerate(stored.calls)}
        return Matcher(stored.cassette, rules)

    # Which call of the journal a call is

    def _look_up(self, call: ActiveCall, answers: Matcher) -> None:
        """Find a call by its arguments before redaction: two that only differ in a secret are two."""
        parent = call.parent
        counts, enclosing = (self._counts, self._root) if parent is None else (parent.counts, parent.place)
        if call.given is not None:
            call.matched = with_asker(digest_of(call.function.name, call.given, call.given_key), call.asker)
        if self._paused and (again := self._paused.get((enclosing, call.matched))):
            call.occurrence = again.pop(0)
        else:
            call.occurrence = counts.get(call.matched, 0)
            counts[call.matched] = call.occurrence + 1
        call.place = place_of(enclosing, call.matched, call.occurrence)
        if call.lane:
            call.lane += self._lanes_before
            call.forked += self._lanes_before if call.forked else 0
        index = self._index_of.get(call.place)
        if index is not None and call.asker == UNKNOWN_ASKER:
            if not call.function.is_read:
                raise self._stopped(call, CassetteError(by_nobody(call), self.path or ""))
        elif index is not None:
            self.take(call, index, answers)
            if self._left:
                for one in (index, *answers.inside(index)):
                    self._left.pop(self._stored.calls[one].id, None)
        elif self.error is not None and not self.file.journal_file.is_closed:
            raise self._stopped(call, self.error)

    def _stopped(self, call: ActiveCall, error: CassetteError) -> CassetteError:
        """The error that stops the run in a call that must not be made."""
        with self._lock:
            self.file.void(call)
            return self.latch(error).with_traceback(None)

    # A write begins, or is in doubt

    def begin(self, call: HookedCall | FunctionCall) -> ActiveCall:
        """Find the answer of a call in the journal, or write that it begins."""
        active = super().begin(call)
        if active.tool_call is not None:  # a read that had begun is no hit: it may have made writes
            active.tool_call.is_fresh |= active.place in self.file.begun
        if active.recorded is not None or not (active.is_write or (self._left and self._doubt_of(active))):
            return active
        with self._lock:
            if self.file.journal_file.is_closed:
                if not self.file.is_sealed:
                    raise self.file.ended()
            elif self._left and self._doubt_of(active) is not None:
                active.is_answered = True
            else:
                if self._left:
                    self._check_new(active)
                self.file.begin_write(active, self.key_of(active))
        return active

    def _doubt_of(self, call: ActiveCall) -> Intent | None:
        """What the journal has of a write that is in doubt."""
        begun = self.file.begun.get(call.place)
        return begun if isinstance(begun, Intent) and begun.id in self._left else None

    def begin_exchange(self, endpoint: RecordedFunction, arguments: Mapping[str, Any]) -> ActiveCall:
        """The same for a request. One in doubt is decided at once."""
        call = super().begin_exchange(endpoint, arguments)
        doubt = self._doubt_of(call) if call.is_answered and call.recorded is None else None
        if doubt is None or (value := run_blocking(self._decide(call, doubt, is_plain=True))) is RUN:
            return call
        outcome = {"response": value}
        try:
            check_outcome(outcome)
        except msgspec.ValidationError as error:
            text = f'is a request, whose check returns {{"status": 200, "json": ...}}: {error}'
            raise self._in_doubt(doubt, text, call) from error
        self._close(doubt)
        self.write(call, outcome)
        call.recorded = self.file.recorded(call, outcome)
        return call

    def _check_new(self, call: ActiveCall) -> None:
        """Refuse a new write that may be one that the run had made before, and has not come to now.

        Of the block's own task that is any; which task of the journal another task is may not be known, so its write is
        refused if its function has another module or other parameters, and compared at the end of the block.
        """
        name = call.function.name
        before = [one for one in self._left.values() if not (call.lane or one.lane) or _may_be(call, one)]
        if before:
            text = (
                f"{self._shown(name, call.arguments)} is a new write, but when this run was made before, it made "
                f"{before[0].name} (call {before[0].id}), and has not come to it now. The write was not made, because "
                "it may be that one with other arguments, or of another module. If the program has changed, let the "
                "version that began the run end it; what varies, such as the date in a prompt, must be recorded, as "
                "agent_cache.recording.now()"
            )
            actual = {"name": name, "arguments": self._without_secrets(call.arguments)}
            raise self._stopped(call, DivergenceError(None, None, actual, text, self.path or ""))
        self._new_writes.setdefault(name, call)
        self._new_writes.setdefault(encode(call.arguments or name), call)

    def key_of(self, call: ActiveCall) -> str:
        """The idempotency key of a write."""
        if isinstance(begun := self.file.begun.get(call.place), Intent):
            return begun.key  # of a branch, that of its original
        return blake2b(self._run + call.place, key=self._secret, digest_size=16, person=b"idempotency").hexdigest()

    async def answer(self, call: ActiveCall, *, is_plain: bool) -> Any:
        """The outcome of a call, by the journal, or by what is done with a write in doubt."""
        if call.recorded is not None:
            return await super().answer(call, is_plain=is_plain)
        is_plain |= call.is_sync_tool
        doubt, tool_call = self._doubt_of(call), call.tool_call
        assert doubt is not None
        value = await self._decide(call, doubt, is_plain=is_plain)
        if value is RUN:
            return RUN
        if value is None and call.function.schema.to_plain(None) is not None:  # a check without a last line
            raise self._in_doubt(doubt, "is in doubt, and its check function returned None, and not NotDone", call)
        if is_plain and "stream" in call.function.form:
            raise self._in_doubt(doubt, "is a stream, which can only raise or be made again", call)
        self._close(doubt)
        if tool_call is not None:  # as if it had returned the value when it ran
            tool_call.answered_by = "write"
        value = self.returned(call, value)
        if tool_call is not None:
            replay_into_sessions(tool_call, value, None, 0.0)
        return value

    async def _decide(self, call: ActiveCall, doubt: Intent, *, is_plain: bool) -> Any:
        """What a write in doubt returns, by the user's policy; `RUN` if it is made again, with its key."""
        choice = self.journal.choice(call.function.name, *call.function.names)
        if choice == "notice":
            shown = self._shown(function_in(doubt.name), call.arguments)  # as the model knows it
            return (
                f"It is not known whether {shown} took effect: the process ended "
                "while it was running. Do not repeat it before you know; look at what it would have changed."
            )
        if choice == "raise":
            raise self._in_doubt(doubt, f"{_BEGAN}. {_FIND_OUT.format(doubt.name)}", call)
        value = await self._checked(call, doubt, choice, is_plain=is_plain) if callable(choice) else NotDone
        if value is not NotDone and not isinstance(value, NotDone):
            return value
        call.is_answered = False
        with self._lock:
            del self._left[doubt.id]
        return RUN

    async def _checked(self, call: ActiveCall, doubt: Intent, check: Check, *, is_plain: bool) -> Any:
        """What a check function says. What it calls is made as if there were neither a journal nor a cache.

        The next process must look again: what this one has seen may not be true any more, once the write ran again.
        """
        token = PLACE.get().scope.without_recordings().variant(bypasses=True).enter()
        try:
            value = check(_given_arguments(call), doubt.key)
            if not inspect.isawaitable(value):
                return value
            if is_plain:
                getattr(value, "close", str)()
                raise TypeError("it is asynchronous, and the write is not")  # noqa: TRY301 - as if it had raised it
            return await value
        except NotDone:
            return NotDone
        except Exception as error:
            raise self._in_doubt(doubt, f"is in doubt, and its check function raised {error!r}", call) from error
        finally:
            with suppress(ValueError):  # closed by the garbage collector, in another context than it ran in
                PLACE.reset(token)

    def _in_doubt(self, doubt: Intent, reason: str, call: ActiveCall | None = None) -> CassetteError:
        """The error for a write in doubt. In its call, it stops the run there."""
        arguments = self._without_secrets(doubt.arguments if call is None else call.arguments)
        text = f"{described(doubt.name, arguments)} (idempotency key {doubt.key}) {reason}"
        error = InDoubtError(doubt.name, arguments, doubt.key, text, self.file.path)
        return error if call is None else self._stopped(call, error)

    def _without_secrets(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments as an error may show them: an encrypted journal has them as they are."""
        found: dict[str, Any] = arguments if self.journal.key is None else self.journal.redaction.apply(arguments)
        return found

    def _shown(self, name: str, arguments: dict[str, Any]) -> str:
        return described(name, self._without_secrets(arguments))

    def _close(self, doubt: Intent) -> None:
        """Forget a write in doubt that is not made again, and what it enclosed."""
        with self._lock:
            self._left = {n: one for n, one in self._left.items() if not is_inside(n, {doubt.id}, self._stored.parents)}

    # The end of a call, and of the run

    def pause(self, call: ActiveCall) -> None:
        """An interrupt of LangGraph has left a call: it is made again when the graph goes on, in the same place.

        What it enclosed is answered then. If it is a write, it is in doubt.
        """
        stored = self.file.journal_file.read() or self._stored
        place = self._root if call.parent is None else call.parent.place, call.matched
        self._paused.setdefault(place, []).append(call.occurrence)
        self.answers = self._load(stored, self.redaction)
        self._left |= {one.id: one for one in stored.in_doubt if is_inside(one.id, {call.id}, stored.parents)}

    async def checkpoint(self, label: str, state: Any, importance: float) -> Checkpoint:
        """Write a checkpoint. One that the run had made before it was resumed is not written again."""
        with self._lock:
            made = Checkpoint(
                session_id=self._stored.session_id, sequence=self._sequence + 1, after=self.file._last_id,
                label=label, importance=importance, state=state,
            )  # fmt: skip
            line = checkpoint_line(made, self.journal.redaction)
            if same := self._earlier.get(_content(checkpoint_of(decode(line)["checkpoint"], made.session_id))):
                return same.pop(0)
            if self.file.journal_file.is_closed:
                raise self.file.ended()
            self.file.append(None, line, is_urgent=True)
            self._sequence += 1
        return made

    def finish(self, error: BaseException | None) -> None:
        """Seal the journal if the run has come to its end, and raise what something has swallowed, or was not made."""
        self.lanes.is_over = True
        is_paused = any(self._paused.values())  # LangGraph waits for somebody, and makes a call again then
        with self._lock:
            problem = None if error is not None else self.error or (None if is_paused else self._undone())
            if error is None and problem is None and not is_paused:
                self.file.seal()
            self.file.discard()
        if problem is not None:
            raise problem.with_traceback(None)

    def _undone(self) -> CassetteError | None:
        """What a run that has returned has not made again."""
        for one in self._left.values():
            path = function_in(one.name)
            if isinstance(one, Intent) and self.journal.choice(one.name, path, path.rpartition(".")[2]) == "raise":
                return self._in_doubt(one, f"{_BEGAN}, and it was not made again. {_FIND_OUT.format(one.name)}")
            if new := self._new_writes.get(one.name) or self._new_writes.get(encode(one.arguments)):
                text = (
                    f"{self._shown(new.function.name, new.arguments)} was made as a new write, and call {one.id}, "
                    f"{self._shown(one.name, one.arguments)}, was not made again: it may have taken effect twice"
                )
                return DivergenceError(None, None, None, text, self.file.path)
        if self._left:
            shown = ", ".join(f"{one.name} (call {one.id})" for one in islice(self._left.values(), 5))
            _LOG.warning("%s: the resumed run has not come to writes that it had made: %s", self.file.path, shown)
        return None


def _may_be(call: ActiveCall, earlier: RecordedCall | Intent) -> bool:
    """Whether a write may be an earlier one, of another module or with other parameters in a new program."""
    now, was, names = call.arguments, earlier.arguments, (call.function.name, earlier.name)
    is_like = function_in(names[0]) == function_in(names[1]) and all(now[one] == was[one] for one in now if one in was)
    return is_like and (names[0] != names[1] or now.keys() != was.keys())


def _content(one: Checkpoint) -> tuple[Any, ...]:
    return one.label, one.importance, one.framework, encode(state_data(one.state))


def _given_arguments(call: ActiveCall) -> dict[str, Any]:
    """The arguments of a call as the program has passed them; of a request, as data."""
    args, kwargs = call.passed
    if call.tool_call is not None:
        return dict(call.function.recorded_arguments(call.tool_call.arguments))
    if args or kwargs:
        return dict(call.function.recorded_arguments(call.function.bind(args, kwargs)))
    return call.arguments if call.given is None else call.given


# The lines of a run

_INTERRUPTS = frozenset({"langgraph.errors:GraphInterrupt", "langgraph.errors:NodeInterrupt"})


class _JournalLog(CallLog):
    """Writes the lines of a run. The tape calls it under its lock.

    Calls that were cut off have no line until the run has come to its end: a resumed run makes them again.
    """

    is_sealed = False

    def __init__(
        self, tape: _JournalTape, file: JournalFile, redaction: NotingRedaction, stored: StoredJournal
    ) -> None:
        super().__init__(redaction.rules)
        self.path, self._tape, self.journal_file, self._noted = file.path, tape, file, redaction.noted
        ended, begun = {call.id for call in stored.calls}, stored.begun
        # Calls that have not ended, and whose place is in the journal.
        self.begun = {bytes.fromhex(one.place): one for number, one in begun.items() if number not in ended}
        self._void: set[int] = set()  # of calls in which the run was stopped: they will be made again
        self._cut: dict[int, bytes] = {}  # lines of calls that were cut off, by id
        self._ended: list[tuple[ActiveCall, bytes]] = []  # calls whose lines are not written yet
        self._written = len(ended)
        self._next_id = 1 + max((*ended, *begun), default=0)
        self._last_id = stored.calls[-1].id if stored.calls else 0
        self._began -= max((one.started_ms + one.duration_ms for one in stored.calls), default=0.0) / 1000

    def start(self, call: ActiveCall) -> None:
        """Number a call that starts, as in the process before, if that had begun it."""
        self._noted.is_changed = False  # that of arguments is no loss
        begun = call.recorded or self.begun.get(call.place)
        if begun is None or begun.id in self._open:
            super().start(call)
            return
        call.id, call.after, call.started = begun.id, begun.after, self.now()
        if call.recorded is None:
            self._open[call.id] = call

    def begin_write(self, call: ActiveCall, key: str) -> None:
        """Write that a write begins. If that raises, it must not run."""
        tags = () if call.tool_call is None else tags_of_intent(call.tool_call)
        # A resume invalidates what stands there; redacted or escaped it would be another tag, so it is the root then.
        known = set[str]()
        for tag, shown in zip(tags, redacted_tags(call, tags, self._redaction), strict=True):
            known.add(tag if tag == shown else utf8_text(root_of(tag)))
        intent = Intent(
            id=call.id, parent=None if call.parent is None else call.parent.id, place=call.place.hex(),
            after=call.after, lane=call.lane, forked=call.forked, kind=call.function.kind, name=call.function.name,
            arguments=call.arguments, key=key, tags=sorted(known),
        )  # fmt: skip
        self.append(call, encode({"intent": intent}) + b"\n", is_urgent=True)
        self.begun[call.place], call.clean_tags = intent, known

    def end(self, call: ActiveCall, outcome: dict[str, Any], source: str, tags: list[str]) -> None:
        """Write a call that has ended."""
        is_hidden, self._noted.is_changed = self._noted.is_changed, False
        if self.journal_file.is_closed or self._open.pop(call.id, None) is None:
            return
        if call.id in self._void:
            self._void.discard(call.id)
            return
        if "error" in outcome and outcome["error"].get("type") in _INTERRUPTS:
            self._write_ended()
            self.begun.setdefault(call.place, _opened(call))
            self._tape.pause(call)
            return
        if is_hidden:
            text = "redaction has changed an outcome in a journal, so this run can only be resumed with a key="
            warn_once(text, call.function.name)
        recorded = self.recorded(call, outcome, source, tags)
        line = encode(msgspec.structs.replace(recorded, place=call.place.hex(), hidden=is_hidden)) + b"\n"
        is_read, is_ended = not call.is_write and recorded.kind != "llm", "value" in outcome or is_answer(outcome)
        error, response = outcome.get("error") or {}, outcome.get("response") or {}
        is_loop = str(error.get("type")).startswith("agent_cache.errors:")  # which stops the resumed run, too
        # What a budget has refused is made again, since the budget may be greater then.
        is_budget = is_loop and error.get("state", {}).get("kind") in BUDGETS
        is_refused = is_budget and (source == "blocked" or not call.is_write)
        if is_refused or not is_ended or (is_read and ("unencodable" in outcome or "class" in outcome)):
            self._cut[call.id] = line
            if is_refused and isinstance(intent := self.begun.get(call.place), Intent):
                self.begun[call.place] = intent = msgspec.structs.replace(intent, refused=True)
                self.append(None, encode({"intent": intent}) + b"\n", is_urgent=True)
            return
        self._last_id = call.id
        self._ended.append((call, line))
        if call.is_write or is_loop or not (has_error(recorded) or response.get("status", 0) >= 400):
            self._write_ended()

    def _write_ended(self) -> None:
        """Write the calls that have ended. What has failed waits for the next line: it may be what ends the run."""
        ended, self._ended = self._ended, []
        for call, line in ended:
            self.append(call, line, is_urgent=call.is_write)
            self._written += 1
            self.begun.pop(call.place, None)
            self._cut.pop(call.id, None)

    def void(self, call: ActiveCall | None) -> None:
        """The run is stopped in a call: what this and those that enclose it return then is no outcome of theirs."""
        while call is not None:
            self._void.add(call.id)
            call = call.parent

    def ended(self) -> JournalError:
        """The error for what would have to be written behind the end."""
        text = "its run has ended with an error, or this is a forked process: the write was not made, since nobody "
        return JournalError(f"{text}would know of it", self.path)

    def seal(self) -> None:
        """Write that the run has come to its end. If that raises, it can be resumed."""
        if self.journal_file.is_closed:
            return
        try:
            self.end_open_calls()
            calls = self._written + len(self._ended) + len(self._cut)
            trailer = Trailer(calls=calls, duration_ms=self.now() / 1000)
            self.append(None, *self._cut.values(), line_of({"trailer": trailer}), is_urgent=True)
            self.is_sealed = True
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the journal. It can be resumed, unless it is sealed."""
        super().discard()
        self.journal_file.close()

    def append(self, call: ActiveCall | None, *lines: bytes, is_urgent: bool = False) -> None:
        """Write lines, behind the places of the calls that enclose this one."""
        if self._ended:
            self._write_ended()
        outer, announced = None if call is None else call.parent, list[ActiveCall]()
        while outer is not None and outer.place not in self.begun and outer.id in self._open:
            announced.append(outer)
            outer = outer.parent
        if announced:
            lines = (*(encode({"open": _opened(one)}) + b"\n" for one in reversed(announced)), *lines)
        try:
            self.journal_file.append(*lines, is_urgent=is_urgent)
        except OSError as error:
            self.void(call)
            reason = f"cannot be written: {error.strerror}. The run is stopped; it can be resumed"
            if call is not None and isinstance(self.begun.get(call.place), Intent):
                reason += f", and {call.function.name} is in doubt then: it has ended, and its outcome is lost"
            raise self._tape.latch(JournalError(reason, self.path)) from error
        for one in announced:
            self.begun[one.place] = _opened(one)


def _opened(call: ActiveCall) -> OpenCall:
    """Where a call is."""
    return OpenCall(
        id=call.id, parent=None if call.parent is None else call.parent.id, place=call.place.hex(), after=call.after,
        lane=call.lane, forked=call.forked,
    )  # fmt: skip


class _Attached(Block[_JournalTape]):
    """The block of one session's run."""

    _path: Path

    def __init__(self, journal: Journal, session_id: str) -> None:
        self._journal, self._session_id = journal, session_id
        self._path = journal.path(session_id).absolute()  # the program may change its directory

    def _open(self) -> _JournalTape:
        scope = PLACE.get().scope
        while scope.outside is not None:
            if isinstance(scope.hook, _JournalTape):
                text = "is inside of one that has a journal, which has its calls; give only the outer one a journal"
                raise ConfigurationError(f"the session {self._session_id!r} {text}")
            scope = scope.outside
        file = JournalFile(self._path, is_durable=self._journal.is_durable, key=self._journal.key)
        try:
            stored = file.read()
            if stored is None:
                line = encode(JournalHeader(session_id=self._session_id, **self._journal.settings())) + b"\n"
                stored = StoredJournal(self._path, line)
            elif self._is_of_ended_run(stored):
                file.set_aside(stored.run)
                return self._open()
            else:
                line = encode({"resumed": {"at": now_text(), "calls": len(stored.calls)}}) + b"\n"
            tape = _JournalTape(self._journal, stored, file)
            file.append(line, is_urgent=True)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError):
                raise JournalError(f"cannot be written: {error.strerror}", self._path) from error
            raise
        return tape

    def _is_of_ended_run(self, stored: StoredJournal) -> bool:
        """Whether a run has ended, and a new one may begin. Refuses what is another's, or cannot be given back."""
        if stored.session_id != self._session_id:
            text = f"is the journal of the session {stored.session_id!r}, and not of {self._session_id!r}"
            raise JournalError(text, self._path)
        if stored.is_torn:
            _LOG.warning("%s: its last line was not written as a whole, and is dropped", self._path)
        if stored.is_sealed:
            if not self._journal.restarts:
                raise JournalEnded(self._session_id, stored.header.recorded_at, len(stored.calls), self._path)
            return True
        for name, setting in self._journal.settings().items():
            if getattr(stored.header, name) != setting:
                text = f"the run in {self._path} was begun with another {name}= and can only be resumed with the same"
                raise ConfigurationError(f"Journal: {text}")
        ended = {call.id for call in stored.calls}
        for call in stored.calls:
            if (call.hidden or call.outcome.keys() & {"unencodable", "redacted"}) and call.parent not in ended:
                raise JournalError(
                    f"cannot be resumed: the outcome of {call.name} (call {call.id}) cannot be given back, because "
                    "redaction has changed it or it could not be written. A journal with a key= keeps what redaction "
                    "changes. Nothing was run",
                    self._path,
                )
        return False
