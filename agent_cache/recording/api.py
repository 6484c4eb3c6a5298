"""Entry points of recording: `record`, `replay`, the refusal of live calls, and recorded times and random values."""

from __future__ import annotations

import os
import random as _random
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from copy import copy
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

import msgspec

from agent_cache.config import BlockOnly
from agent_cache.core.options import checked_choice, checked_flag
from agent_cache.engine.hooks import HookedCall
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import HOOKS, PLACE, Scope, closes_generator, leave_scope
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording.call_log import CallListener, CassetteLog, ObservedCalls
from agent_cache.recording.cassette import Cassette, apply_rules, recorded_rules, redacted_name
from agent_cache.recording.file import CALLS_OF_LITELLM
from agent_cache.recording.functions import FunctionCall, RecordedFunction, check_names, wrapped
from agent_cache.recording.http.identity import Http
from agent_cache.recording.http.seams import Seams, install_guard
from agent_cache.recording.match import Matcher
from agent_cache.recording.outcomes import decode, encode
from agent_cache.recording.partial_file import is_being_recorded
from agent_cache.recording.redaction import Redaction, redaction_of
from agent_cache.recording.tape import Tape

MODES = ("none", "once", "new_episodes", "all", "rewrite")
POLICIES = ("stub", "live", "forbid")

Mode = Literal["none", "once", "new_episodes", "all", "rewrite"]
Policy = Literal["stub", "live", "forbid"]

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Tape)

SEAMS = Seams()  # those of the process


class Block(BlockOnly, Generic[H]):
    """A block whose calls pass through a tape: ``with`` and ``async with`` alike.

    A subclass sets `_path`, if there is a file; its `_open` makes the tape, which ``as`` binds.
    """

    is_guarded = False
    ends_refusal = True
    _bypasses = False
    _path: Path | None = None
    _entered: tuple[H, Scope, Scope, Token[Scope]] | None = None
    """The tape, the scope around the block, that in it, and how to leave it."""
    _has_ended = False

    def _open(self) -> H:
        raise NotImplementedError

    def __enter__(self) -> H:
        if self._entered is not None:
            raise CassetteError(f"is entered already; make another {type(self).__name__}", self._path or "")
        outer = PLACE.get().scope
        tape = self._open()
        self._has_ended = False
        HOOKS[tape] = None
        if tape.http is not None:
            SEAMS.enter()
            if tape.http.guard:
                install_guard()
        tape.lanes.current()  # this is lane 0
        around = outer
        while self.ends_refusal and around.outside is not None and isinstance(around.hook, LiveCallBlocker):
            around = around.outside
        if self._bypasses:
            around = around.variant(bypasses=True)
        scope = around.with_hook(tape)
        self._entered = tape, outer, scope, scope.enter()
        return tape

    def end(self, error: BaseException | None = None) -> None:
        """Write the file and check the replay now, as the end of the block would, which then only leaves.

        Until the block is left, calls are answered if they are recorded. Others raise in a replay, and run in a
        recording.
        """
        if self._entered is None or self._has_ended:
            raise CassetteError("is not entered, or has ended", self._path or "")
        self._has_ended = True
        self._entered[0].finish(error)

    def drop(self) -> None:
        """Discard what was recorded and check nothing. Does nothing if the recording has ended."""
        if self._entered is not None and not self._has_ended:
            self._has_ended = True
            self._entered[0].discard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is None:
            raise CassetteError("is not entered", self._path or "")
        (tape, outer, scope, token), self._entered = self._entered, None
        HOOKS.pop(tape, None)
        try:
            if not self._has_ended:
                tape.finish(error)
        finally:
            tape.lanes.leave()
            if tape.http is not None:
                SEAMS.leave()
            is_closing = closes_generator(error)
            if not leave_scope(scope, outer, token, is_closing=is_closing) and not is_closing:
                name = type(self).__name__ if self._path is None else f"the recording of {self._path}"
                raise ConfigurationError(
                    f"{name} was entered in one context and left in another, so what ran in "
                    "between may have been outside of it; enter and leave it in the same task, as one `with` does"
                ) from None


class record(Block[Tape]):  # noqa: N801 - used as a function, as in vcrpy and agentcassette
    """Record what a run sees: ``with record("tests/run.jsonl") as tape: ...``

    Each call is written when it ends, redacted: its value, exception or stream, also if a cache answered it. Recorded
    are tools decorated with `AgentCache` or `AgentCacheInvalidator`, functions under `intercept` and `cached_llm_call`,
    and `now`, `uuid4` and `random` of this module. Child tasks and `asyncio.to_thread` belong to the run that started
    them; concurrent runs do not see each other. A recording inside of another one is part of both.

    Args:
        path: the file. It grows as ``PATH.partial`` and takes its place at the end, also if the block raises.
        model: a label.
        redact: names of secrets and compiled patterns, in addition to the known ones; a hook; or a `Redaction`.
        mode: ``"rewrite"`` records anew. ``"none"`` only replays. ``"once"`` records if there is no file, else it
            replays. ``"new_episodes"`` replays recorded calls and records the others. ``"all"`` runs and records every
            call, and keeps recorded calls that are not made.
        strict: for calls that are replayed, as in `replay`. Also raises at the end if a call was recorded that cannot
            be replayed, which else is logged.
        policy: for calls that are replayed; as in `replay`. What it forbids is not recorded either.
        http: True also records the requests that httpx, aiohttp, urllib3 (requests, boto3) and urllib.request make, and
            with them the calls of a model that clients make by these; `Http` says which of them. False does not. By
            default, and with True, the settings of a cassette that is replayed count.
        cache: False runs every read, as in `agent_cache.bypass`: such a recording shows what the tools would have
            answered, which `agent-cache advise` needs. A recording with the cache on hides its stale answers.

    Raises:
        CassetteError: if the path cannot be written, is another file or is being recorded; at the end, as `replay`, and
            under `strict` if a recorded call cannot be replayed.
        ConfigurationError: if an argument cannot work.
    """

    _path: Path

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        model: str | None = None,
        redact: Any = None,
        mode: Mode = "rewrite",
        strict: bool = False,
        policy: Mapping[str, Policy] | None = None,
        http: bool | Http | None = None,
        cache: bool = True,
    ) -> None:
        caller = type(self).__name__
        self._path = checked_path(path, f"{caller}: path")
        self._bypasses = not checked_flag(cache, f"{caller}: cache")
        if model is not None and not isinstance(model, str):
            raise ConfigurationError(f"{caller}: model must be a text, got {model!r}")
        self._model = model
        self._redaction = redaction_of(redact)
        self._mode = checked_choice(mode, MODES, f"{caller}: mode")
        self._strict = checked_flag(strict, f"{caller}: strict")
        if policy is not None and not (isinstance(policy, Mapping) and all(isinstance(name, str) for name in policy)):
            raise ConfigurationError(f"{caller}: policy must map names of tools to one of {POLICIES}, got {policy!r}")
        self._policy = {
            name: checked_choice(value, POLICIES, f"{caller}: policy of {name!r}")
            for name, value in (policy or {}).items()
        }
        self._http = http
        Http.of(http, caller)

    def _open(self) -> Tape:
        mode = self._mode
        if mode == "once":
            mode = "none" if os.path.exists(self._path) else "rewrite"  # noqa: PTH110 - not an error for a name that is too long
        if mode == "none" and is_being_recorded(self._path):
            raise CassetteError("is being recorded; replay it when that has ended", self._path)
        redaction, answers, model = self._redaction, None, self._model
        http = Http.of(self._http, "record")
        if mode != "rewrite":
            try:
                old, redaction = loaded(self._path, redaction)
            except CassetteNotFound:
                if mode == "none":
                    raise
            else:
                answers = Matcher(old, redaction)
                model = old.model if model is None else model
                recorded = recorded_http(old)
                if self._http is None or (self._http is True and recorded is not None):
                    http = recorded
        check_names(self._policy, () if answers is None else answers.cassette, self._path)
        described = None if http is None else http.describe(redaction)
        file = None if mode == "none" else CassetteLog(self._path, model, redaction, described)
        return Tape(
            self._path, self._mode, redaction, answers=answers, file=file, policy=self._policy, strict=self._strict,
            is_guarded=self.is_guarded, http=http,
        )  # fmt: skip


class replay(record):  # noqa: N801 - as `record`
    """Replay a recording: ``with replay("tests/run.jsonl") as tape: ...``

    Each call gets the recorded outcome of the same call. Calls are the same by name, arguments, the calls that enclose
    them, and how often they were made there; their order does not matter. Nothing runs: a call that is not recorded
    raises, and the error is raised again at the end if something has swallowed it.

    Args:
        path: a cassette, of agent_cache or agentcassette.
        strict: also demands that calls of one task which did not overlap come in the order in which they were recorded,
            and that nothing recorded is left over.
        policy: by name of a function: ``"stub"`` answers from the recording, ``"live"`` runs it, ``"forbid"`` raises.
        redact: the hook that `record` was given, if it was given one. The file knows names and patterns.

    Raises:
        CassetteNotFound: if there is no such file.
        CassetteError: if it is broken, has merge conflicts, has a newer version, is no cassette, or is being recorded.
        DivergenceError: for a call that is not recorded; at the end, under `strict`, if one is left over.
        ReplayExhausted: for a call that was made more often than it was recorded.
        ConfigurationError: if an argument cannot work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        strict: bool = False,
        policy: Mapping[str, Policy] | None = None,
        redact: Any = None,
    ) -> None:
        super().__init__(path, mode="none", strict=strict, policy=policy, redact=redact)


class observe(Block[Tape]):  # noqa: N801 - as `record`
    """Show the calls of a run to listeners: ``with observe(listener): ...``

    It sees what `record` would write, and writes nothing. Recordings and replays around it get the calls, too. Calls
    whose arguments do not tell them from others are shown all the same.

    Args:
        listeners: each a `CallListener`, such as a `DriftDetector`.
        redact: as in `record`.
        http: as in `record`; by default as the listeners want it.

    Raises:
        ConfigurationError: if an argument cannot work.
    """

    ends_refusal = False  # it makes no live call a recorded one

    def __init__(self, *listeners: CallListener, redact: Any = None, http: bool | Http | None = None) -> None:
        redaction = redaction_of(redact)
        for listener in listeners:
            if isinstance(listener, type) or not isinstance(listener, CallListener):
                raise ConfigurationError(
                    f"observe: {listener!r} is no listener; give it the methods on_start(call) and on_end(call)"
                )
            wanted = getattr(listener, "redaction", None)
            if wanted is not None:  # but for its hook, which is the user's, and given as `redact=`
                redaction = redaction.joined(wanted.without_hook().describe())
            if http is None:
                http = getattr(listener, "http", None)
        self._listeners, self._redaction = listeners, redaction
        self._http = Http.of(http, "observe")

    def _open(self) -> Tape:
        log = ObservedCalls(self._redaction, self._listeners)
        return Tape(None, "observe", self._redaction, file=log, http=self._http)


def loaded(source: Path | Cassette, given: Redaction) -> tuple[Cassette, Redaction]:
    """Load a cassette, and redact in it what was not redacted when it was recorded. Returns all rules together.

    A cassette that is in memory stays as it is, whatever the run makes of its values.
    """
    cassette, path = (copy(source), source.path) if isinstance(source, Cassette) else (Cassette.load(source), source)
    if isinstance(source, Cassette):
        cassette.steps = [msgspec.structs.replace(one, outcome=decode(encode(one.outcome))) for one in source]
    if any(call.form and call.name in CALLS_OF_LITELLM for call in cassette):  # else the model would be called
        raise CassetteError("has calls of litellm, which only recording.litellm.LLMReplay answers", path)
    redaction = given.joined(cassette.header.redact)
    before, rules = Redaction().joined(recorded_rules(cassette)), redaction
    if cassette.header.redact.get("hook"):
        rules = redaction.without_hook()
    # Names of requests are compared as they are, and those of an earlier version may have a secret.
    has_secret_name = any(redacted_name(name, rules) != name for name in {call.name for call in cassette})
    if rules.describe() != before.describe() or has_secret_name:
        apply_rules(cassette, rules)
    return cassette, redaction


def recorded_http(cassette: Cassette) -> Http | None:
    """What HTTP a cassette has."""
    described = cassette.header.http
    try:
        return None if described is msgspec.UNSET else Http.described(described)
    except ConfigurationError as error:
        raise CassetteError(f"http: {error}", cassette.path, 1) from error


def checked_path(path: Any, argument: str) -> Path:
    """Check for a path. The error names the argument."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in str(path):
        raise ConfigurationError(f"{argument} must be a path, got {path!r}")
    return Path(path)


# Refusal of live calls


class LiveCallBlocker:
    """Hook that refuses every call, also one that a cache would answer, since that depends on earlier calls.

    `now`, `uuid4` and `random` run.

    Attributes:
        is_lifted: lets every call run.
        error: the first refusal since this was set to None, in case something has swallowed it.
    """

    http = Http()

    def __init__(self, advice: str) -> None:
        self.advice, self.is_lifted = advice, False
        self.error: CassetteError | None = None
        self.thread = threading.get_ident()

    def begin(self, call: HookedCall | FunctionCall) -> None:
        """Refuse a call."""
        self.escaped(call.function if call.operation is None else call.operation)

    def escaped(self, called: Operation[Any] | RecordedFunction) -> None:
        """Raise CassetteError for a call, in this context or in a thread without one, unless it may run."""
        if self.is_lifted or getattr(called, "kind", "tool") == "env":
            return
        error = CassetteError(f"{called.name} was called outside of a recording. {self.advice}")
        self.error = self.error or error
        raise error


@contextmanager
def block_live_calls(advice: str) -> Iterator[LiveCallBlocker]:
    """Refuse calls of tools, of functions under `intercept` and `cached_llm_call`, and requests, outside of recordings.

    Requests to other servers on loopback than models are made: they are the test's own.

    This holds in this context, in tasks and `asyncio.to_thread` started in it, and in threads without a context. A
    `record` or `replay` inside of the block decides about its own calls.
    """
    blocker = LiveCallBlocker(advice)
    outer = PLACE.get().scope
    scope = outer.with_hook(blocker)
    token = scope.enter()
    HOOKS[blocker] = None
    SEAMS.enter()
    try:
        yield blocker
    finally:
        SEAMS.leave()
        del HOOKS[blocker]
        leave_scope(scope, outer, token, is_closing=False)


# Clock, identifiers, random numbers: explicit calls, nothing global is patched


def _env(function: F) -> F:
    recorded: F = wrapped(RecordedFunction(function, f"agent_cache.recording:{function.__name__}", "env"))
    return recorded


@_env
def now(tz: tzinfo | None = UTC) -> datetime:
    """The time, in UTC unless `tz` is given; in a replay the recorded time. None is local time without a zone."""
    return datetime.now(tz)


@_env
def uuid4() -> uuid.UUID:
    """A random identifier; in a replay the recorded one."""
    return uuid.uuid4()


@_env
def random() -> float:
    """A random number from 0 up to 1; in a replay the recorded one. Not for secrets."""
    return _random.random()  # noqa: S311 - as said
