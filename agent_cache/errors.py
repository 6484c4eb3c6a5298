"""The exceptions of agent_cache, with the facts of each as attributes."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Sequence
from typing import Any

__all__ = [
    "AgentCacheError", "AgentLoopDetectedError", "CassetteError", "CassetteNotFound", "CheckpointError",
    "ConfigurationError", "DivergenceError", "InDoubtError", "JournalEnded", "JournalError", "MissingFixture",
    "NoEventLoopError", "RecordedError", "RemoteTierError", "ReplayExhausted", "RestoreError",
    "UncacheableArgumentsError", "WorldMovedError",
]  # fmt: skip


class AgentCacheError(Exception):
    """Base of the exceptions of agent_cache. An exception raised by a *tool* is never wrapped in one."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by another call of the class, which would make another text out of this one.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ConfigurationError(AgentCacheError, ValueError):
    """A decorator, a session or `configure` was given an argument that cannot work.

    Raised as early as possible: at decoration, not at the first call. The text names the tool and the fix.
    """


class UncacheableArgumentsError(AgentCacheError, TypeError):
    """An argument has no identity that is safe to use as a cache key.

    Raised into the caller only by tools with ``uncacheable="raise"`` and by ``tool.cache_key(...)``; other tools run
    uncached and count it.

    Attributes:
        tool: ``module:qualname`` of the tool, or an empty string where no tool is involved.
        reason: the type that has no identity and its place, without the value itself.
    """

    def __init__(self, reason: str, tool: str = "") -> None:
        where = f"{tool}: " if tool else ""
        super().__init__(f"{where}{reason}; give the tool key=... or vary=..., or pass values instead of live objects")
        self.reason, self.tool = reason, tool


class NoEventLoopError(AgentCacheError, RuntimeError):
    """An asynchronous tool, `tool`, was called where no event loop of asyncio runs, and cannot wait without one."""

    def __init__(self, tool: str) -> None:
        super().__init__(
            f"{tool} needs an event loop of asyncio, and none runs here; call it from asyncio (with anyio: its backend "
            "asyncio), or decorate a `def`"
        )
        self.tool = tool


class AgentLoopDetectedError(AgentCacheError):
    """A run repeats itself without progress, or has spent a budget. The text is meant for a person and a model, and
    names tools as the model knows them.

    Attributes:
        tool: ``module:qualname`` (or `name=`) of the call that was stopped.
        kind: for a loop, ``"repeat"``, ``"error"``, ``"cycle"`` or ``"any_error"``; for a budget, ``"depth"``,
            ``"nesting"``, ``"time"`` or ``"tool_calls"``.
        count: how often the call was seen; for a budget, how many calls the session (``"tool_calls"``: the tool) had
            made, or how deep they were nested.
        period: the number of calls in one round of the loop; 1 for a plain repeat, 0 for a budget.
        calls: names of the calls of one round, or the most recent ones for a budget.
        first, last: the outcomes of the first and the last call of the loop, as short text; `first` of a cycle is empty
            if only its digest was kept.
        level: ``"action"``, or ``"notice"`` for an error that is only passed to ``on_notice``.
    """

    def __init__(
        self,
        tool: str,
        kind: str,
        count: int,
        period: int = 1,
        calls: tuple[str, ...] = (),
        first: str = "",
        last: str = "",
        level: str = "action",
    ) -> None:
        super().__init__(tool, kind, count, period, calls, first, last, level)
        self.tool, self.kind, self.count, self.period = tool, kind, count, period
        self.calls, self.first, self.last, self.level = calls, first, last, level

    def __str__(self) -> str:
        more = [f"... ({len(self.calls) - 20} more)"] if len(self.calls) > 20 else []
        return _LOOP_TEXTS.get(self.kind, _LOOP_TEXTS["repeat"]).format(
            tool=_name_for_model(self.tool),
            count=self.count,
            round=" -> ".join([*map(_name_for_model, self.calls[:20]), *more]),
            period=self.period,
            gave=self.last and f" ({self.last})",
            failed=self.last and f" with {self.last}",
        )


def _name_for_model(tool: str) -> str:
    """The name by which a model knows a tool: without its module, or the namespace of its toolbox."""
    return tool.partition(":")[2].rpartition("<locals>.")[2] or tool


_LOOP_TEXTS = {
    "repeat": "{tool} was called {count} times with the same arguments and gave the same outcome each time{gave}. "
    "Calling it again will not help: use the answer already given, change the arguments, or take another step.",
    "error": "{tool} failed {count} times in a row with the same arguments and the same error{gave}. Trying it again "
    "will not help: change the arguments, take another step, or report the error.",
    "cycle": "These {period} calls go round and bring nothing new: {round}. Their arguments and outcomes are the same "
    "each time; the last one was made {count} times{gave}. Going round again will not help: use the answers already "
    "given, or take a step that is not among them.",
    "any_error": "{tool} failed {count} times in a row{failed}, whatever its arguments. Other arguments will not "
    "help: take another step, or report the error.",
    "depth": "This run has made {count} tool calls, which is its budget (max_execution_depth); {tool} was not called "
    "again. Finish with what is known, or raise max_execution_depth if runs are meant to be longer.",
    "tool_calls": "{tool} was called {count} times in this run, which is its budget (max_tool_calls); it was not "
    "called again. Finish with what is known, or raise max_tool_calls if that many are meant.",
    "time": "This run has used up its time (max_duration) after {count} tool calls; {tool} was not called. Finish with "
    "what is known, or raise max_duration if runs are meant to be longer.",
    "nesting": "Tools that call tools are {count} deep, which is more than max_nesting allows; {tool} was not called. "
    "A tool probably calls itself: let it end, or raise max_nesting if that depth is meant.",
}


class RemoteTierError(AgentCacheError):
    """A remote `tier` refused a request or could not be reached, and the tool has ``on_unreachable="refuse"``."""

    def __init__(self, message: str, tier: Any = None) -> None:
        super().__init__(message)
        self.tier = tier


class CassetteError(AgentCacheError):
    """A recording cannot be read, written or replayed.

    Attributes:
        reason: the mistake, and what to do; what it shows of a file, a terminal may show.
        path: the file, or an empty string.
        line: the line in it, counted from 1; 0 if the error is not in one line.
    """

    def __init__(self, reason: str, path: object = "", line: int = 0) -> None:
        reason = "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in reason)
        place = f"{path}:{line}: " if line else f"{path}: "
        super().__init__(f"{place}{reason}" if str(path) else reason)
        self.reason, self.path, self.line = reason, str(path), line


class CassetteNotFound(CassetteError):
    """No recording exists at the path."""


class MissingFixture(CassetteError):
    """A test needs a recording that was never made, or a fixture does not have a call."""


_Call = dict[str, Any] | None


class _Mismatch(CassetteError):
    """A replayed run differs from its recording.

    Attributes:
        call_id: id of the nearest recorded call; None if there is none.
        expected: name and arguments of that call, or None.
        actual: name and arguments of the call that was made, or None if a recorded one was not made.
    """

    def __init__(
        self, call_id: int | None, expected: _Call, actual: _Call, reason: str = "", path: object = ""
    ) -> None:
        super().__init__(reason or f"call {call_id}: expected {expected}, got {actual}", path)
        self.call_id, self.expected, self.actual = call_id, expected, actual


class DivergenceError(_Mismatch):
    """A replayed run made a call that is not recorded; under ``strict=True`` also one out of order, or left one out."""


class ReplayExhausted(_Mismatch):
    """A replayed run made a known call more often than it was recorded."""


class JournalError(CassetteError):
    """The journal of a run cannot be read, written or resumed."""


class JournalEnded(JournalError):
    """The run in a journal has come to its end, so there is nothing to resume. Nothing was run.

    Attributes:
        session_id: id of the session.
        recorded_at: when the run began, in UTC.
        calls: how many calls it made.
    """

    def __init__(self, session_id: str, recorded_at: str, calls: int, path: object = "") -> None:
        super().__init__(
            f"the run of the session {session_id!r}, which began at {recorded_at} and made {calls} calls, has come to "
            "its end, so there is nothing to resume, and nothing was run. Give another run another session id. "
            "Journal(..., restart=True) begins a new run of this id, which makes every write again, and keeps this "
            "journal under another name",
            path,
        )
        self.session_id, self.recorded_at, self.calls = session_id, recorded_at, calls


class InDoubtError(JournalError):
    """A write had begun when an earlier process of this run ended, and nothing says whether it took effect.

    Attributes:
        tool: name of the write.
        arguments: its arguments, redacted.
        key: its idempotency key: the one that the earlier process gave the receiver, if it gave one.
    """

    def __init__(self, tool: str, arguments: dict[str, Any], key: str, reason: str, path: object = "") -> None:
        super().__init__(reason, path)
        self.tool, self.arguments, self.key = tool, arguments, key


class WorldMovedError(CassetteError):
    """A run cannot be forked, because the original went on: it made writes that the fork would not have made.

    Attributes:
        writes: the later successful writes of the original, as ``{"id", "name", "arguments"}``.
    """

    def __init__(self, writes: Sequence[dict[str, Any]], reason: str, path: object = "") -> None:
        super().__init__(reason, path)
        self.writes = list(writes)


class CheckpointError(AgentCacheError, ValueError):
    """The state of a checkpoint is of a wrong type, or cannot be read.

    Attributes:
        field: the field that is wrong, as a path such as ``messages[2].content``; empty if it is not one.
    """

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.reason, self.field = reason, field


class RestoreError(AgentCacheError):
    """A checkpoint was not restored. The target is as it was.

    Attributes:
        errors: what the hooks raised, in their order.
    """

    def __init__(self, reason: str, errors: Sequence[BaseException] = ()) -> None:
        super().__init__(reason)
        self.reason, self.errors = reason, tuple(errors)


class RecordedError(Exception):
    """Takes the place of a recorded exception of an unknown class. Names found in a cassette are never imported.

    It has the text of the original, its attributes, and its name as ``module:qualname``, and is also of the builtin
    class that it derives from, so that ``except ValueError`` catches it. Import the module of the original class, or
    register it with `agent_cache.recording.register`, to get the original exception.
    """

    type_name: str
    message: str
    __repr__ = Exception.__repr__  # that of the original may need what it has not

    def __init__(self, type_name: str, message: str = "") -> None:
        # Not `super()`: builtin classes take arguments of their own, and some have a `message` that cannot be set.
        Exception.__init__(self, type_name, message)
        vars(self).update(type_name=type_name, message=message)

    def __str__(self) -> str:
        name, text = vars(self)["type_name"], vars(self)["message"]
        return f"{name}: {text}" if text else name

    def __reduce__(self) -> tuple[Any, ...]:
        base = type(self).__bases__[-1]
        members = self.exceptions if isinstance(self, BaseExceptionGroup) else ()
        state = dict(vars(self))
        return recorded_error, (state.pop("type_name"), state.pop("message"), base, members), state


def recorded_error(
    type_name: str, message: str, base: type[BaseException] = Exception, members: Sequence[BaseException] = ()
) -> RecordedError:
    """A `RecordedError` that is also of the builtin class `base`, with the `members` of a group."""
    kind: Any = base
    is_group = issubclass(kind, BaseExceptionGroup)
    if is_group and not members:
        return RecordedError(type_name, message)
    make = Exception.__new__ if issubclass(kind, MemoryError) else kind.__new__  # that of `MemoryError` makes no other
    error: RecordedError = make(_recorded_kind(kind), *((message, members) if is_group else ()))
    RecordedError.__init__(error, type_name, message)
    return error


@functools.cache
def _recorded_kind(base: Any) -> type[RecordedError]:
    if issubclass(RecordedError, base):
        return RecordedError
    return type("RecordedError", (RecordedError, base), {"__module__": __name__, "__doc__": RecordedError.__doc__})
