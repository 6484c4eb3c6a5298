"""What the adapters have in common: who asks and who answers, arguments as a tool gets them, results of MCP.

An adapter asks `Toolbox.call` for each call of a tool, and says of it: the name, as the model knows it; the arguments,
as the tool gets them (a model sends ``"07"``, and the tool gets 7, and a write by one of them has to end what was read
by the other); who asks and which server answers (`Apart`); what failed, and what is for its caller alone (`Private`).
The answer is plain data, so that caches, tiers and cassettes need no class of a framework. What has an
`__agent_cache__` is decorated or wrapped and left alone. A loop ends the run as an error that the framework lets pass.

Two connections to a server share answers only if the same is sent by both: the URL with its query and user, every
header; or the command, its arguments, its environment and its directory. What cannot be read, such as an ``auth``
object or a factory of HTTP clients, may send anything, so such a connection is itself alone.
"""

from __future__ import annotations

import functools
import inspect
import json
import secrets
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from inspect import isroutine
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

from agent_cache import AgentLoopDetectedError, ConfigurationError, Toolbox
from agent_cache.core.asker import Apart, UnknownAsker, asker_in, getters_of, got_by, injected_role, meaning_of
from agent_cache.core.parameters import name_of
from agent_cache.recording import register
from agent_cache.values.canonical import by_object, declared_names, is_model
from agent_cache.values.compare import etag_of
from agent_cache.values.copies import UncopyableError


def checked_box(box: object, vary: object, caller: str) -> None:
    """Raise `ConfigurationError` for what is no toolbox, and a `vary` that is no function."""
    if not isinstance(box, Toolbox):
        raise ConfigurationError(f"{caller} takes a Toolbox as box, got {box!r}")
    if vary is not None and not callable(vary):
        raise ConfigurationError(f"{caller}: vary takes a function, got {vary!r}")


# Who answers

_SENT: Final = ("command", "args", "env", "cwd", "url", "headers", "auth", "httpx_client_factory")
_STDIO: Final = (f"{kind}StdioTransport" for kind in ("", "FastMCP", "Node", "Npx", "Python", "Uv", "Uvx"))
_READABLE: Final = frozenset({"SSETransport", "StdioServerParameters", "StreamableHttpTransport", *_STDIO})
"""Classes of MCP's SDK and of FastMCP whose attributes say all that they send."""


@by_object
def alone(_connection: Any) -> str:
    """An identity that no other object has, in any process."""
    return secrets.token_hex(8)


def identity_of(connection: Any, owner: Any = None) -> str:
    """A hash of what a connection sends by itself, if it is a URL, a mapping of parameters, or of a class that says it;
    else `alone` of the `owner`, which is by default its server in this process, or the connection.
    """
    kind = type(connection)
    if owner is None:
        owner = getattr(connection, "server", None) or connection
    if isinstance(connection, str | Mapping):
        params = {"url": connection} if isinstance(connection, str) else connection
        sent = {name: params.get(name) for name in _SENT}
    elif kind.__name__ in _READABLE and kind.__module__.startswith(("mcp.client.", "fastmcp.client.transports.")):
        sent = {name: getattr(connection, name, None) for name in _SENT}
    else:
        return alone(owner)
    auth: Any = sent["auth"]
    is_bearer = f"{type(auth).__module__}.{type(auth).__name__}" == "fastmcp.client.auth.bearer.BearerAuth"
    if sent["httpx_client_factory"] is not None or (auth is not None and not is_bearer):
        return alone(owner)
    sent["auth"] = auth.token.get_secret_value() if is_bearer else None
    text = json.dumps(sent, sort_keys=True, default=str)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


# Functions that are made for somebody

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_WRITTEN: Final = frozenset({UUID, Decimal, datetime, date, time, timedelta})


def made_around(function: Any, *, is_shared: bool = False) -> Callable[[], list[Any]]:
    """A function that says at each call what keeps the answers of a function apart from those of others of its name:
    where it is defined, and what it was made around, such as a user, in its closure, a `functools.partial` or the
    object of a method. Values are known by what they are, any other object by itself, unless a variable beside it is
    named for someone. Modules, classes and functions do not count; context variables that are named for someone do.

    Args:
        is_shared: whether somebody has said what tells users apart, or that nothing does.
    """
    named = [] if function is None else [name_of(function)]
    if function is None or is_shared:
        return lambda: named
    variables = [one for one in getters_of(function) if type(one) is ContextVar]
    if not variables and type(function) is FunctionType and function.__closure__ is None:
        return lambda: named
    return lambda: [*named, *map(_asked, variables), *_around(function)]


def _asked(variable: ContextVar[Any]) -> str | None:
    try:
        return asker_in(got_by(variable))
    except UnknownAsker:
        return secrets.token_hex(8)  # nobody else has it


def _around(function: Any) -> list[Any]:
    found: list[Any] = []
    pending: list[tuple[Any, Any]] = [(function, function)]
    seen: set[int] = set()
    while pending:
        one, owner = pending.pop()
        kind = type(one)
        around: Iterable[Any] = ()
        if kind in _SCALARS:
            found.append(one)
        elif kind is FunctionType:
            around = _enclosed(one)
        elif kind is MethodType:
            around = (one.__func__, one.__self__)
        elif isinstance(one, functools.partial):
            around = (one.func, *one.args, *one.keywords.values())
        elif not (isinstance(one, type | ModuleType) or isroutine(one)):
            found.append(etag_of(one) if declared_names(kind) or is_model(kind) else None)
            if found[-1] is None:
                try:
                    found[-1] = alone(one)
                except TypeError:  # it cannot be referred to weakly
                    found[-1] = alone(owner)
        if around and id(one) not in seen:
            seen.add(id(one))
            pending += [(value, one) for value in around]
    return found


def _enclosed(function: FunctionType) -> list[Any]:
    """What a function was made around, as far as that counts."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    named = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    if any(type(value) in (str, int) and meaning_of(name) == "someone" for name, value in named.items()):
        return [value for value in named.values() if type(value) in _SCALARS or isroutine(value)]
    return [*named.values()]


def apart(who: Any, where: list[Any]) -> Any:
    """What distinguishes a call: who asks, and where it is asked, if that is not everywhere the same."""
    return Apart(who, where) if where else who


def returned_by(function: Any, *, include_extras: bool = False) -> Any:
    """The annotation of what a function returns, by which recordings and tiers give its answers back; None where it is
    not known.
    """
    try:
        returned = typing.get_type_hints(function, include_extras=include_extras).get("return")
        hash(returned)
    except Exception:  # noqa: BLE001 - hints are evaluated, and may be anything
        return None
    return returned


# Arguments as a tool gets them

Check = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Gives the checked value of each argument. Raises if the tool would refuse them."""


def as_tool_gets(check: Check | None, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a tool gets them. Those that it will refuse stay as they are."""
    if check is None:
        return given
    try:
        return as_checked(check(given), given)
    except Exception:  # noqa: BLE001 - a user's validator may raise anything; the tool will raise it again
        return given


def as_checked(checked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments with their checked values, where these are plain."""
    return {name: _plain(checked[name], value) if name in checked else value for name, value in given.items()}


def _plain(value: Any, given: Any) -> Any:
    """A checked value as JSON; as it was given where that could make one of two values, as of two of `SecretStr`."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind in _WRITTEN or isinstance(value, Enum):
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(value)
    if kind in (list, tuple) and isinstance(given, list | tuple) and len(value) == len(given):
        return [_plain(one, other) for one, other in zip(value, given, strict=True)]
    if isinstance(given, Mapping):
        is_record = hasattr(kind, "__pydantic_fields__") or (is_dataclass(kind) and not hasattr(kind, "__slots__"))
        return as_checked(value if kind is dict else vars(value) if is_record else {}, given)
    return given


def check_of(function: Any) -> Check | None:
    """What pydantic makes of the arguments of a function by its hints; None where that cannot be known. Parameters that
    a framework fills in are no arguments.
    """
    from pydantic import TypeAdapter

    def collect(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
        return signature.bind(*args, **kwargs).arguments

    try:
        hints = typing.get_type_hints(function, include_extras=True)
        every = inspect.signature(function).parameters.values()
        given = [one for one in every if injected_role(hints.get(one.name), one.default, function) is None]
        typed: Any = collect
        typed.__signature__ = signature = inspect.Signature(given)
        typed.__annotations__ = {one.name: hints[one.name] for one in given if one.name in hints}
        check: Check = TypeAdapter(typed).validate_python
    except Exception:  # noqa: BLE001 - hints are evaluated, and may be anything
        return None
    return check


# Results of MCP


@register  # so that recordings give it back
@dataclass(frozen=True)
class Private:
    """An answer for its caller alone: a question to the client, a task, what came of asking the client, or of a change
    of the caller's state. It cannot be copied, so it is neither stored nor shared: who waits for it runs the tool.
    """

    answer: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise UncopyableError("it is for its caller alone, who was asked something, or whose state it has changed")


def is_public(answer: Any) -> bool:
    """Whether an answer is not for its caller alone."""
    return type(answer) is not Private


Answer: TypeAlias = dict[str, Any] | Private
"""The JSON of a ``CallToolResult``, as it goes over the wire."""

_NO_ANSWER = frozenset({408, -32001, -32000})
"""Codes of the errors that the SDKs raise themselves: a request timed out (mcp 1, mcp 2), the connection was closed."""
_HINTS = ("cache_hint", "io.modelcontextprotocol/cache_hint")


class UnansweredError(TimeoutError):
    """A call has no answer, and may have taken effect: as a `TimeoutError` it leaves a write in doubt. Callers of a
    tool get its cause, the framework's own error.
    """


def _is_unanswered(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, says that nothing came back: the SDK's errors do by a code."""
    while error is not None:
        if getattr(getattr(error, "error", None), "code", None) in _NO_ANSWER:
            return True
        error = error.__cause__
    return False


async def called(
    box: Toolbox, name: str, arguments: Mapping[str, Any], run: Callable[[], Awaitable[Any]], **options: Any
) -> Any:
    """The answer of a tool of an MCP server by the rules of a toolbox. Raises what the framework has raised."""

    async def answered() -> Any:
        try:
            return await run()
        except Exception as error:
            if not _is_unanswered(error):
                raise
            raise UnansweredError(str(error)) from error

    options = {"returns": Answer, **options}
    try:
        answer = await box.call(name, arguments, answered, failed=fails, store_if=is_kept, refused=notice, **options)
    except UnansweredError as doubt:
        if (cause := doubt.__cause__) is None:
            raise
        raise cause from cause.__cause__
    return answer.answer if type(answer) is Private else answer


def fails(answer: Any) -> bool:
    """Whether it is the result of a tool that failed: returned, and never stored."""
    return type(answer) is dict and bool(answer.get("isError"))


def is_kept(answer: Any) -> bool:
    """Whether others may be given it: a result whose ``_meta`` does not say ``no-cache`` (SEP-2419)."""
    meta = answer.get("_meta") if type(answer) is dict else None
    is_hinted = isinstance(meta, Mapping) and any(meta.get(name) == "no-cache" for name in _HINTS)
    return type(answer) is dict and not is_hinted


def notice(error: AgentLoopDetectedError) -> dict[str, Any]:
    """The result of a call that a session has stopped."""
    return {"content": [{"type": "text", "text": str(error)}], "isError": True, "resultType": "complete"}


def requested_version(meta: Mapping[str, Any] | None) -> Any:
    """The version of a tool that a call asks for in its ``_meta``, as FastMCP names it; None for the highest."""
    named = meta.get("fastmcp") if meta else None
    return named.get("version") if isinstance(named, Mapping) else None


def as_json(model: Any) -> dict[str, Any]:
    """The JSON of a result, which is a model of any version of an SDK."""
    form: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return form
