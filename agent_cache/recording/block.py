"""A block with a tape around what is called in it: how the tape is put up, and how it is taken down."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextvars import Token
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from agent_cache.engine.interception import INTERCEPTORS, InterceptedScope
from agent_cache.engine.runtime import SCOPE, Scope
from agent_cache.errors import CassetteError, ConfigurationError
from agent_cache.recording.barrier import beneath_barrier
from agent_cache.recording.tape import Tape

__all__ = ["Block"]

H = TypeVar("H")


class Block(Generic[H]):
    """A block whose calls go to a tape: ``with`` and ``async with`` alike.

    Who makes one sets `_path`; `_open` gives the tape, and the handle that the block has of it; `_close` is told that
    the tape has ended.

    Attributes:
        is_guarded: whether a replay refuses calls in threads without a context, also if it is not strict.
    """

    is_guarded = False
    _path: Path
    _tape: Tape | None = None
    _token: Token[Scope] | None = None
    _has_ended = False

    def _open(self) -> tuple[Tape, H]:
        raise NotImplementedError

    def _close(self) -> None: ...

    def __enter__(self) -> H:
        if self._tape is not None:
            raise CassetteError("is entered already; make another record or replay", self._path)
        scope = SCOPE.get()
        _not_on_a_tape(scope, self._path)
        self._tape, handle = self._open()
        self._has_ended = False
        self._tape.is_guarded = self.is_guarded
        INTERCEPTORS[self._tape] = os.path.realpath(self._path)
        self._token = SCOPE.set(InterceptedScope(beneath_barrier(scope), self._tape))
        return handle

    def end(self, error: BaseException | None = None) -> None:
        """Write the file and check what was played now, as the end of the block would, which then only leaves.

        What is called until then is answered if it is recorded; else a replay raises, and a recording lets it run.

        Raises:
            CassetteError: as the end of the block.
        """
        if self._tape is None or self._has_ended:
            raise CassetteError("is not entered, or has ended", self._path)
        self._has_ended = True
        try:
            self._tape.finish(error)
        finally:
            self._close()

    def drop(self) -> None:
        """Forget what was recorded, and check nothing: there was no run. Does nothing if it has ended."""
        if self._tape is not None and not self._has_ended:
            self._has_ended = True
            self._tape.drop()
            self._close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tape, token = self._tape, self._token
        self._tape = self._token = None
        if tape is None or token is None:
            raise CassetteError("is not entered", self._path)
        INTERCEPTORS.pop(tape, None)
        try:
            if not self._has_ended:
                try:
                    tape.finish(error)
                finally:
                    self._close()
        finally:
            _leave(token, self._path)

    async def __aenter__(self) -> H:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _not_on_a_tape(scope: Scope, path: Path) -> None:
    """A tape on this path around this place already would read what this one writes, or the other way round."""
    name = os.path.realpath(path)
    if any(INTERCEPTORS.get(tape) == name for tape in _tapes(scope)):
        raise CassetteError("is being recorded or replayed already, around this block; use another path", path)


def _tapes(scope: Scope) -> Iterator[Any]:
    while isinstance(scope, InterceptedScope):
        yield scope.interceptor
        scope = scope.outside


def _leave(token: Token[Scope], path: Path) -> None:
    try:
        SCOPE.reset(token)
    except ValueError:
        raise ConfigurationError(
            f"the recording of {path} was entered in one context and left in another, so what ran in between may have "
            "been outside of it; enter and leave it in the same task, as one `with` does"
        ) from None
