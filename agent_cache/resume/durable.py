"""`Journal`: a run whose process may die, and which a later process of the same session id goes on with.

The hardest case: the process dies while a write is on the wire. Its *intent* is in the journal since before it began,
and nothing says whether it took effect. The next process makes the run again: every call that had ended gets its
outcome from the journal, in its place, and nothing of it runs. When it comes to the write it finds the intent, drops
what the caches have under its tags, and does with it what the user has declared by ``on_doubt=``.

So a write never takes effect twice without anybody being told. That it takes effect exactly once needs the receiver,
which can compare the idempotency keys that `idempotency_key` gives it.
"""

from __future__ import annotations

import base64
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from agent_cache.core.options import checked_choice, checked_flag
from agent_cache.core.tags import root_of, unescape
from agent_cache.engine.interception import InterceptedCall
from agent_cache.engine.scope import PLACE
from agent_cache.engine.streaming import proceed_stream
from agent_cache.engine.write import tags_of_intent
from agent_cache.errors import (
    CassetteError,
    ConfigurationError,
    DivergenceError,
    InDoubtError,
    JournalEnded,
    JournalError,
)
from agent_cache.recording.api import Block
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.file import (
    UNKNOWN_ASKER,
    Intent,
    OpenCall,
    RecordedCall,
    digest_of,
    digest_of_key,
    now_text,
    with_asker,
)
from agent_cache.recording.functions import CURRENT_CALL, ActiveCall, RecordedFunction
from agent_cache.recording.http.identity import Http
from agent_cache.recording.lanes import checkpoint
from agent_cache.recording.match import Matcher, by_nobody, call_data, described, place_of
from agent_cache.recording.outcomes import check_outcome, decode, encode, value_outcome
from agent_cache.recording.recorded_tools import recorded_function, show_in_sessions
from agent_cache.recording.redaction import redact_key, redaction_of
from agent_cache.recording.streams import failure_outcome, is_stream, leave_call
from agent_cache.recording.tape import Tape
from agent_cache.remote.codecs import EncryptedCodec, MessagePackCodec, Undecodable
from agent_cache.resume.checkpoints import Checkpoint, checkpoint_line, checkpoint_of, state_data
from agent_cache.resume.journal import (
    JournalFile,
    JournalHeader,
    JournalLine,
    StoredJournal,
    check_session,
    journal_path,
    new_header,
)
from agent_cache.resume.journal_log import (
    UNREDACTED,
    JournalMatcher,
    JournalWriter,
    LaneNumbers,
    NotingRedaction,
    WritesLeft,
    ambiguous_calls,
)
from agent_cache.tools import bypass, invalidate, invalidate_sync
from agent_cache.values.compare import utf8_text

__all__ = ["Journal", "NotDone", "idempotency_key"]

_LOG = logging.getLogger("agent_cache")

Check: TypeAlias = Callable[[dict[str, Any], str], Any]
Word: TypeAlias = Literal["raise", "rerun", "notice"]

_WORDS = ("raise", "rerun", "notice")
_DURABILITIES = ("process", "machine")
_MAX_ORIGINAL = 1 << 30


class NotDone(Exception):
    """What a check function raises, or returns, if a write in doubt has not taken effect: it is made again."""


class Journal:
    """A directory in which runs are written down while they are made, so that a later process can go on with them.

    Use it as ``AgentCacheSession("order-7", journal=Journal("runs"))``. Each call gets a line when it has ended, and
    each write one before it begins. If the block raises, or its process dies, the next session of this id resumes the
    run: calls that had ended get their outcomes from the journal and do not run, answered model calls included. A block
    that returns seals its journal: the run has ended. A later session of the id raises `JournalEnded` when it is
    entered, since a program that is started again after its end must not make its writes again unasked.

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
            or without the module; of a request its method and URL, or its host. Others raise. The function
            ``check(arguments, key)`` asks the receiver: it returns what the call returns, or `NotDone`. It may be
            asynchronous if the tool is. If it raises, the write stays in doubt. What it calls is made each time, and
            neither cached nor written down, so it may use tools of the run to look.
        durability: ``"process"``: what is in the journal outlives the process. ``"machine"``: it also outlives the
            machine; each write then waits twice for the disk.
        key: 16, 24 or 32 random bytes that encrypt the outcomes which redaction changes. Without it, a run that has
            such an outcome cannot be resumed, because it cannot be given back. Needs ``agent-cache[crypto]``.
        restart: True begins a new run where the last one of the session has ended. The journal of that one gets another
            name. A run that has not ended is resumed all the same.
        redact: as in `agent_cache.recording.record`.
        http: likewise.

    Raises:
        ConfigurationError: if an argument cannot work.
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
        if not isinstance(directory, str | os.PathLike) or not os.fspath(directory) or "\0" in str(directory):
            raise ConfigurationError(f"Journal: directory must be the path of a directory, got {directory!r}")
        self.directory = Path(directory)
        try:
            is_there = self.directory.exists()
        except OSError as error:
            raise ConfigurationError(f"Journal: {str(self.directory)!r} cannot be used: {error.strerror}") from error
        if is_there and not self.directory.is_dir():
            raise ConfigurationError(f"Journal: {str(self.directory)!r} is no directory")
        if is_there and not os.access(self.directory, os.W_OK | os.X_OK):
            raise ConfigurationError(f"Journal: {str(self.directory)!r} is a directory that cannot be written to")
        self._choices = _Choices(on_doubt)
        self._is_durable = checked_choice(durability, _DURABILITIES, "Journal: durability") == "machine"
        self._codec = None if key is None else _codec_of(key)
        checked_flag(restart, "Journal: restart")
        self._restarts = restart
        self._key = key or b""
        self._redaction = NotingRedaction.of(redaction_of(redact))
        self._http = Http.of(http, "Journal")

    def __repr__(self) -> str:
        return f"Journal({str(self.directory)!r})"

    def path(self, session_id: str) -> Path:
        """The file of a session's journal, whether it is there or not."""
        return journal_path(self.directory, session_id)

    def attach(self, session_id: str) -> AbstractContextManager[Run]:
        """The block in which the calls of a session are written down. `AgentCacheSession` enters it.

        Raises:
            JournalEnded: when it is entered: if the run has come to its end, without ``restart=True``.
            JournalError: likewise: if the journal is being written by another session of this id, is broken,
                is no journal or one of a newer version, cannot be written, or has an outcome that cannot be given back.
            ConfigurationError: if the id is no whole text; when it is entered, if the run was begun with other
                settings.
        """
        try:
            session_id.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"Journal: the session id {session_id!r} has a part of a character") from error
        return _Attached(self, session_id)


def idempotency_key() -> str | None:
    """The idempotency key of the innermost write that runs here and is in a journal; None outside of one.

    It is 32 hexadecimal digits. If the write is made again because the process died, it has the same key; any other
    write, and that of another run, has another one. Give it to a receiver that ignores what it has already done. Also
    works in threads that were started with the context, as by `asyncio.to_thread`.
    """
    call = CURRENT_CALL.get()
    while call is not None:
        if isinstance(call.owner, _JournalTape) and (key := call.owner.key_of(call)) is not None:
            return key
        call = call.outer
    return None


# What is declared for writes in doubt


class _Choices:
    """What was declared by ``on_doubt=``.

    Raises:
        ConfigurationError: if it is neither a word nor a mapping of tools to words and functions.
    """

    def __init__(self, given: Any) -> None:
        self._default: str = "raise"
        self._by_name: dict[str, str | Check] = {}
        if not isinstance(given, Mapping):
            self._default = checked_choice(given, _WORDS, "Journal: on_doubt")
            return
        for tool, choice in given.items():
            name = tool if isinstance(tool, str) else None
            if name is None:
                function = recorded_function(tool)
                if function is None:
                    raise ConfigurationError(
                        "Journal: on_doubt maps tools to what is done, and a tool is a function that was decorated "
                        f"with AgentCacheInvalidator or intercept, or its name; got {tool!r}"
                    )
                name = function.name
            if not callable(choice) or isinstance(choice, type):
                checked_choice(choice, _WORDS, f"Journal: on_doubt of {name}")
            self._by_name[name] = choice

    def of(self, function: RecordedFunction) -> str | Check:
        """What is done with a write of this function."""
        return self._of((function.name, *function.names))

    def of_intent(self, intent: Intent) -> str | Check:
        """The same for one that this run has not made."""
        path = intent.name.rpartition(":")[2]
        return self._of((intent.name, path, path.rpartition(".")[2]))

    def _of(self, names: Sequence[str]) -> str | Check:
        return next((self._by_name[name] for name in names if name in self._by_name), self._default)


def _codec_of(key: bytes) -> EncryptedCodec:
    if not isinstance(key, bytes):
        raise ConfigurationError("Journal: key must be 16, 24 or 32 random bytes: secrets.token_bytes(32)")
    return EncryptedCodec(MessagePackCodec(max_size=_MAX_ORIGINAL), key)


# The run


class _JournalTape(Tape):
    """Passes the calls of a run: answers those that the journal has, and writes the others into it."""

    answers: JournalMatcher
    file: JournalWriter
    redaction: NotingRedaction

    def __init__(
        self, path: Path, journal: Journal, header: JournalHeader, stored: StoredJournal | None, file: JournalFile
    ) -> None:
        self._run = bytes.fromhex(header.run)
        self._secret = bytes.fromhex(header.secret)
        self._root = blake2b(journal._key, key=self._secret, digest_size=12, person=b"places").digest()
        self._codec = journal._codec
        self._choices = journal._choices
        self._left = WritesLeft()
        self._new_writes: dict[str, str] = {}  # that may be others of the journal with other arguments, by name
        self._new_in: dict[int, str] = {}  # the first of them in each lane of this process
        self._originals = threading.local()
        self._doubts: dict[str, Intent] = {}  # by place
        self._reruns: dict[str, str] = {}  # keys, by place
        lines: Sequence[JournalLine] = ()
        cassette, ambiguous, opened = Cassette(), frozenset[int](), tuple[OpenCall, ...]()
        if stored is not None:
            lines, cassette = stored.lines, stored.cassette
            ambiguous = ambiguous_calls(cassette)
            opened = (*stored.opened.values(), *stored.intents.values())
            for line in lines:
                if line.is_write:
                    self._left.add(line.id, line.lane, line.name)
            for intent in stored.in_doubt:
                self._doubts[intent.place] = intent
                self._left.add(intent.id, intent.lane, intent.name)
        self._stale_tags = tuple(dict.fromkeys(tag for one in self._doubts.values() for tag in one.tags))
        self._lane_numbers = LaneNumbers(lines, opened, ambiguous)
        self._lines = lines
        answers = JournalMatcher(cassette, lines, self._left)
        writer = JournalWriter(file, journal._redaction, stored)
        super().__init__(path, "journal", journal._redaction, answers=answers, file=writer, http=journal._http)
        writer.latch = self.latch

    @property
    def cassette(self) -> Cassette:
        """The calls that have ended so far."""
        return Cassette.load(self.file.path)

    # The beginning of a call

    def _begin(
        self,
        function: RecordedFunction,
        arguments: Mapping[str, Any],
        key: str | None = None,
        *,
        asker: str = "",
    ) -> ActiveCall:
        try:
            return super()._begin(function, arguments, key, asker=asker)
        finally:
            self.redaction.take_note()  # only outcomes are noted

    def _place(
        self,
        call: ActiveCall,
        arguments: Mapping[str, Any],  # noqa: ARG002 - those that are written are enough
        answers: Matcher,
    ) -> int | None:
        """Find a call by its arguments before redaction: two that only differ in a secret are two."""
        parent = call.parent
        counts, enclosing = (self._counts, self._root) if parent is None else (parent.counts, parent.place)
        if call.given is not None:
            name, key = call.function.name, call.given_key
            digest = digest_of(name, call.given) if key is None else digest_of_key(name, key)
            call.matched = with_asker(digest, call.asker)
        call.occurrence = counts.get(call.matched, 0)
        counts[call.matched] = call.occurrence + 1
        call.place = place_of(enclosing, call.matched, call.occurrence)
        index = answers.find(call.place)
        numbers = self._lane_numbers
        if index is not None:
            numbers.identify(call.lane, index, answers.outline.lanes[index])
            if call.lane in self._new_in:
                self._check_identified(call, answers.outline.ids[index])
        call.lane, call.forked = numbers.number(call.lane), numbers.number(call.forked)
        return index

    def _look_up(self, call: ActiveCall, index: int | None, answers: Matcher) -> None:
        if index is not None and call.asker == UNKNOWN_ASKER:
            if not call.function.is_read:
                self._refuse(call, CassetteError(by_nobody(call), self.path or ""))
        elif index is not None:
            self.take(call, index, answers)
        elif self.error is not None and not self.file.is_over:
            self._refuse(call, self.error)

    def take(self, call: ActiveCall, index: int, answers: Matcher) -> None:
        """Answer a call with the one at this index, as it was before redaction.

        Raises:
            CassetteError: if it cannot be read.
        """
        super().take(call, index, answers)
        line = self._lines[index]
        if line.original and self._codec is not None and call.recorded is not None:
            try:
                data: Any = self._codec.decode(base64.b64decode(line.original), bytes, context=line.place)
            except (Undecodable, ValueError) as error:
                reason = f"the original outcome of call {line.id} cannot be decrypted: {error}"
                raise self.latch(JournalError(reason, self.source_path, index + 2)) from error
            kept = {name: call.recorded.outcome[name] for name in _OF_CALLS if name in call.recorded.outcome}
            call.recorded = msgspec.structs.replace(call.recorded, outcome={**decode(data), **kept})

    def turn(self, call: ActiveCall) -> Awaitable[None]:
        """As a tape; also for an answer that is not in the journal, but was just found out."""
        return checkpoint() if call.index is None else super().turn(call)

    def _refuse(self, call: ActiveCall, error: CassetteError) -> NoReturn:
        """Stop the run in a call that must not be made."""
        self.file.void(call)
        raise self.latch(error).with_traceback(None)

    def run(
        self, function: RecordedFunction, args: tuple[Any, ...], kwargs: dict[str, Any], proceed: Callable[[], Any]
    ) -> Any:
        """As a tape; what a check function calls is only made."""
        return proceed() if _CHECKING.get() is self else super().run(function, args, kwargs, proceed)

    async def play(self, call: InterceptedCall) -> Any:
        """Likewise."""
        if self._stale_tags:
            await self._drop_stale(is_sync=call.operation.is_sync)
        return await (call.proceed() if _CHECKING.get() is self else super().play(call))

    def play_stream(self, call: InterceptedCall) -> Any:
        """Likewise, for a streaming tool."""
        stream = proceed_stream(call) if _CHECKING.get() is self else super().play_stream(call)
        if not self._stale_tags:
            return stream
        operation: Any = call.operation
        prepare = partial(self._drop_stale, is_sync=operation.is_sync)
        return operation.iterate(lambda: operation.relay(stream, prepare))

    async def _run_async(self, call: ActiveCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
        if call.recorded is None and (doubt := self._admit(call)) is not None:
            value = self._decide_at_once(call, doubt) if call.is_sync_tool else self._decide(call, doubt)
            if inspect.isawaitable(value):
                try:
                    with self._checking(call):
                        value = await value
                except NotDone as not_done:
                    value = not_done
                except Exception as error:  # noqa: BLE001 - the user's function
                    self._check_failed(call, doubt, error)
            if not _is_not_done(value):
                return self._settle(call, doubt, value)
            self._rerun(doubt)
        return await super()._run_async(call, proceed)

    def _run_plain(self, call: ActiveCall, proceed: Callable[[], Any]) -> Any:
        if call.recorded is None and (doubt := self._admit(call)) is not None:
            value = self._decide_at_once(call, doubt)
            if not _is_not_done(value):
                return self._settle(call, doubt, value)
            self._rerun(doubt)
        return super()._run_plain(call, proceed)

    def _run_stream(self, call: ActiveCall, proceed: Callable[[], Any]) -> Any:
        if call.recorded is None and (doubt := self._admit(call)) is not None:
            if not _is_not_done(self._decide_at_once(call, doubt)):
                self._in_doubt(call, doubt, "is a stream, which can only raise or be made again")
            self._rerun(doubt)
        return super()._run_stream(call, proceed)

    def begin_exchange(self, endpoint: RecordedFunction, arguments: Mapping[str, Any]) -> ActiveCall:
        """Find the answer of a request in the journal, or write that it begins.

        Raises:
            CassetteError: if it must not be made.
        """
        call = super().begin_exchange(endpoint, arguments)
        if call.recorded is None and (doubt := self._admit(call)) is not None:
            value = self._decide_at_once(call, doubt)
            if _is_not_done(value):
                self._rerun(doubt)
            else:
                self._settle_request(call, doubt, value)
        return call

    def _admit(self, call: ActiveCall) -> Intent | None:
        """Write that a write begins, unless it is in doubt: then that is returned.

        Raises:
            CassetteError: if the write must not be made.
        """
        if not self._is_write(call):
            return None
        writer = self.file
        with self._lock:
            if writer.is_over:
                if writer.is_sealed:
                    return None
                raise writer.ended()
            if self._doubts and (doubt := self._doubts.get(call.place.hex())) is not None:
                return doubt
            if not writer.has_begun(call):
                if self._left:
                    self._check_lane(call)
                writer.begin_write(call, self._intent(call))
        return None

    def _is_write(self, call: ActiveCall) -> bool:
        if call.tool_call is not None:
            return not call.tool_call.operation.is_read
        kind = call.function.kind
        return kind in _MAYBE_WRITES and _call_of(call).is_write

    def _check_lane(self, call: ActiveCall) -> None:
        """Refuse a new write of a task that had made others, and has not made them again.

        Which task of the journal this one is may not be known, or not for certain: then the write is remembered, and
        compared at the end of the block.
        """
        name = call.function.name
        lane = self._lane_numbers.certain(self.lanes.current().number)
        first = None if lane is None else self._left.first(lane=lane)
        if first is not None:
            number, other = first
            text = (
                f"{described(name, call.arguments)} is a new write, but when this run was made before, the same task "
                f"made {other} (call {number}), and has not come to it now. The write was not made, because it may be "
                "that one with other arguments. What varies from run to run, such as the date in a prompt, must come "
                "from a recorded call, as agent_cache.recording.now()"
            )
            self._refuse(call, DivergenceError(None, None, call_data(call), text, self.file.path))
        if self._left.first(name=name) is not None:
            shown = described(name, call.arguments)
            self._new_writes.setdefault(name, shown)
            self._new_in.setdefault(self.lanes.current().number, shown)

    def _check_identified(self, call: ActiveCall, number: int) -> None:
        """Stop a task that is now known, and that has made a new write in the place of one that it had made before.

        Args:
            call: the call that is answered here.
            number: the id of its answer, which the other write is in front of.
        """
        lane = self._lane_numbers.certain(call.lane)
        first = None if lane is None else self._left.first(lane=lane)
        if first is not None and first[0] < number:
            text = (
                f"{self._new_in[call.lane]} was made as a new write, and call {first[0]} of {first[1]}, which the same "
                "task had made before, was not made again: it may have taken effect twice, with other arguments"
            )
            self._refuse(call, DivergenceError(None, None, None, text, self.file.path))

    def _intent(self, call: ActiveCall) -> Intent:
        tags: list[str] = []
        if call.tool_call is not None:
            tags = [self._tag_of_intent(call, tag) for tag in tags_of_intent(call.tool_call)]
            self.redaction.take_note()
        return Intent(
            id=call.id,
            parent=None if call.parent is None else call.parent.id,
            kind=call.function.kind,
            name=call.function.name,
            arguments=call.arguments,
            place=call.place.hex(),
            key=self._new_key(call),
            after=call.after,
            lane=call.lane,
            forked=call.forked,
            tags=sorted(set(tags)),
        )

    def _tag_of_intent(self, call: ActiveCall, tag: str) -> str:
        """A tag as an intent has it: the root of one that redaction changes, or that UTF-8 cannot hold.

        A resume invalidates what stands there. Redacted or escaped it would be another tag.
        """
        given = call.arguments if call.given is None else call.given
        written = utf8_text(redact_key(tag, given, call.arguments, self.redaction))
        return tag if written == tag else utf8_text(root_of(tag))

    def key_of(self, call: ActiveCall) -> str | None:
        """The idempotency key of a running call; None if it is no write."""
        if not self._is_write(call):
            return None
        return self._reruns.get(call.place.hex()) or self._new_key(call)

    def _new_key(self, call: ActiveCall) -> str:
        return blake2b(self._run + call.place, key=self._secret, digest_size=16, person=b"idempotency").hexdigest()

    # Writes in doubt

    async def _drop_stale(self, *, is_sync: bool) -> None:
        """Invalidate what writes in doubt may have changed, before any tool looks into a cache."""
        tags = self._stale_tags
        parsed = [tuple(map(unescape, tag.split(":"))) for tag in tags]
        if is_sync:
            invalidate_sync(*parsed)
        else:
            await invalidate(*parsed)
        if self._stale_tags is tags:
            self._stale_tags = ()

    def _decide(self, call: ActiveCall, doubt: Intent) -> Any:
        """What is done with a write in doubt: the value that it has, an awaitable of that, or `NotDone`.

        Raises:
            InDoubtError: if nothing was declared, or the check failed.
        """
        choice = self._choices.of(call.function)
        if choice == "rerun":
            return NotDone
        if choice == "notice":
            name = doubt.name if doubt.kind == "http" else doubt.name.rpartition(":")[2]  # as the model knows it
            return (
                f"It is not known whether {described(name, call.arguments)} took effect: the process ended while it "
                "was running. Do not repeat it before you know; look at what it would have changed."
            )
        if not callable(choice):
            self._in_doubt(call, doubt)
        try:
            with self._checking(call):
                return choice(_given_arguments(call), doubt.key)
        except NotDone as not_done:
            return not_done
        except Exception as error:  # noqa: BLE001 - the user's function
            self._check_failed(call, doubt, error)

    @contextmanager
    def _checking(self, call: ActiveCall) -> Iterator[None]:
        """Make what a check function calls as if there were neither a journal nor a cache.

        The next process must look again: what this one has seen may not be true any more, once the write ran again.
        """
        current, checking = CURRENT_CALL.set(call), _CHECKING.set(self)  # no request inside of a call is written down
        try:
            with bypass():
                yield
        finally:
            leave_call(current)
            try:
                _CHECKING.reset(checking)
            except ValueError:
                pass  # closed by the garbage collector, in another context than it ran in

    def _decide_at_once(self, call: ActiveCall, doubt: Intent) -> Any:
        value = self._decide(call, doubt)
        if inspect.iscoroutine(value):
            value.close()
        if inspect.isawaitable(value):
            self._in_doubt(call, doubt, "is not asynchronous, and its check function is")
        return value

    def _check_failed(self, call: ActiveCall, doubt: Intent, error: Exception) -> NoReturn:
        reason = f"is in doubt (idempotency key {doubt.key}), and its check function raised {error!r}"
        try:
            self._in_doubt(call, doubt, reason)
        except InDoubtError as raised:
            raise raised from error

    def _in_doubt(self, call: ActiveCall, doubt: Intent, reason: str = "") -> NoReturn:
        reason = reason or (
            "had begun when an earlier process of this run ended, and nothing says whether it took effect (idempotency "
            f"key {doubt.key}). Find out, and say by on_doubt= what is to be done"
        )
        text = f"{described(call.function.name, call.arguments)} {reason}"
        error = InDoubtError(call.function.name, call.arguments, doubt.key, text, self.file.path)
        with self._lock:
            self._refuse(call, error)

    def _rerun(self, doubt: Intent) -> None:
        with self._lock:
            self._reruns[doubt.place] = doubt.key
            self._doubts.pop(doubt.place, None)
            self._left.remove(doubt.id)

    def _settle(self, call: ActiveCall, doubt: Intent, value: Any) -> Any:
        """The write has this value, as if it had returned it when it ran."""
        tool_call = call.tool_call
        if tool_call is not None:
            tool_call.source = "write"
        self._close_doubt(doubt)
        value = self._returned(call, value)
        if tool_call is not None:
            call.recorded = msgspec.structs.replace(_call_of(call), source="write")
            show_in_sessions(call, value, None)
        return value

    def _settle_request(self, call: ActiveCall, doubt: Intent, value: Any) -> None:
        outcome = {"response": value}
        try:
            check_outcome(outcome)
        except msgspec.ValidationError as error:
            reason = f'is a request, for which a check returns a response as {{"status": 200, "json": ...}}: {error}'
            self._in_doubt(call, doubt, reason)
        self._close_doubt(doubt)
        self.end_exchange(call, outcome)
        call.recorded = msgspec.structs.replace(_call_of(call), outcome=outcome)

    def _close_doubt(self, doubt: Intent) -> None:
        """Forget a write that is not made again, and what it enclosed."""
        with self._lock:
            self._doubts.pop(doubt.place, None)
            self._left.remove(doubt.id)
            inside = {doubt.id}
            outline = self.answers.outline
            for intent in sorted(self._doubts.values(), key=lambda one: one.id):
                if intent.parent in inside:
                    inside.add(intent.id)
                    del self._doubts[intent.place]
                    self._left.remove(intent.id)
            for index, parent in enumerate(outline.parents):
                if parent in inside:
                    self.answers.cover(index)

    # The end of a call

    def answered(self, call: ActiveCall) -> None:
        """A call has ended that was answered."""
        if call.index is not None:
            super().answered(call)

    def _returned(self, call: ActiveCall, value: Any) -> Any:
        if not is_stream(value):
            self._originals.of = lambda: value_outcome(value, call.schema, UNREDACTED)
        return super()._returned(call, value)

    def _raised(self, call: ActiveCall, error: BaseException) -> None:
        self._originals.of = lambda: failure_outcome(error, UNREDACTED)
        super()._raised(call, error)

    def _stream_ended(self, call: ActiveCall, end: dict[str, Any], chunks: list[Any] | None) -> None:
        if not self.redaction.has_note:  # else the end was changed, which is not known any more
            self._originals.of = lambda: call.stream_outcome(end, UNREDACTED)
        super()._stream_ended(call, end, chunks)

    def _write(self, call: ActiveCall, outcome: dict[str, Any]) -> None:
        has_changed = self.redaction.take_note()
        original = getattr(self._originals, "of", None)
        self._originals.of = None
        if call.exchange is not None and "response" in outcome:
            original = partial(call.exchange.whole_outcome, UNREDACTED)
        if has_changed and not self.file.is_over:
            self.file.keep_original(call, self._encrypted(call, original))
        super()._write(call, outcome)
        self.redaction.take_note()  # of the tags

    def _encrypted(self, call: ActiveCall, original: Callable[[], dict[str, Any]] | None) -> str | None:
        if self._codec is None:
            if call.function.name not in _hidden:
                _hidden.add(call.function.name)
                _LOG.warning(
                    "%s: redaction has changed an outcome of %s, so this run cannot be resumed behind it; give the "
                    "journal a key=",
                    self.file.path,
                    call.function.name,
                )
            return None
        if original is None:
            return None
        data = self._codec.encode(encode(original()), bytes, context=call.place)
        return base64.b64encode(data).decode()

    # The end of the run

    def finish(self, error: BaseException | None) -> None:
        """Seal the journal if the run has come to its end, and raise what something has swallowed.

        Raises:
            CassetteError: a latched error of the journal; if a write in doubt was not made again, or a write was made
                that may be another one with other arguments; if the journal cannot be sealed.
        """
        self.lanes.is_over = True
        with self._lock:
            problem: CassetteError | None = None
            if error is None:
                problem = self._failure or self.error or self._undone()
            self.file.finish(error or problem)
        if problem is not None:
            raise problem.with_traceback(None)

    def _undone(self) -> CassetteError | None:
        """What a run that has returned has not made again."""
        for doubt in self._doubts.values():
            if self._choices.of_intent(doubt) == "raise":
                text = (
                    f"{described(doubt.name, doubt.arguments)} had begun when an earlier process of this run ended, "
                    f"nothing says whether it took effect (idempotency key {doubt.key}), and the resumed run has not "
                    "made it again. Find out, and say by on_doubt= what is to be done"
                )
                return InDoubtError(doubt.name, doubt.arguments, doubt.key, text, self.file.path)
        for name, shown in self._new_writes.items():
            if (first := self._left.first(name=name)) is not None:
                text = (
                    f"{shown} was made as a new write, and call {first[0]} of the same tool, which this run had made "
                    "before, was not made again: it may have taken effect twice, with other arguments"
                )
                return DivergenceError(None, None, None, text, self.file.path)
        if self._left:
            _LOG.warning("%s: the resumed run has not come to writes that it had made: %s", self.file.path, self._left)
        return None


_OF_CALLS = ("awaited", "instead", "loops")
"""What an outcome has beside the value, from other sources than the tool."""
_MAYBE_WRITES = frozenset({"http", "write"})
_CHECKING: ContextVar[_JournalTape | None] = ContextVar("agent_cache_checking", default=None)
"""The journal whose check function runs here."""
_hidden: set[str] = set()


def _call_of(call: ActiveCall) -> RecordedCall:
    return RecordedCall(id=call.id, kind=call.function.kind, name=call.function.name, outcome={})


def _given_arguments(call: ActiveCall) -> dict[str, Any]:
    """The arguments of a call as the program has passed them; of a request, as data."""
    args, kwargs = call.passed
    if call.tool_call is not None:
        return dict(call.function.recorded_arguments(call.tool_call.recorded_arguments))
    if args or kwargs:
        return dict(call.function.recorded_arguments(call.function.bind(args, kwargs)))
    return call.arguments if call.given is None else call.given


def _is_not_done(value: Any) -> bool:
    return value is NotDone or isinstance(value, NotDone)


class Run:
    """The run of a session while it is written down.

    Attributes:
        path: the journal.
    """

    def __init__(self, tape: _JournalTape, session_id: str, stored: StoredJournal | None) -> None:
        self.path = tape.file.path
        self._tape = tape
        self._session_id = session_id
        self._earlier = [] if stored is None else list(stored.checkpoints)
        self._sequence = len(self._earlier)

    async def checkpoint(self, label: str, state: Any, importance: float) -> Checkpoint:
        """Write a checkpoint. One that the run had made before it was resumed is not written again.

        Raises:
            CheckpointError: if the state cannot be written.
            JournalError: if the journal cannot be written.
        """
        tape = self._tape
        with tape._lock:
            made = Checkpoint(
                session_id=self._session_id,
                sequence=self._sequence + 1,
                after=tape.file.last_id,
                label=label,
                importance=importance,
                state=state,
            )
            line = checkpoint_line(made, tape.redaction)
            tape.redaction.take_note()
            written = checkpoint_of(decode(line)["checkpoint"], self._session_id)
            for at, earlier in enumerate(self._earlier):
                if _is_same_checkpoint(earlier, written):
                    return self._earlier.pop(at)
            tape.file.put_checkpoint(line)
            self._sequence += 1
        return made


def _is_same_checkpoint(one: Checkpoint, other: Checkpoint) -> bool:
    fields = ("label", "importance", "framework")
    return all(getattr(one, name) == getattr(other, name) for name in fields) and (
        one.state == other.state or state_data(one.state) == state_data(other.state)  # NaN does not equal itself
    )


def _interceptors() -> Iterator[object]:
    """The recordings around this place."""
    scope = PLACE.get().scope
    while scope.outside is not None:
        yield scope.interceptor
        scope = scope.outside


class _Attached(Block[Run]):
    """The block of one session's run."""

    _path: Path

    def __init__(self, journal: Journal, session_id: str) -> None:
        self._journal = journal
        self._session_id = session_id
        self._path = journal.path(session_id)

    def _open(self) -> tuple[Tape, Run]:
        journal = self._journal
        if any(isinstance(one, _JournalTape) for one in _interceptors()):
            raise ConfigurationError(
                f"the session {self._session_id!r} is inside of one that has a journal, which has its calls; give only "
                "the outer one a journal"
            )
        file, stored = self._open_file()
        try:
            if stored is None:
                header = self._new_header()
                line = encode(header)
            else:
                header = stored.header
                self._check_settings(header)
                self._check_originals(stored)
                line = encode({"resumed": {"at": now_text(), "calls": len(stored.lines)}})
            tape = _JournalTape(self._path, journal, header, stored, file)
            run = Run(tape, self._session_id, stored)
            file.append(line + b"\n", is_urgent=True)
        except BaseException as error:
            file.close()
            if isinstance(error, OSError):
                raise JournalError(f"cannot be written: {error.strerror}", self._path) from error
            raise
        return tape, run

    def _open_file(self) -> tuple[JournalFile, StoredJournal | None]:
        """The file, and what is in it. A sealed one gets another name first, if the user wants a new run.

        Raises:
            JournalEnded: if it is sealed, and the user has not said so.
        """
        while True:
            file = JournalFile(self._path, is_durable=self._journal._is_durable)
            try:
                stored = file.read()
                if stored is not None:
                    check_session(stored, self._session_id)
                    if stored.is_torn:
                        _LOG.warning("%s: its last line was not written as a whole, and is dropped", self._path)
                    if stored.is_sealed:
                        self._check_restart(stored)
                        file.set_aside(stored.run)
                        continue
            except BaseException as error:
                file.close()
                if isinstance(error, OSError):
                    raise JournalError(f"cannot be read: {error.strerror}", self._path) from error
                raise
            return file, stored

    def _check_restart(self, stored: StoredJournal) -> None:
        if not self._journal._restarts:
            raise JournalEnded(self._session_id, stored.header.recorded_at, len(stored.lines), self._path)

    def _new_header(self) -> JournalHeader:
        journal = self._journal
        http = None if journal._http is None else journal._http.describe(journal._redaction)
        header = new_header(self._session_id, journal._redaction.describe(), http)
        if journal._codec is None:
            return header
        check = journal._codec.encode(b"", bytes, context=header.secret.encode())
        return msgspec.structs.replace(header, check=base64.b64encode(check).decode())

    def _check_settings(self, header: JournalHeader) -> None:
        journal = self._journal
        http = msgspec.UNSET if journal._http is None else journal._http.describe(journal._redaction)
        for name, one, other in (
            ("redact", header.redact, journal._redaction.describe()),
            ("http", header.http, http),
            ("key", bool(header.check), journal._codec is not None),
        ):
            if one != other:
                raise ConfigurationError(
                    f"Journal: the run in {self._path} was begun with another {name}= and can only be resumed with "
                    "the same"
                )
        if journal._codec is not None:
            try:
                journal._codec.decode(base64.b64decode(header.check), bytes, context=header.secret.encode())
            except (Undecodable, ValueError) as error:
                raise JournalError("was begun with another key=", self._path, 1) from error

    def _check_originals(self, stored: StoredJournal) -> None:
        """Refuse to resume a run that needs an outcome which is not known."""
        parents = {line.id: line.parent for line in stored.lines}
        for line in stored.lines:
            if line.is_lost and line.parent not in parents:
                raise JournalError(
                    f"cannot be resumed: the outcome of {line.name} (call {line.id}) cannot be given back, because "
                    "redaction has changed it or it could not be written. A journal with a key= keeps what redaction "
                    "changes. Nothing was run",
                    self._path,
                )
