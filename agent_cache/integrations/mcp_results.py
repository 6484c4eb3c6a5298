"""MCP tool results as plain data: what the adapters of FastMCP and of MCP clients keep of a call, and its verdicts.

An answer is the JSON of a ``CallToolResult`` as it goes over the wire: ``content``, ``structuredContent``, ``isError``
and ``_meta``. So caches, tiers and cassettes need no class of a framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_cache import AgentLoopDetectedError, Toolbox

Answer = dict[str, Any]

PRIVATE = "isPrivate"
"""In an answer that is for its caller alone: a question to the client, a task, or what came of asking the client."""

_NO_ANSWER = frozenset({408, -32001, -32000})
"""Codes of the errors that the SDKs raise themselves: a request timed out (mcp 1, mcp 2), the connection was closed."""


class UnansweredError(TimeoutError):
    """A call has no answer, and may have taken effect. It is raised from the framework's own error.

    A `TimeoutError`, so that a write is in doubt. Callers of a tool never get it: they get its cause.
    """


def unanswered(error: BaseException) -> UnansweredError | None:
    """An error to raise from this one if it, or what it was raised from, says that nothing came back.

    The SDK's errors say it by a code, and FastMCP raises its own `ToolError` from them. What was raised from a
    `TimeoutError` or an `OSError` is known to the write without it.
    """
    cause: BaseException | None = error
    while cause is not None:
        if getattr(getattr(cause, "error", None), "code", None) in _NO_ANSWER:
            return UnansweredError(str(error))
        cause = cause.__cause__
    return None


async def called(
    box: Toolbox, name: str, arguments: Mapping[str, Any], run: Callable[[], Awaitable[Any]], **options: Any
) -> Any:
    """The answer of a tool of an MCP server by the rules of a toolbox. Raises what the framework has raised."""
    options = {"returns": dict, **options}
    try:
        return await box.call(name, arguments, run, failed=fails, store_if=is_kept, refused=notice, **options)
    except UnansweredError as doubt:
        raise doubt.__cause__ or doubt from doubt.__cause__ and doubt.__cause__.__cause__


def fails(answer: Any) -> bool:
    """Whether it is the result of a tool that failed: returned, and never stored."""
    return type(answer) is dict and bool(answer.get("isError"))


def is_kept(answer: Any) -> bool:
    """Whether others may be given it. What is no JSON is no final result."""
    return type(answer) is dict and PRIVATE not in answer and may_be_cached(answer)


_HINTS = ("cache_hint", "io.modelcontextprotocol/cache_hint")


def may_be_cached(answer: Mapping[str, Any]) -> bool:
    """Whether its server lets it be stored: the ``_meta`` of a result may say ``no-cache`` (SEP-2419)."""
    meta = answer.get("_meta")
    return not isinstance(meta, Mapping) or all(meta.get(name) != "no-cache" for name in _HINTS)


def notice(error: AgentLoopDetectedError) -> Answer:
    """The result of a call that a session has stopped."""
    return {"content": [{"type": "text", "text": str(error)}], "isError": True}


def requested_version(meta: Mapping[str, Any] | None) -> Any:
    """The version of a tool that a call asks for in its ``_meta``, as FastMCP names it; None for the highest."""
    named = meta.get("fastmcp") if meta else None
    return named.get("version") if isinstance(named, Mapping) else None


def as_json(model: Any) -> Answer:
    """The JSON of a result, which is a model of any version of an SDK."""
    form: Answer = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return form


@dataclass(slots=True)
class Runs:
    """How often a tool was run here, to tell the private answer of another call from a recorded one.

    ``with runs:`` stands around each run. An error that says that nothing came back leaves it as `UnansweredError`.

    Attributes:
        begun: how many runs have begun.
        going: how many of these have not ended.
    """

    begun: int = 0
    going: int = 0

    def __enter__(self) -> None:
        self.begun += 1
        self.going += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.going -= 1
        if isinstance(error, Exception) and (doubt := unanswered(error)) is not None:
            raise doubt from error

    @property
    def ended(self) -> int:
        """How many have ended. `begun` is another number later, if a run is going on now or begins until then."""
        return self.begun - self.going
