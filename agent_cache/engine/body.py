"""Generates the body of a decorated tool: a real function with the tool's own signature, made once at decoration.

The interpreter itself binds positional, keyword and default spellings, and a local hit of a global tool is answered
inline, in one Python frame outside of sessions. For

    async def get_order(order_id: str, *, full: bool = False) -> Order: ...

this is generated (names shortened; ``root`` is the scope outside of any session):

    async def get_order(order_id, *, full=default_full):
        here = place()
        try:
            key = (
                order_id if type(order_id) is str else part(order_id),
                b"T" if full is True else b"F" if full is False else part(full),
            )
        except Uncacheable as error:
            key = unkeyed(error)
        if here is root:
            entry = lookup(key)  # that of the tool's global store
            if entry is not None and (entry.checked == versions.now or store.is_current(key, entry)):
                value = entry.value if now() < entry.fast and [no lease, or it is valid] else entry.value_at(now())
                if value is not MISSING:
                    [if entry is not store.newest: move it to the end]
                    stats.hits += 1
                    stats.time_saved += entry.cost
                    return value
        elif [in a session, without a tenant, a recording, `bypass` and audits]:
            [the same, and the session observes it]
        else:
            value = hit(operation, here, key, None)
            if value is not MISSING:
                return value
        return await run(operation, here, key, (order_id,), {"full": full})

Of a `def` the body is a `def`, and its last line is ``return run_blocking(run(...))``.

It repeats `ReadOperation.key_of` and `engine.call.hit`, to save frames. The property tests and
tests/unit/test_codegen.py run with and without generation, and hold both to the same answers. The technique is that of
`dataclasses` and attrs: source text, `exec`, `linecache`.
"""

from __future__ import annotations

import inspect
import linecache
import marshal
import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.keys import ALIASES, PLAIN, Uncacheable, key_part
from agent_cache.core.parameters import POSITIONAL, Parameter, Parameters, default_part, receiver_part
from agent_cache.core.store import NEVER
from agent_cache.core.versions import VERSIONS
from agent_cache.core.wrappers import OMITTED_PART, PassedOn
from agent_cache.engine.blocking import blocking, run_blocking
from agent_cache.engine.call import hit, run
from agent_cache.engine.operation import Operation
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.scope import PLACE, ROOT
from agent_cache.engine.streaming import END, StreamingRead, StreamingWrite
from agent_cache.engine.write import WriteOperation
from agent_cache.values.canonical import MISSING

__all__ = ["GENERATION", "read_body", "stream_body", "write_body"]

Body = Callable[..., Any]


class _Generation:
    """Whether bodies are generated. Switched off by tests, every call takes `Operation.invoke`."""

    is_on = True


GENERATION = _Generation()


def read_body(operation: ReadOperation) -> Body:
    """Make the callable that replaces a read tool."""
    if not GENERATION.is_on:
        return _plain_body(operation)
    parameters, policy = operation.parameters, operation.policy
    header, key, mapping = _header(parameters), _key_expression(operation), _mapping_of(parameters.names)
    call, may_overflow = _canonical_call(parameters), "$image" in key
    if isinstance(parameters, PassedOn):
        header, call, key, mapping = _EVERYTHING, "$args, $kwargs", f"$key_of({_EVERYTHING})", "$named($args, $kwargs)"
    generated = _generated_read(
        _prefix(parameters),
        header,
        key,
        mapping,
        call,
        may_overflow=may_overflow,
        has_loop_key=policy.loop.loop_key is not None,
        is_of_session=policy.scope == "session",
        expires=policy.ttl is not None,
        is_sync=operation.is_sync,
    )
    names = _READ_NAMES | {
        "unkeyed": operation.unkeyed,
        "store": operation.store,
        "stats": operation.stats,
        "operation": operation,
        "key_or_unkeyed": operation.key_or_unkeyed,
    }
    if policy.key is not None:
        names["by_key"] = operation.part_by_key
    if operation.heeds_contexts:
        names["by_contexts"] = operation.part_by_contexts
    if policy.vary is not None:
        names["by_vary"] = operation.part_by_vary
    if isinstance(parameters, PassedOn):
        names |= {"key_of": _key_function(operation), "named": parameters.named}
    return _function(operation, generated, names)


def _key_function(operation: ReadOperation) -> Callable[..., Any]:
    """Make the function that gives the key of a call in any spelling. It has the parameters that its body has not."""
    if operation.policy.key is not None or operation.policy.vary is not None or operation.heeds_contexts:
        return operation.key_of_call
    parameters = operation.parameters
    generated = _generated_key(_prefix(parameters), _header(parameters), _key_expression(operation))
    namespace = _namespace(generated, _READ_NAMES, parameters.all)
    made = _made(generated, namespace, parameters.all, f"<agent_cache key of {operation.name}>")
    made.__qualname__ = made.__name__ = getattr(operation.function, "__name__", operation.name)
    return made


def write_body(operation: WriteOperation) -> Body:
    """Make the callable that replaces a write tool."""
    if not GENERATION.is_on:
        return _plain_body(operation)
    parameters = operation.parameters
    header, call = _header(parameters), _canonical_call(parameters)
    if isinstance(parameters, PassedOn):
        header, call = _EVERYTHING, "$args, $kwargs"
    generated = _generated_write(_prefix(parameters), header, call, is_sync=operation.is_sync)
    return _function(operation, generated, {"operation": operation, "place": PLACE.get, **_RUN})


def stream_body(operation: StreamingRead | StreamingWrite) -> Body:
    """Make the generator function that replaces a streaming tool."""
    parameters = operation.parameters
    header, call = _header(parameters), _passed_on(parameters)
    if isinstance(parameters, PassedOn):
        header = call = _EVERYTHING
    generated = _generated_stream(_prefix(parameters), header, call, is_sync=operation.is_sync)
    return _function(operation, generated, {"begin": operation.begin, "END": END})


_RUN = {"call": run, "run": run_blocking}

_READ_NAMES = {
    **_RUN,
    "hit": hit,
    "place": PLACE.get,
    "root": ROOT,
    "Uncacheable": Uncacheable,
    "part": key_part,
    "receiver_part": receiver_part,
    "part_of_default": default_part,
    "PLAIN": PLAIN,
    "type": type,
    "str": str,
    "int": int,
    "dict": dict,
    "list": list,
    "MISSING": MISSING,
    "NEVER": NEVER,
    "versions": VERSIONS,
    "current": CURRENT,
    "known": ALIASES.get,
    "image": marshal.dumps,
}
"""What the bodies of all read tools name."""

_EVERYTHING = "*$args, **$kwargs"
"""The header of the body of a tool that passes on what it gets, and how it does."""

_USE = """\
if $entry is not $store.newest:
    try:
        $store.touch($key)
        $store.newest = $entry
    except KeyError:
        pass
$stats.hits += 1
""".splitlines()


_IS_TRUSTED = (
    "(($lease := $entry.lease) is None or ($lease.page[0] == $lease.stamp "
    "and (($term := $lease.term) is None or ($clock := $term.clock)() < $term.until)))"
)
"""`Lease.is_valid` without a frame, and without `Lease.renew`. If the clock was called as an attribute, CPython 3.11
would look for a method of this name, which takes 15 ns."""


def _indented(lines: list[str], levels: int) -> list[str]:
    return ["    " * levels + line for line in lines]


def _answers(arguments: str, *, is_of_session: bool, expires: bool) -> list[str]:
    """The answer to a local hit. For an entry that never expires the clock is not read, which saves 50 ns."""
    elsewhere = [
        f"$value = $hit($operation, $here, $key, {arguments})",
        "if $value is not $MISSING:",
        "    return $value",
    ]
    if is_of_session:
        return elsewhere
    unexpired = "$now() < $entry.fast" if expires else "($entry.fast == $NEVER or $now() < $entry.fast)"
    find = [
        "    $entry = $lookup($key)",  # a global that the store sets, which saves 7 ns
        "    if $entry is not None and ($entry.checked == $versions.now or $store.is_current($key, $entry)):",
    ]
    counted = [*_USE, "$stats.time_saved += $entry.cost", "return $value"]
    return [
        "if $here is $root:",
        *find,
        f"        $value = $entry.value if {unexpired} and {_IS_TRUSTED} else $entry.value_at($now())",
        "        if $value is not $MISSING:",
        *_indented(counted, 3),
        # In a session a frame less: benchmarks.budgets, "hit": the same in a session.
        (
            "elif $here.call is None and ($local := $here.tools.get($operation)) is not None and $local.is_plain"
            " and $local.configuration is $current.value:"
        ),
        *find,
        "        $moment = $now()",
        f"        $value = $entry.value if $moment < $entry.fast and {_IS_TRUSTED} else $entry.value_at($moment)",
        "        if $value is not $MISSING:",
        f"            $value = $local.observe($key, $entry, $value, $moment, {arguments}, None)",
        *_indented(counted, 3),
        "else:",
        *_indented(elsewhere, 1),
    ]


def _plain_body(operation: Operation[Any]) -> Body:
    invoke = operation.invoke
    if operation.is_sync:
        return blocking(invoke, operation.function)

    @wraps(operation.function)
    async def body(*args: Any, **kwargs: Any) -> Any:
        return await invoke(*args, **kwargs)

    return body


def _prefix(parameters: Parameters) -> str:
    """A prefix that no parameter of the tool begins with."""
    prefix = "_cache_"
    while any(name.startswith(prefix) for name in parameters.names):
        prefix = "_" + prefix
    return prefix


def _key_expression(operation: ReadOperation) -> str:
    parameters = operation.parameters
    if operation.policy.key is not None:
        key = f"$by_key({_passed_on(parameters)})"
    else:
        parts = [_part_expression(parameter) for parameter in parameters.all if parameter.in_key]
        key = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
    if operation.heeds_contexts:
        return f"($by_contexts({_mapping_of(parameters.contexts)}), {key})"
    return key if operation.policy.vary is None else f"($by_vary({_mapping_of(parameters.names)}), {key})"


def _mapping_of(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"


def _part_expression(parameter: Parameter) -> str:
    name = parameter.name
    part = _part_of_any(parameter)
    if not parameter.is_sentinel:
        return part
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return f"{part} if {name} else {OMITTED_PART!r}"
    is_settled = type(parameter.default) is object  # it never gets an attribute
    constant = repr(default_part(parameter.default)) if is_settled else f"$part_of_default({name})"
    return f"{constant} if {name} is $default_{name} else {part}"


def _part_of_any(parameter: Parameter) -> str:
    name = parameter.name
    if parameter.is_receiver:
        return f"$receiver_part({name})"
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return f"$part({name})"
    match parameter.hint:
        case "str" | "int" as kind:
            return f"{name} if $type({name}) is ${kind} else $part({name})"
        case "bool":
            return f'b"T" if {name} is True else b"F" if {name} is False else $part({name})'
        case "dict" | "list" as kind:  # the body of key_part, without the frame
            return f"$known($image({name}, 4)) or $part({name}) if $type({name}) is ${kind} else $part({name})"
    return f'{name} if $type({name}) in $PLAIN else b"N" if {name} is None else $part({name})'


def _passed_on(parameters: Parameters) -> str:
    """Source text of the arguments of a call in its canonical spelling."""
    passed = []
    for parameter in parameters.all:
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                passed.append(f"*{parameter.name}")
            case inspect.Parameter.KEYWORD_ONLY:
                passed.append(f"{parameter.name}={parameter.name}")
            case inspect.Parameter.VAR_KEYWORD:
                passed.append(f"**{parameter.name}")
            case _:
                passed.append(parameter.name)
    return ", ".join(passed)


def _canonical_call(parameters: Parameters) -> str:
    """Source text of the canonical arguments as a tuple and a dict."""
    args, kwargs = [], []
    for parameter in parameters.all:
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                args.append(f"*{parameter.name}")
            case inspect.Parameter.KEYWORD_ONLY:
                kwargs.append(f"{parameter.name!r}: {parameter.name}")
            case inspect.Parameter.VAR_KEYWORD:
                kwargs.append(f"**{parameter.name}")
            case _:
                args.append(parameter.name)
    return f"({', '.join(args)}{',' if args else ''}), {{{', '.join(kwargs)}}}"


def _header(parameters: Parameters) -> str:
    """Source text of the parameter list, with defaults by name."""
    parts: list[str] = []
    seen_star = slash_due = False
    for parameter in parameters.all:
        kind = parameter.kind
        if slash_due and kind is not inspect.Parameter.POSITIONAL_ONLY:
            parts.append("/")
            slash_due = False
        if kind is inspect.Parameter.POSITIONAL_ONLY:
            slash_due = True
        if kind is inspect.Parameter.KEYWORD_ONLY and not seen_star:
            parts.append("*")
            seen_star = True
        stars = (
            "*" if kind is inspect.Parameter.VAR_POSITIONAL else "**" if kind is inspect.Parameter.VAR_KEYWORD else ""
        )
        seen_star |= stars == "*"
        parts.append(stars + parameter.name + (f"=$default_{parameter.name}" if parameter.has_default else ""))
    if slash_due:
        parts.append("/")
    return ", ".join(parts)


# Code, which tools of one shape share


class _Generated(NamedTuple):
    """The code of a body and its source."""

    prefix: str
    code: CodeType
    length: int
    lines: list[str]


_MAX_SHAPES = 500
"""How many bodies are kept for the next tool, at 6 KB each: compiling one takes 300 us, four times all the rest."""


@lru_cache(maxsize=_MAX_SHAPES)
def _generated_read(
    prefix: str,
    header: str,
    key: str,
    mapping: str,
    call: str,
    *,
    may_overflow: bool,
    has_loop_key: bool,
    is_of_session: bool,
    expires: bool,
    is_sync: bool,
) -> _Generated:
    """The body of every read tool with these parameters. It depends on nothing else."""
    arguments = mapping if has_loop_key else "None"
    lines = [
        "$here = $place()",
        "try:",
        f"    $key = {key}",
        "except $Uncacheable as $error:",
        "    $key = $unkeyed($error)",
        *(("except ValueError:", f"    $key = $key_or_unkeyed({mapping})") if may_overflow else ()),
        *_answers(arguments, is_of_session=is_of_session, expires=expires),
        f"return {_waited(f'$call($operation, $here, $key, {call})', is_sync=is_sync)}",
    ]
    return _compiled(prefix, header, lines, is_sync=is_sync)


@lru_cache(maxsize=_MAX_SHAPES)
def _generated_key(prefix: str, header: str, key: str) -> _Generated:
    """The key of the calls of every read tool with these parameters that passes on what it gets."""
    return _compiled(prefix, header, [f"return {key}"], is_sync=True)


@lru_cache(maxsize=_MAX_SHAPES)
def _generated_write(prefix: str, header: str, call: str, *, is_sync: bool) -> _Generated:
    """The body of every write tool with these parameters."""
    written = _waited(f"$call($operation, $place(), None, {call})", is_sync=is_sync)
    return _compiled(prefix, header, [f"return {written}"], is_sync=is_sync)


@lru_cache(maxsize=_MAX_SHAPES)
def _generated_stream(prefix: str, header: str, call: str, *, is_sync: bool) -> _Generated:
    """The body of every streaming tool with these parameters: `engine.streaming.consume` with a signature."""
    wait = "" if is_sync else "await "
    lines = [
        f"$reader = $begin({call})",
        "try:",
        "    while True:",
        f"        $chunk = {wait}$reader.next()",
        "        if $chunk is $END:",
        "            return",
        "        try:",
        "            $sent = yield $chunk",
        "        except GeneratorExit:",
        "            raise",
        "        except BaseException as $error:",
        "            $reader.throw($error)",
        "        else:",
        "            if $sent is not None:",
        "                $reader.send($sent)",
        "finally:",
        f"    {wait}$reader.leave()",
    ]
    return _compiled(prefix, header, lines, is_sync=is_sync)


def _waited(call: str, *, is_sync: bool) -> str:
    """The expression that waits for a call."""
    return f"$run({call})" if is_sync else f"await {call}"


def _compiled(prefix: str, header: str, lines: list[str], *, is_sync: bool) -> _Generated:
    start = "def" if is_sync else "async def"
    text = "\n".join([f"{start} $body({header}):", *_indented(lines, 1), ""])
    source = text.replace("$", prefix)
    module = compile(source, "<agent_cache body>", "exec", dont_inherit=True)
    code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
    return _Generated(prefix, code, len(source), source.splitlines(keepends=True))


def _function(operation: Operation[Any], generated: _Generated, names: dict[str, Any]) -> Body:
    """The body of one tool: the code of its shape under a file name of its own, with what the tool alone has."""
    prefix = generated.prefix
    parameters = () if isinstance(operation.parameters, PassedOn) else operation.parameters.all
    namespace = _namespace(generated, names, parameters)
    filename = f"<agent_cache body of {operation.name}>"
    made = _made(generated, namespace, parameters, filename)
    shown = linecache.cache[filename] = (generated.length, None, generated.lines, filename)
    body: Body = wraps(operation.function)(made)
    weakref.finalize(body, _forget_source, filename, shown).atexit = False
    CLOCK.show_in(body, prefix + "now")
    if isinstance(operation, ReadOperation):
        operation.store.show_in(namespace, prefix + "lookup")
    return body


def _namespace(generated: _Generated, names: dict[str, Any], parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """The globals of a function that was generated."""
    namespace = {generated.prefix + name: value for name, value in names.items()}
    return namespace | {f"{generated.prefix}default_{one.name}": one.default for one in parameters if one.is_sentinel}


def _made(
    generated: _Generated, namespace: dict[str, Any], parameters: tuple[Parameter, ...], filename: str
) -> FunctionType:
    made = FunctionType(
        generated.code.replace(co_filename=filename),
        namespace,
        argdefs=tuple(one.default for one in parameters if one.has_default and one.kind in POSITIONAL),
    )
    made.__kwdefaults__ = {
        one.name: one.default for one in parameters if one.has_default and one.kind not in POSITIONAL
    } or None
    return made


def _forget_source(filename: str, shown: Any) -> None:
    """Drop the source of a body that is gone, unless a tool of the same name has replaced it."""
    if linecache.cache.get(filename) is shown:
        linecache.cache.pop(filename, None)
