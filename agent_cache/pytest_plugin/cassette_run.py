"""One test inside of its recording, and what its failure says."""

from __future__ import annotations

import shlex
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from agent_cache.errors import CassetteError, CassetteNotFound, DivergenceError, MissingFixture
from agent_cache.pytest_plugin.markers import Settings
from agent_cache.recording import Player, Recorder, record
from agent_cache.recording.barrier import barrier
from agent_cache.recording.nearest import described

__all__ = ["CassetteRun", "LiveGuard"]

_MOST_SHOWN = 10


class CassetteRun:
    """The recording or replay of one test.

    Args:
        path: the cassette.
        settings: how it is used.
        test: the test's node id.
        sharing: other tests of the same cassette.
    """

    def __init__(self, path: Path, settings: Settings, test: str, sharing: list[str]) -> None:
        self._path = path
        self._test = test
        self._sharing = sharing
        self._settings = settings
        if settings.mode == "rewrite" and sharing:
            raise CassetteError(
                f"is the cassette of {sharing[0]}, too, so that one would lose what the other has recorded; give each "
                "a name of its own, or record with --agent-record-mode=new_episodes",
                path,
            )
        self._record = record(
            path,
            mode=settings.mode,  # type: ignore[arg-type]  # checked when it was read
            strict=settings.strict and self._is_replay,
            redact=settings.redact,
            policy=settings.policy,  # type: ignore[arg-type]  # checked by `record`
            model=settings.model,
        )
        self._record.is_guarded = True
        self._handle: Recorder | None = None
        self._has_ended = False

    def begin(self) -> Recorder:
        """Enter it.

        Raises:
            MissingFixture: if there is nothing to replay.
            CassetteError: as `record`.
        """
        try:
            self._handle = self._record.__enter__()
        except CassetteNotFound as error:
            reason = error.reason.replace("; record it first", "")
            raise MissingFixture(f"{reason}. Record it:\n    {self._command('once')}", self._path) from None
        return self._handle

    def passed(self) -> None:
        """The test has passed, as far as it goes.

        Raises:
            CassetteError: if the replay and the recording do not agree.
        """
        self._has_ended = True
        player = self._player
        swallowed = None if player is None else player.error
        origin = _origin_of(swallowed)
        try:
            self._record.end()
        except CassetteError as error:
            if swallowed is not None or player is None or not player.remaining:
                raise self._explained(error, origin) from None
        may_remain = self._settings.allow_unplayed and not self._settings.strict
        if player is not None and player.remaining and self._is_replay and not may_remain:
            raise self._left_over(player)

    def failed(self, error: BaseException) -> str:
        """The test has failed, or was skipped; what the cassette has to say to that."""
        self._has_ended = True
        player = self._player
        lines = [f"cassette: {self._path}, mode {self._settings.mode}"]
        if isinstance(error, pytest.skip.Exception):
            self._record.drop()
            return lines[0]
        if player is not None:
            lines.append(f"played: {player.cursor} of {len(player.cassette)} recorded calls, {player.remaining} left")
            if player.error is not None and player.error is not error:
                lines.append(f"Before it failed, the replay had diverged{_origin_of(player.error)}:")
                lines.append(str(player.error))
            if player.error is not None or self._had_failed:
                lines += [*self._had_failed, f"To record it again:\n    {self._command('rewrite')}"]
        try:
            self._record.end(error)
        except CassetteError as trouble:
            lines.append(str(trouble))
        return "\n".join(lines)

    def leave(self) -> None:
        """Leave it. If the test was never called there was no run, and nothing is written."""
        if not self._has_ended:
            self._record.drop()
        self._record.__exit__(None, None, None)

    @property
    def _player(self) -> Player | None:
        return None if self._handle is None else self._handle.player

    @property
    def _is_replay(self) -> bool:
        """In the other modes what is new is recorded, and what is left over is kept."""
        return self._settings.mode in ("none", "once")

    def _left_over(self, player: Player) -> DivergenceError:
        indices = list(player.matcher.left_over())
        is_one = len(indices) == 1
        lines = [
            f"{len(indices)} of {len(player.cassette)} recorded calls {'was' if is_one else 'were'} not made:",
            *(f"    step {index}: {_line(player, index)}" for index in indices[:_MOST_SHOWN]),
        ]
        if len(indices) > _MOST_SHOWN:
            lines.append(f"    and {len(indices) - _MOST_SHOWN} more")
        if self._sharing:
            lines.append(f"{self._sharing[0]} has the same cassette: mark both with allow_unplayed=True.")
        else:
            lines += self._had_failed
            lines.append(f"If the agent has changed on purpose, record it again:\n    {self._command('rewrite')}")
            lines.append("allow_unplayed=True lets calls be left out.")
        first = player.cassette.steps[indices[0]]
        expected = {"name": first.name, "arguments": first.arguments}
        return DivergenceError(indices[0], expected, None, "\n".join(lines), self._path)

    @property
    def _had_failed(self) -> list[str]:
        """What there is to say of a recording of a test that failed, as one that `once` has kept."""
        player = self._player
        trailer = None if player is None else player.cassette.trailer
        if trailer is None or trailer.ended == "returned":
            return []
        return [f"The test that was recorded had failed itself: it {trailer.ended}."]

    def _explained(self, error: CassetteError, origin: str) -> CassetteError:
        """The error that something had swallowed, with the place where that was."""
        error.add_note(f"This was raised{origin or ' in the test'}, and something has caught it.")
        for note in self._had_failed:
            error.add_note(note)
        error.add_note(f"To record it again:\n    {self._command('rewrite')}")
        return error.with_traceback(None)

    def _command(self, mode: str) -> str:
        return f"pytest --agent-record-mode={mode} {shlex.quote(self._test)}"


class LiveGuard:
    """Refuses what would run live, around one test."""

    def __init__(self, *, is_lifted: bool) -> None:
        self._is_lifted = is_lifted
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._barrier = self._stack.enter_context(
            barrier(
                "--agent-block-live forbids that: mark the test with @pytest.mark.agent_cassette, or with "
                '@pytest.mark.agent_live("reason") if it is to run'
            )
        )
        self._barrier.is_lifted = self._is_lifted
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def check(self) -> None:
        """Raise what was refused and has been swallowed.

        Raises:
            CassetteError: if something was.
        """
        error, self._barrier.error = self._barrier.error, None
        if error is not None:
            error.add_note(f"This was raised{_origin_of(error) or ' in the test'}, and something has caught it.")
            raise error.with_traceback(None)

    def forget(self) -> None:
        """What was refused is known: it has ended the phase."""
        self._barrier.error = None


def _line(player: Player, index: int) -> str:
    call = player.cassette.steps[index]
    return described(call.name, call.arguments)


def _origin_of(error: BaseException | None) -> str:
    """Where the code under test was when an error was raised: the last frame that is not ours."""
    if error is None:
        return ""
    own = (str(Path(__file__).parents[1]), "<agent_cache ")  # the latter are generated functions
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""
