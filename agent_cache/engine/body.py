"""Generates the body of a decorated tool: a real function with the tool's own signature, made once at decoration.

The interpreter itself binds positional, keyword and default spellings, and a local hit is answered inline, in one
Python frame outside of sessions. For

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
            if entry is not None:
                value = entry.value if now() < entry.fast and [no lease, or it is valid] else entry.value_at(now())
                if value is not MISSING and (entry.checked == versions.now or store.is_current(key, entry)):
                    [if entry is not store.newest: move it to the end; count the hit]
                    return value
        elif [in a session, without a tenant, a recording, `bypass` and audits]:
            [the same, and the session observes it]
        elif [not in a recording, as far as the place says]:
            value = hit(operation, here, key, None)
            if value is not MISSING:
                return value
        return await run(operation, here, key, (order_id,), {"full": full})

Of a `def` the body is a `def`, and its last line is ``return run_blocking(run(...))``. The technique is that of
`dataclasses` and attrs: source text, compiled, and shown by `linecache`. It repeats `ReadOperation.key_of` and
`engine.call.hit`, to save frames.
"""

from __future__ import annotations

import inspect
import linecache
import marshal
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, update_wrapper
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from agent_cache.clock import CLOCK
from agent_cache.config import CURRENT
from agent_cache.core.asker import asks
from agent_cache.core.keys import ALIASES, PLAIN, Uncacheable, key_part
from agent_cache.core.options import ReadPolicy
from agent_cache.core.parameters import DEFAULT_PART, POSITIONAL, Parameter, Parameters, PassedOn, receiver_part
from agent_cache.core.store import NEVER
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.blocking import run_blocking
from agent_cache.engine.call import hit, run
from agent_cache.engine.operation import Operation
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.scope import PLACE, ROOT
from agent_cache.engine.streaming import END, WAIT, StreamingRead, StreamingWrite
from agent_cache.engine.write import WriteOperation
from agent_cache.values.canonical import MISSING

__all__ = ["read_body", "stream_body", "write_body"]

Body = Callable[..., Any]

_NAMES: Final[dict[str, Any]] = {
    "run": run, "run_blocking": run_blocking, "hit": hit, "place": PLACE.get, "root": ROOT, "Uncacheable": Uncacheable,
    "part": key_part, "receiver_part": receiver_part, "asks": asks, "PLAIN": PLAIN, "type": type,
    "str": str, "int": int, "dict": dict, "list": list, "MISSING": MISSING, "NEVER": NEVER, "versions": VERSIONS,
    "current": CURRENT, "known": ALIASES.get, "image": marshal.dumps, "END": END, "WAIT": WAIT,
}  # fmt: skip
"""What the bodies of all tools name. In the source text a ``$`` stands in front of each name that is not the tool's."""

_EVERYTHING: Final = "*$args, **$kwargs"
"""The header of the body of a tool that passes on what it gets, and how it does."""


def read_body(operation: ReadOperation) -> Body:
    """Make the callable that replaces a read tool."""
    parameters = operation.parameters
    names = {
        "unkeyed": operation.unkeyed, "store": operation.store, "stats": operation.stats, "operation": operation,
        "key_or_unkeyed": operation.key_or_unkeyed, "by_key": operation.part_by_key,
        "by_contexts": operation.part_by_contexts, "by_vary": operation.part_by_vary,
    }  # fmt: skip
    header, passed, call = _spelled(parameters)
    key, mapping = _key_expression(operation, passed), _mapping_of(parameters.names)
    if isinstance(parameters, PassedOn):
        names |= {"key_of": operation.key_of_call, "bind": parameters.bind}
        header, call, key, mapping = _EVERYTHING, "$args, $kwargs", f"$key_of({_EVERYTHING})", "$bind($args, $kwargs)"
    lines = [
        "$here = $place()",
        "try:",
        f"    $key = {key}",
        "except $Uncacheable as $error:",
        "    $key = $unkeyed($error)",
        *(("except ValueError:", f"    $key = $key_or_unkeyed({mapping})") if "$image" in key else ()),
        *_answers("None" if operation.policy.loop.loop_key is None else mapping, operation.policy),
        _returned(operation, f"$run($operation, $here, $key, {call})"),
    ]
    body = _body(operation, header, lines, names)
    operation.store.show_in(body.__globals__, _prefix(parameters) + "lookup")
    return body


def write_body(operation: WriteOperation) -> Body:
    """Make the callable that replaces a write tool."""
    header, _, call = _spelled(operation.parameters)
    if isinstance(operation.parameters, PassedOn):
        header, call = _EVERYTHING, "$args, $kwargs"
    lines = [_returned(operation, f"$run($operation, $place(), None, {call})")]
    return _body(operation, header, lines, {"operation": operation})


def stream_body(operation: StreamingRead | StreamingWrite) -> Body:
    """Make the generator function that replaces a streaming tool."""
    header, passed, _ = _spelled(operation.parameters)
    if isinstance(operation.parameters, PassedOn):
        header = passed = _EVERYTHING
    source = _STREAM.replace("await ", "") if operation.is_sync else _STREAM
    names = {"begin": operation.begin}
    over = _compiled("_cache_", "$begin", tuple(source.format(passed="").splitlines()), is_sync=operation.is_sync)
    operation.iterate = _made(over, {}, (), f"<agent_cache stream of {operation.name}>")
    return _body(operation, header, source.format(passed=passed).splitlines(), names)


_STREAM: Final = """\
$cursor = $begin({passed})
try:
    while True:
        while ($chunk := $cursor.take()) is $WAIT:
            await $cursor.wait()
        if $chunk is $END:
            return
        if (yield $chunk) is not None:
            $cursor.refuse()
finally:
    await $cursor.leave()
"""
"""A generator over a cursor: see `engine.streaming`. That of a `def` waits without ``await``."""

_IS_TRUSTED: Final = (
    "(($lease := $entry.lease) is None or ($lease.page[0] == $lease.stamp "
    "and (($term := $lease.term) is None or ($clock := $term.clock)() < $term.until)))"
)
"""`Lease.is_valid` without a frame, and without `Lease.renew`. If the clock was called as an attribute, CPython 3.11
would look for a method of this name, which takes 15 ns."""


def _answers(arguments: str, policy: ReadPolicy) -> list[str]:
    """The answer to a local hit. Outside of sessions the clock is not read for an entry that never expires."""
    elsewhere = f"$value = $hit($operation, $here, $key, {arguments})\nif $value is not $MISSING:\n    return $value"
    if policy.scope == "session":
        return elsewhere.splitlines()
    unexpired = "$now() < $entry.fast" if policy.ttl is not None else "($entry.fast == $NEVER or $now() < $entry.fast)"
    at_root = _ENTRY.format(unexpired=unexpired, now="$now()", observed="")
    observed = f"$value = $local.hit($key, $entry, $value, $moment, {arguments}, None)"
    in_session = _ENTRY.format(unexpired="($moment := $now()) < $entry.fast", now="$moment", observed=observed)
    # In a session a frame less: benchmarks.budgets, "hit": the same in a session.
    is_in_session = (
        "$here.call is None and ($local := $here.tools.get($operation) or $here.add_local($operation)).is_plain"
        " and $local.configuration is $current.value"
    )
    # A frame less in a recording, whose calls are no hits here.
    may_hit = "$here.call is not None or $here.hook is None"
    branches = (
        ("if $here is $root:", at_root), (f"elif {is_in_session}:", in_session), (f"elif {may_hit}:", elsewhere)
    )  # fmt: skip
    return [line for test, branch in branches for line in (test, *_indented(branch.splitlines()))]


_ENTRY: Final = f"""\
$entry = $lookup($key)
if $entry is not None:
    $value = $entry.value if {{unexpired}} and {_IS_TRUSTED} else $entry.value_at({{now}})
    if $value is not $MISSING and ($entry.checked == $versions.now or $store.is_current($key, $entry)):
        {{observed}}
        if $entry is not $store.newest:
            try:
                $store.touch($key)
                $store.newest = $entry
            except KeyError:
                pass
        $stats.hits += 1
        $stats.time_saved += $entry.cost
        return $value
"""
"""How an entry of the global store answers: trusted first, then current. `lookup` is a global, which saves 7 ns."""


def _indented(lines: Iterable[str]) -> list[str]:
    return ["    " + line for line in lines]


# The source text of keys and of arguments


def _prefix(parameters: Parameters) -> str:
    """A prefix that no parameter of the tool begins with."""
    prefix = "_cache_"
    while any(name.startswith(prefix) for name in parameters.names):
        prefix = "_" + prefix
    return prefix


def _key_expression(operation: ReadOperation, passed: str) -> str:
    parameters = operation.parameters
    parts = [_part_expression(parameter) for parameter in parameters.all if parameter.in_key]
    key = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
    if operation.policy.key is not None:
        key = f"$by_key({passed})"
    if operation.heeds_contexts:
        asker = f"$by_contexts({_mapping_of(parameters.contexts)})"
        if [*parameters.contexts.values()] == ["receiver"] and not parameters.getters:  # 1.6 us less for most methods
            asker += f" if $asks({parameters.names[0]}) else None"
        return f"({asker}, {key})"
    return key if operation.policy.vary is None else f"($by_vary({_mapping_of(parameters.names)}), {key})"


def _mapping_of(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"


def _part_expression(parameter: Parameter) -> str:
    name, hint = parameter.name, parameter.hint
    if parameter.is_receiver:
        part = f"$receiver_part({name})"
    elif parameter.kind in _STARS:
        part = f"$part({name})"
    elif hint in ("str", "int"):
        part = f"{name} if $type({name}) is ${hint} else $part({name})"
    elif hint == "bool":
        part = f'b"T" if {name} is True else b"F" if {name} is False else $part({name})'
    elif hint in ("dict", "list"):  # the body of key_part, without the frame
        part = f"$known($image({name}, 4)) or $part({name}) if $type({name}) is ${hint} else $part({name})"
    else:
        part = f'{name} if $type({name}) in $PLAIN else b"N" if {name} is None else $part({name})'
    if not parameter.is_sentinel:
        return part
    return f"{DEFAULT_PART!r} if {name} is $default_{name} else {part}"


class _Source(str):
    """Text that a signature shows as it is."""

    __slots__ = ()
    __repr__ = str.__str__


_STARS: Final[dict[Any, str]] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _spelled(parameters: Parameters) -> tuple[str, str, str]:
    """Source text of the parameter list, with defaults by name; of the arguments of a call in its canonical spelling;
    and of these as a tuple and a dict.
    """
    shown: list[inspect.Parameter] = []
    passed: list[str] = []
    args: list[str] = []
    kwargs: list[str] = []
    for one in parameters.all:
        default = _Source(f"$default_{one.name}") if one.has_default else inspect.Parameter.empty
        shown.append(inspect.Parameter(one.name, one.kind, default=default))
        name, stars = one.name, _STARS.get(one.kind, "")
        is_by_name = one.kind is inspect.Parameter.KEYWORD_ONLY
        passed.append(f"{name}={name}" if is_by_name else stars + name)
        if is_by_name or stars == "**":
            kwargs.append(f"{name!r}: {name}" if is_by_name else f"**{name}")
        else:
            args.append(f"{stars}{name},")
    return str(inspect.Signature(shown))[1:-1], ", ".join(passed), f"({' '.join(args)}), {{{', '.join(kwargs)}}}"


# Code, which tools of one shape share


class _Generated(NamedTuple):
    """The code of a body and its source."""

    prefix: str
    code: CodeType
    lines: list[str]


@lru_cache(maxsize=500)  # 6 KB each; compiling one takes 300 us, four times all the rest
def _compiled(prefix: str, header: str, lines: tuple[str, ...], *, is_sync: bool) -> _Generated:
    start = "def" if is_sync else "async def"
    source = "\n".join([f"{start} $body({header}):", *_indented(lines), ""]).replace("$", prefix)
    module = compile(source, "<agent_cache body>", "exec", dont_inherit=True)
    code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
    return _Generated(prefix, code, source.splitlines(keepends=True))


def _returned(operation: Operation[Any], call: str) -> str:
    """The line that waits for a call and returns its value."""
    return f"return $run_blocking({call})" if operation.is_sync else f"return await {call}"


def _body(operation: Operation[Any], header: str, lines: list[str], names: Mapping[str, Any]) -> FunctionType:
    """The body of one tool: the code of its shape under a file name of its own, with what the tool alone has."""
    generated = _compiled(_prefix(operation.parameters), header, tuple(lines), is_sync=operation.is_sync)
    parameters = () if isinstance(operation.parameters, PassedOn) else operation.parameters.all
    filename = f"<agent_cache body of {operation.name}>"
    body = _made(generated, names, parameters, filename)
    update_wrapper(body, operation.function)
    shown = linecache.cache[filename] = (sum(map(len, generated.lines)), None, generated.lines, filename)
    weakref.finalize(body, _forget_source, filename, shown).atexit = False
    CLOCK.show_in(body, generated.prefix + "now")
    return body


def _made(
    generated: _Generated, names: Mapping[str, Any], parameters: tuple[Parameter, ...], filename: str
) -> FunctionType:
    every = {generated.prefix + name: value for name, value in {**_NAMES, **names}.items()}
    namespace = {name: every[name] for name in generated.code.co_names if name in every}
    namespace |= {f"{generated.prefix}default_{one.name}": one.default for one in parameters if one.is_sentinel}
    given = [one for one in parameters if one.has_default]
    defaults = tuple(one.default for one in given if one.kind in POSITIONAL)
    made = FunctionType(generated.code.replace(co_filename=filename), namespace, argdefs=defaults)
    made.__kwdefaults__ = {one.name: one.default for one in given if one.kind not in POSITIONAL} or None
    return made


def _forget_source(filename: str, shown: Any) -> None:
    """Drop the source of a body that is gone, unless a tool of the same name has replaced it."""
    if linecache.cache.get(filename) is shown:
        linecache.cache.pop(filename, None)
