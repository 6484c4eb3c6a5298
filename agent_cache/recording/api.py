"""`record` and `replay`: what each is given, and the tape that it makes of that."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agent_cache.core.policies import checked_choice
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError
from agent_cache.recording.block import Block
from agent_cache.recording.cassette import Cassette, bring_under, said_of
from agent_cache.recording.format import RecordedCall
from agent_cache.recording.partial import is_being_recorded, partial_of
from agent_cache.recording.player import Player
from agent_cache.recording.recorder import Recorder as Writer
from agent_cache.recording.redaction import Redaction, redaction_of
from agent_cache.recording.tape import Tape

__all__ = ["MODES", "POLICIES", "Recorder", "record", "replay"]

MODES = ("none", "once", "new_episodes", "all", "rewrite")
POLICIES = ("stub", "live", "forbid")

Mode = Literal["none", "once", "new_episodes", "all", "rewrite"]
Policy = Literal["stub", "live", "forbid"]


class Recorder:
    """A recording that is going on, and what it has become.

    Attributes:
        path: the file.
        mode: as it was given.
        player: what answers from the old recording; None if nothing does.
    """

    def __init__(self, path: Path, mode: str, player: Player | None) -> None:
        self.path = path
        self.mode = mode
        self.player = player
        self._is_over = False
        self._writes = False

    @property
    def cassette(self) -> Cassette:
        """What was recorded; while the recording is going on, what has ended by now.

        Raises:
            CassetteError: if it cannot be read.
        """
        if self._writes and not self._is_over:
            return Cassette.load(partial_of(self.path))
        return Cassette.load(self.path)

    @property
    def steps(self) -> Sequence[RecordedCall]:
        """Its calls, in the order in which they ended."""
        return self.cassette.steps

    def __repr__(self) -> str:
        return f"<Recorder of {self.path}, mode={self.mode!r}>"


class record(Block[Recorder]):  # noqa: N801 - used as a function, as in vcrpy and agentcassette
    """Record what a run sees: ``with record("tests/run.jsonl") as recorder: ...``

    Calls of every tool decorated with `AgentCache` or `AgentCacheInvalidator`, of functions under `intercept` and
    `cached_llm_call`, and of the explicit `now`, `uuid4` and `random` are written down as they end, redacted: value,
    exception or stream, whatever answered them. Child tasks and `asyncio.to_thread` belong to the run they were started
    in; concurrent runs do not see each other. A recording inside of another one is part of both.

    Args:
        path: the file. It grows as ``PATH.partial`` and takes its place at the end, also if the block raises.
        model: a label.
        redact: names of secrets, and compiled patterns, beside those that are known; a hook; or a `Redaction`.
        mode: ``"rewrite"`` records anew. ``"none"`` only replays. ``"once"`` records if there is no file, else it
            replays. ``"new_episodes"`` replays what is recorded, and records what is not. ``"all"`` runs and records
            every call, and keeps what was recorded and is not called.
        strict, policy: of what is replayed; as `replay` has them.

    Raises:
        CassetteError: if the path cannot be written or is being recorded; at the end, as `replay`.
        ConfigurationError: if an argument cannot work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        model: str | None = None,
        redact: Any = None,
        mode: Mode = "rewrite",
        strict: bool = False,
        policy: Mapping[str, Policy] | None = None,
    ) -> None:
        self._path = _checked_path(path, "record")
        self._model = model
        self._redaction = redaction_of(redact)
        self._mode = checked_choice(mode, MODES, "record: mode")
        self._strict = strict
        self._policy = _checked_policy(policy, "record")
        self._handle: Recorder | None = None

    def _open(self) -> tuple[Tape, Recorder]:
        mode = self._mode
        if mode == "once":
            mode = "none" if self._path.exists() else "rewrite"
        redaction, player, model = self._redaction, None, self._model
        if mode != "rewrite":
            try:
                old, redaction = _loaded(self._path, redaction)
            except CassetteNotFound:
                if mode == "none":
                    raise
            else:
                player = Player(old, redaction, strict=self._strict)
                model = old.model if model is None else model
        writer = None if mode == "none" else Writer(self._path, model, redaction)
        self._handle = handle = Recorder(self._path, self._mode, player)
        handle._writes = writer is not None
        return Tape(redaction, player=player, recorder=writer, policy=self._policy, answers=mode != "all"), handle

    def _close(self) -> None:
        if self._handle is not None:
            self._handle._is_over = True


class replay(Block[Player]):  # noqa: N801 - as `record`
    """Run again with what was recorded: ``with replay("tests/run.jsonl") as player: ...``

    Each call gets what the same call got when it was recorded: by name, arguments, the calls that enclose it, and how
    often it was made there; in whatever order they come. Nothing runs: a call that is not recorded raises, and the
    error is raised again at the end if something has swallowed it.

    Args:
        path: a cassette, of agent_cache or agentcassette.
        strict: also demands that calls which did not overlap come in the order in which they were recorded, and that
            nothing recorded is left over.
        policy: by name of a function: ``"stub"`` answers from the recording, ``"live"`` runs it, ``"forbid"`` raises.
        redact: what `record` was given, if that was a hook. Names and patterns are known from the file.

    Raises:
        CassetteNotFound: if there is no such file.
        CassetteError: if it is broken, in conflict, of a newer version or something else; if it is being recorded.
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
        self._path = _checked_path(path, "replay")
        if not isinstance(strict, bool):
            raise ConfigurationError(f"replay: strict must be True or False, got {strict!r}")
        self._strict = strict
        self._policy = _checked_policy(policy, "replay")
        self._redaction = redaction_of(redact)

    def _open(self) -> tuple[Tape, Player]:
        if is_being_recorded(self._path):
            raise CassetteError("is being recorded; replay it when that has ended", self._path)
        cassette, redaction = _loaded(self._path, self._redaction)
        player = Player(cassette, redaction, strict=self._strict)
        return Tape(redaction, player=player, policy=self._policy), player


def _loaded(path: Path, given: Redaction) -> tuple[Cassette, Redaction]:
    """A recording, and what is redacted in it: also what it was not redacted of when it was made."""
    cassette = Cassette.load(path)
    redaction = given.joined(cassette.header.redact)
    before, rules = Redaction().joined(said_of(cassette)), redaction
    if cassette.header.redact.get("hook"):
        rules = redaction.without_hook()
    if rules.describe() != before.describe():
        bring_under(cassette, rules)
    return cassette, redaction


def _checked_path(path: Any, who: str) -> Path:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in str(path):
        raise ConfigurationError(f"{who}: path must be the path of a cassette, got {path!r}")
    return Path(path)


def _checked_policy(policy: Any, who: str) -> dict[str, str]:
    if policy is None:
        return {}
    if not isinstance(policy, Mapping):
        raise ConfigurationError(
            f"{who}: policy must map names of tools to {', '.join(map(repr, POLICIES))}, got {policy!r}"
        )
    return {name: checked_choice(value, POLICIES, f"{who}: policy of {name!r}") for name, value in policy.items()}
