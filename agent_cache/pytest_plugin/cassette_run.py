"""Records or replays one test, and explains its failure.

Imported by the first test that records, replays or runs under ``--agent-block-live``, since it imports the library.
"""

from __future__ import annotations

import functools
import inspect
import shlex
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_cache.engine.scope import PLACE, Scope
from agent_cache.engine.state import clear_everything
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError, DivergenceError, MissingFixture
from agent_cache.pytest_plugin.markers import Settings, others_with
from agent_cache.recording import Savings, Tape, record
from agent_cache.recording.api import LiveCallBlocker
from agent_cache.recording.call_text import described
from agent_cache.recording.litellm import LLMReplay

_MOST_SHOWN = 10
_HAS_HALF: pytest.StashKey[bool] = pytest.StashKey()


class CassetteRun:
    """The recording or replay of one test.

    A test that has failed while ``once`` recorded it, and is run again, is recorded anew.
    """

    def __init__(self, path: Path, settings: Settings, item: pytest.Item) -> None:
        sharing = others_with(item, path)
        if settings.mode == "once" and item.stash.get(_HAS_HALF, False) and not sharing:
            settings = replace(settings, mode="rewrite")
        self._path, self._settings, self._item, self._sharing = path, settings, item, sharing
        # In the other modes new calls are recorded, and those that are left over are kept.
        self._is_replay = settings.mode in ("none", "once")
        if settings.mode == "rewrite" and sharing:
            raise CassetteError(
                f"is the cassette of {sharing[0]}, too, so that one would lose what the other has recorded; give each "
                "a name of its own, or record with --agent-record-mode=new_episodes",
                path,
            )
        self._record = record(
            path,
            mode=settings.mode,  # type: ignore[arg-type]  # checked when it was read
            strict=settings.strict and (self._is_replay or settings.mode == "rewrite"),
            redact=settings.redact,
            policy=settings.policy,  # type: ignore[arg-type]  # checked by `record`
            model=settings.model,
            http=None if self._is_replay and path.exists() else settings.http,  # else the cassette says
        )
        self._record.is_guarded = True
        self._tape: Tape | None = None
        self._has_ended = False

    def begin(self) -> Tape:
        """Start to record or to replay."""
        try:
            self._tape = self._record.__enter__()
        except CassetteNotFound as error:
            reason = error.reason.replace("; record it first", "")
            raise MissingFixture(f"{reason}. Record it:\n    {command(self._item, 'once')}", self._path) from None
        if self._settings.empty_cache:
            clear_everything()
        return self._tape

    def end_passed(self) -> None:
        """End the run of a test that has passed."""
        self._has_ended = True
        tape = self._tape
        assert tape is not None
        swallowed = tape.error
        origin = _origin_of(swallowed)
        try:
            self._record.end()
        except CassetteError as error:
            if swallowed is not None:
                error.add_note(f"This was raised{origin}, and something has caught it.")
            elif tape.remaining and self._is_replay:  # of which all are named
                raise self._unplayed(tape) from None
            for note in self._advice:
                error.add_note(note)
            raise
        may_remain = self._settings.allow_unplayed and not self._settings.strict
        if tape.remaining and self._is_replay and not may_remain:
            raise self._unplayed(tape)

    def end_failed(self, error: BaseException) -> str:
        """End the run of a test that has failed or was skipped. Returns a section of its report."""
        self._has_ended = True
        tape = self._tape
        lines = [f"cassette: {self._path}, mode {self._settings.mode}"]
        is_stopped = isinstance(error, KeyboardInterrupt | pytest.exit.Exception) and self._settings.mode == "rewrite"
        if is_stopped or isinstance(error, pytest.skip.Exception):  # what was recorded before stays
            self._record.drop()
            return lines[0]
        self._item.stash[_HAS_HALF] = tape is not None and tape.answers is None
        if tape is not None and tape.answers is not None:
            lines.append(f"played: {tape.cursor} of {len(tape.answers.cassette)} recorded calls, {tape.remaining} left")
            if tape.error is not None and tape.error is not error:
                lines.append(f"Before it failed, the replay had diverged{_origin_of(tape.error)}:\n{tape.error}")
            if tape.error is not None or len(self._advice) > 1:
                lines += self._advice
        try:
            self._record.end(error)
        except CassetteError as failure:
            lines.append(str(failure))
        return "\n".join(lines)

    def close(self) -> None:
        """Leave the recording. If the test was never called, nothing is written."""
        if not self._has_ended:
            self._record.drop()
        self._record.__exit__(None, None, None)

    def _unplayed(self, tape: Tape) -> DivergenceError:
        assert tape.answers is not None
        left = [tape.answers.cassette.steps[index] for index in tape.answers.left_over()]
        were = "was" if len(left) == 1 else "were"
        lines = [f"{len(left)} of {len(tape.answers.cassette)} recorded calls {were} not made:"]
        lines += [f"    call {call.id}: {described(call.name, call.arguments)}" for call in left[:_MOST_SHOWN]]
        if self._sharing:
            lines.append(f"{self._sharing[0]} has the same cassette: mark both with allow_unplayed=True.")
        else:
            lines += [*self._advice, "allow_unplayed=True lets calls be left out."]
        expected = {"name": left[0].name, "arguments": left[0].arguments}
        return DivergenceError(left[0].id, expected, None, "\n".join(lines), self._path)

    @property
    def _advice(self) -> list[str]:
        """How to record it again, after a line about a recording whose test had failed, as `once` keeps one."""
        mode = "new_episodes" if self._sharing else "rewrite"  # which would lose what the others have recorded
        lines = [f"If the agent has changed on purpose, record it again:\n    {command(self._item, mode)}"]
        answers = None if self._tape is None else self._tape.answers
        trailer = None if answers is None else answers.cassette.trailer
        if trailer is not None and trailer.ended != "returned":
            lines.insert(0, f"The test that was recorded had failed itself: it {trailer.ended}.")
        return lines


class FixtureRun:
    """The recording or replay of one test by a fixture of Reyn, which answers what it asks of litellm.

    Several tests may share a fixture, so entries may be left over unless the test is strict. A fixture has model calls
    only, so in a replay the guard goes on to refuse those of tools.
    """

    def __init__(self, path: Path, settings: Settings, item: pytest.Item, guard: LiveCallBlocker | None) -> None:
        if settings.policy is not None or settings.model is not None:
            raise ConfigurationError(f"{path} is a fixture of Reyn: policy and model are settings of cassettes")
        self._settings, self._guard = settings, guard
        mode = {"none": "replay", "once": "replay", "new_episodes": "new_episodes"}.get(settings.mode, "record")
        self._replay = LLMReplay(path, mode, redact=settings.redact, advice=command(item, "rewrite"))  # type: ignore[arg-type]

    def begin(self) -> LLMReplay:
        """Start to record or to replay."""
        self._replay.install()
        if self._guard is not None and self._replay.mode != "replay":
            self._guard.is_lifted = True
        if self._settings.empty_cache:
            clear_everything()
        return self._replay

    def end_passed(self) -> None:
        """End the run of a test that has passed."""
        replay = self._replay
        replay.flush()
        left = len(replay.loaded_keys() - replay.consumed_keys())
        if self._settings.strict and replay.mode == "replay" and left:
            text = f"{left} of {len(replay.loaded_keys())} entries were not used, and the test is strict"
            raise DivergenceError(None, None, None, text, replay.fixture_path)

    def end_failed(self, error: BaseException) -> str:
        """End the run of a test that has failed or was skipped. Returns a section of its report."""
        replay = self._replay
        if not isinstance(error, pytest.skip.Exception):
            with suppress(CassetteError):
                replay.flush()
        return f"fixture of Reyn: {replay.fixture_path}, mode {self._settings.mode}"

    def close(self) -> None:
        """Leave. If the test was never called, nothing is written."""
        self._replay.restore()


def shown(item: pytest.Item, path: Path) -> str:
    """A path as the commands that are shown take it, from where pytest was started."""
    start = item.config.invocation_params.dir
    return str(path.relative_to(start) if path.is_relative_to(start) else path)


def command(item: pytest.Item, mode: str, option: str = "--agent-record-mode") -> str:
    """The command that runs a test in this mode."""
    _, colons, name = item.nodeid.partition("::")
    return f"pytest {option}={mode} {shlex.quote(shown(item, item.path) + colons + name)}"


def _origin_of(error: BaseException | None) -> str:
    """The place in the code under test where an error was raised: the last frame that is not the library's."""
    own = (str(Path(__file__).parents[1]), "<agent_cache ")  # the latter are generated functions
    trace = None if error is None else error.__traceback__
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(own)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else " in the test"


# Savings


def plain_savings(handle: Tape | LLMReplay) -> Any:
    """Model calls that the test did not have to make, as plain values: workers of pytest-xdist send them."""
    with suppress(CassetteError):  # a call that cannot be read has failed the test already
        return msgspec.to_builtins(handle.savings)


def summary_of(savings: list[Any]) -> str:
    """A line for the end of the test run, if model calls were answered from cassettes."""
    whole = sum((msgspec.convert(one, Savings) for one in savings if one), Savings())
    return f"agent-cache: saved {whole.seconds:.1f} s and {whole}" if whole.calls else ""


# Live calls


LIVE_ADVICE = (
    "--agent-block-live forbids that: mark the test with @pytest.mark.agent_cassette, or with @pytest.mark.agent_live"
    '("reason") if it is to run; a fixture of a wider scope than a test records itself, by record(path, mode=...)'
)


def check_live_calls(guard: LiveCallBlocker) -> None:
    """Raise the error of a refused call that the test has swallowed."""
    error, guard.error = guard.error, None
    if error is not None:
        error.add_note(f"This was raised{_origin_of(error)}, and something has caught it.")
        raise error


# Contexts. A coroutine runs in the recording if its event loop is started here. But `unittest.IsolatedAsyncioTestCase`
# has copied the context when it was made, and a runner that outlives the test (anyio has one for fixtures of wider
# scopes) when that was started: the recording is unknown there, and the tools would run live.


@contextmanager
def same_context(item: pytest.Item) -> Iterator[None]:
    """Let a test's coroutine run in the recording that is open here."""
    scope = PLACE.get().scope
    function, instance = getattr(item, "obj", None), getattr(item, "instance", None)
    context = getattr(instance, "_asyncioTestContext", None)
    if context is not None:
        context.run(scope.enter)
        for tape in tapes_of(scope):
            context.run(tape.lanes.enter_context)
    if not inspect.iscoroutinefunction(function):
        yield
        return
    assert isinstance(item, pytest.Function)
    item.obj = within = _within(scope, function)
    if context is not None:  # unittest asks the instance
        setattr(instance, item.name, within)
    try:
        yield
    finally:
        item.obj = function
        if context is not None:
            delattr(instance, item.name)


@contextmanager
def fixture_in_same_context(fixture: pytest.FixtureDef[Any]) -> Iterator[None]:
    """Let an asynchronous fixture of the test run in the recording that is open here."""
    function, scope = fixture.func, PLACE.get().scope
    writable: Any = fixture  # typed as read-only; pytest's own plugins write it
    if inspect.iscoroutinefunction(function):
        writable.func = _within(scope, function)
    elif inspect.isasyncgenfunction(function):
        writable.func = _steps_within(scope, function)
    try:
        yield
    finally:
        writable.func = function


def tapes_of(scope: Scope) -> list[Tape]:
    """The tapes that are open in a scope, from the inside: a test with a baseline may replay a cassette, too."""
    found = []
    while scope.outside is not None:
        if isinstance(scope.hook, Tape):
            found.append(scope.hook)
        scope = scope.outside
    return found


def _within(scope: Scope, function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(function)
    async def body(*args: Any, **kwargs: Any) -> Any:
        token = scope.enter()
        try:
            with ExitStack() as blocks:
                for tape in reversed(tapes_of(scope)):
                    blocks.enter_context(tape.lanes.continued())
                return await function(*args, **kwargs)
        finally:
            PLACE.reset(token)

    return body


def _steps_within(scope: Scope, function: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Set the scope for each step: the last one may run in another context than the first."""

    @functools.wraps(function)
    async def body(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        steps = function(*args, **kwargs)

        async def step() -> Any:
            return await steps.__anext__()

        step_within = _within(scope, step)
        while True:
            try:
                value = await step_within()
            except StopAsyncIteration:
                return
            yield value

    return body
