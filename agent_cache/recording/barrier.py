"""`barrier`: nothing that could be recorded runs live, except inside of a recording."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent_cache.engine.interception import INTERCEPTORS, InterceptedCall, InterceptedScope
from agent_cache.engine.runtime import SCOPE, Operation, Scope
from agent_cache.errors import CassetteError
from agent_cache.recording.frame import Frame
from agent_cache.recording.functions import Subject
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.tape import Tape

__all__ = ["Barrier", "barrier", "beneath_barrier"]


class Barrier(Tape):
    """Refuses every call, also one that a cache would answer: whether it does depends on what ran before.

    Clock, identifiers and chance are let through.

    Attributes:
        advice: what to do about a call, the end of each error.
        is_lifted: lets everything through.
        error: the first that was refused since this was set to None, in case something has swallowed it.
    """

    def __init__(self, advice: str) -> None:
        super().__init__(Redaction())
        self.advice = advice
        self.is_lifted = False
        self.error: CassetteError | None = None

    def begin(self, subject: Subject, arguments: Mapping[str, Any], key: str | None = None) -> Frame:  # noqa: ARG002 - as a tape has it
        """Let a function run.

        Raises:
            CassetteError: if it may not.
        """
        if not self.is_lifted and subject.kind != "env":
            raise self._refusal(subject.name)
        return Frame(self, subject, {}, None, b"")

    def play(self, call: InterceptedCall) -> Awaitable[Any]:
        """Let a tool run.

        Raises:
            CassetteError: if it may not.
        """
        if not self.is_lifted:
            raise self._refusal(call.operation.name)
        return call.proceed()

    def escaped(self, called: Operation[Any] | Subject) -> None:
        """Let something run in a thread without a context.

        Raises:
            CassetteError: if it may not.
        """
        if not self.is_lifted and getattr(called, "kind", "tool") != "env":
            raise self._refusal(called.name)

    def _refusal(self, name: str) -> CassetteError:
        error = CassetteError(f"{name} was called outside of a recording. {self.advice}")
        self.error = self.error or error
        return error


@contextmanager
def barrier(advice: str) -> Iterator[Barrier]:
    """Refuse calls of tools and of functions under `intercept` and `cached_llm_call` in this context, and in tasks and
    `asyncio.to_thread` that are started in it. Inside of `record` and `replay` these decide. While it is up, calls in
    threads that have no context are refused, too.
    """
    one = Barrier(advice)
    token = SCOPE.set(InterceptedScope(SCOPE.get(), one))
    INTERCEPTORS[one] = ""
    try:
        yield one
    finally:
        del INTERCEPTORS[one]
        SCOPE.reset(token)


def beneath_barrier(scope: Scope) -> Scope:
    """The same place without a barrier that stands there."""
    while isinstance(scope, InterceptedScope) and isinstance(scope.interceptor, Barrier):
        scope = scope.outside
    return scope
