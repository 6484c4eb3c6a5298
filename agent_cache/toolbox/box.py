"""`Toolbox`: the engine of the decorators for tools that are known by their names and their arguments as JSON.

A tool is compiled into an operation at its first call, as a decorator does at decoration. Its positional arguments are
the function that runs this call and what the call varies by; the names in the JSON object are its keywords.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from inspect import isawaitable
from textwrap import shorten
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeVar, cast, overload

from agent_cache.at_fork import lock_of
from agent_cache.config import Configuration
from agent_cache.core.asker import Apart, Injected, UnknownAsker, asker_in
from agent_cache.core.keys import Uncacheable
from agent_cache.core.options import (
    ReadPolicy,
    WritePolicy,
    checked_choice,
    checked_function,
    checked_text,
    no_life,
    plain_result,
)
from agent_cache.core.parameters import JsonArguments, Named
from agent_cache.core.tags import TagSet, unescape
from agent_cache.engine.blocking import run_blocking
from agent_cache.engine.call import hit, run as run_call
from agent_cache.engine.operation import UNKEYED
from agent_cache.engine.read import ReadOperation
from agent_cache.engine.scope import PLACE
from agent_cache.engine.state import warn_once
from agent_cache.engine.write import WriteOperation
from agent_cache.errors import AgentLoopDetectedError, ConfigurationError
from agent_cache.toolbox.rules import (
    Found,
    Inner,
    Pass,
    Read,
    Rule,
    ToolInfo,
    ToolRow,
    ToolRule,
    ToolTable,
    Watch,
    Write,
    compiled_tags,
    find_rule,
    hinted_kind,
    roots_of,
    row_of,
    templates_of,
)
from agent_cache.tools import AgentCache, checked_tool
from agent_cache.values.canonical import MISSING, forget_oldest
from agent_cache.values.compare import is_empty, plural

if TYPE_CHECKING:
    import os

__all__ = ["Toolbox", "every_tag"]

F = TypeVar("F", bound=Callable[..., Any])

_MAX_TOOLS: Final = 1_000
"""How many tools one toolbox keeps compiled. Functions that are made anew for each call make each time another one."""

_UNNAMED: Final = " (names no tool)"
"""The end of the name of a call of a meta-tool that names no inner one. No rule is of such a name."""

_PASS: Final = Pass()
_WATCH: Final = Watch()


class Toolbox:
    """Rules for tools that are known by name: of a framework, of an MCP server, of a loop of one's own.

    Its tools have the same keys, tags, coherence, single flight, sessions, loop detection, recordings, tiers and
    metrics as decorated ones, and may share tags with them.

    Args:
        rules: what each tool is, by its name; to change them, make another toolbox. A name with ``*``, ``?`` or
            ``[...]`` is a pattern, as for `fnmatch`; the exact name comes first, then patterns as written. The name of
            a server in front may be left out: ``git_log`` is the rule of ``mcp__git__git_log``, ``git.git_log`` too.
        namespace: the first part of the names of its tools in traces, recordings and tiers: ``namespace:name``.
        unknown: what a tool without a rule is: ``"write"``, which invalidates every root of this toolbox; ``"watch"``,
            as `Watch`; ``"pass"``, as `Pass`. It is logged once for each tool.
        hints: ``"kind"``: the annotations of an MCP tool tell whether a tool without a rule reads (a `Watch`) or writes
            (every root), and a tool that reads is no `Write` because of a pattern. They never say how long an answer
            lives, so nothing is cached because of them. ``"off"``: they are not looked at.

    Raises:
        ConfigurationError: if an argument has another form.
    """

    def __init__(
        self,
        rules: Mapping[str, ToolRule] | None = None,
        *,
        namespace: str,
        unknown: Literal["write", "watch", "pass"] = "write",
        hints: Literal["off", "kind"] = "off",
    ) -> None:
        checked_text(namespace, "Toolbox: namespace")
        if ":" in namespace:
            raise ConfigurationError(f"Toolbox: namespace must have no colon, got {namespace!r}")
        if not isinstance(rules, Mapping | None):
            raise ConfigurationError(f"Toolbox: rules must be a mapping of names of tools to rules, got {rules!r}")
        self.namespace: Final = namespace
        self.rules: Mapping[str, Rule] = MappingProxyType(dict(cast("Any", rules) or {}))
        for name, rule in self.rules.items():
            checked_text(name, "Toolbox: the name of a tool")
            if not isinstance(rule, Rule):
                raise ConfigurationError(
                    f"Toolbox: the rule of {name!r} must be Read, Write, Watch, Pass or Inner(...), got {rule!r}"
                )
        self._unknown = checked_choice(unknown, ("write", "watch", "pass"), "Toolbox: unknown")
        self._hints = checked_choice(hints, ("off", "kind"), "Toolbox: hints")
        self._roots = roots_of(self.rules, namespace)
        self._every_root = Write(templates_of(self._roots))
        self.tier: Any = None
        self._tools: dict[Any, _Tool] = {}
        self._sync_tools: dict[Any, _Tool] = {}
        self._lock = lock_of(self)  # a handler of the log may call the toolbox

    def __deepcopy__(self, _memo: object = None) -> Self:
        """Itself, as of a function: a copy of an agent, or of its settings, calls the same tools and shares answers."""
        return self

    __copy__ = __deepcopy__

    def __getstate__(self) -> dict[str, Any]:
        """For another process: the rules, and nothing of what was called here."""
        return {**self.__dict__, "rules": dict(self.rules), "_tools": {}, "_sync_tools": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, rules=MappingProxyType(state["rules"]), _lock=lock_of(self))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, hints: Literal["off", "kind"] = "off") -> Self:
        """A toolbox by a TOML file: see `docs/reference/toolbox.md`.

        Args:
            path: the file.
            hints: what ``hints`` is if the file does not say.

        Raises:
            ConfigurationError: naming the file, the key and the fix.
        """
        from agent_cache.toolbox.rules_file import read_rules

        arguments, tier = read_rules(path, hints)
        made = cls(**arguments)
        made.tier = tier
        return made

    # Rules

    def rule(self, name: str, annotations: Any = None, arguments: Any = None) -> Read | Write | Watch | Pass:
        """The rule of a tool; of a tool that calls another one, that of the inner tool.

        Args:
            annotations: what an MCP server says of it, for ``hints="kind"``.
            arguments: those of the call, which name the inner tool.
        """
        rule = self._find(name, annotations).rule
        if not isinstance(rule, Inner):
            return rule
        inner = rule.of(name, arguments) or (name + _UNNAMED, None)
        return self.rule(inner[0], None, inner[1])

    def _find(self, name: str, annotations: Any) -> Found:
        if not isinstance(name, str):
            raise ConfigurationError(f"Toolbox: the name of a tool must be a str, got {name!r}")
        found = None if name.endswith(_UNNAMED) else find_rule(self.rules, name)
        hinted = hinted_kind(annotations) if self._hints == "kind" and annotations is not None else None
        if found is not None:
            if hinted == "read" and found.is_pattern and isinstance(found.rule, Write):
                return Found(_WATCH, f"hint: it reads, so the {found.why} is not of it")
            return found
        if hinted is not None:
            return Found(_WATCH if hinted == "read" else self._every_root, f"hint: it {hinted}s")
        rule: Rule = self._every_root if self._unknown == "write" else _WATCH if self._unknown == "watch" else _PASS
        return Found(rule, "no rule", is_unknown=True)

    def explain(self, tools: Iterable[ToolInfo | str] = (), unlisted: int = 0) -> ToolTable:
        """What is done with each of these tools, and what is wrong with the rules.

        Args:
            tools: the tools of an agent or a server. Without any, the rules themselves are the rows.
            unlisted: servers of the agent whose tools are not known yet: any rule may be of one of them.

        Raises:
            TypeError: if one of them is neither a name nor a `ToolInfo`.
        """
        infos = [ToolInfo(tool) if isinstance(tool, str) else tool for tool in tools]
        if isinstance(tools, str) or not all(isinstance(info, ToolInfo) for info in infos):
            raise TypeError(f"explain takes a list of names of tools and ToolInfo(...), got {tools!r}")
        read, written = (
            {root for rule in self.rules.values() if isinstance(rule, kind) for root in roots_of({"": rule}, "")}
            for kind in (Read, Write)
        )
        problems = [
            f"no rule reads {root!r}, so its writes drop nothing under it, unless other tools have this tag"
            for root in sorted(written - read)
        ]
        if unlisted:
            problems.append(f"the tools of {plural(unlisted, 'server')} are not known yet: explain again after a run")
        names = [info.name for info in infos]
        for name in self.rules if infos and not unlisted else ():
            if not any(one == name or find_rule({name: _PASS}, one) for one in names):
                problems.append(f"the rule {name!r} is of no tool; there are {shorten(', '.join(names), 160)}")
                warn_once(f"the rule {name!r} is of no tool of the agent", self.namespace)
        with self._lock:
            compiled = [tool.operation for tools in (self._tools, self._sync_tools) for tool in tools.values()]
        unknown = {one.name for one in compiled if isinstance(one, ReadOperation) and one.has_unknown_askers}
        rows = []
        for info in infos if infos or unlisted else map(ToolInfo, self.rules):
            if info.is_decorated:
                rows.append(ToolRow(info.name, "decorated", "", "", "its decorator"))
                continue
            found = self._find(info.name, info.annotations)
            rows.append(row_of(info, found))
            if f"{self.namespace}:{info.name}" in unknown:
                problems.append(
                    f"{info.name!r} ran uncached: its context may say who asks in a form that cannot be compared; give "
                    "its rule vary= to say what of the context counts, or shared=True if nothing does"
                )
            try:
                self._tags_of(found.rule, info.name, info.schema)
            except ConfigurationError as error:
                problems.append(str(error))
        table = ToolTable(rows)
        table.problems = tuple(problems)
        return table

    def _tags_of(self, rule: Rule, name: str, schema: Mapping[str, Any] | None) -> TagSet:
        if isinstance(rule, Read | Write):
            return compiled_tags(rule, _taken_of(schema)[0], f"{self.namespace}:{name}")
        return TagSet(self._roots, (), (), self._roots)

    # Calls

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        run: Callable[[], Awaitable[Any]],
        *,
        schema: Mapping[str, Any] | None = None,
        annotations: Any = None,
        vary: Any = None,
        returns: Any = None,
        failed: Callable[[Any], bool] | None = None,
        store_if: Callable[[Any], bool] | None = None,
        refused: Callable[[AgentLoopDetectedError], Any] | None = None,
        context: Any = None,
    ) -> Any:
        """Call a tool by the rule of its name.

        `returns`, `failed`, `store_if` and `refused` belong to the caller's form of answers: calls with others share no
        entries, but tags. Pass the same functions at each call.

        Args:
            name: the name of the tool.
            arguments: a JSON object. Arguments that are absent differ from null. What has no identity runs uncached.
            run: runs the tool for this call, and returns its answer or what gives it when it is awaited.
            schema: the JSON schema of the arguments: defaults in it complete the key, and a template must name a
                property of it.
            annotations: what an MCP server says of the tool, for ``hints="kind"``.
            vary: what else distinguishes this call: a tenant, the hash of a token.
            returns: the annotation of what `run` returns, for recordings and tiers.
            failed: ``failed(answer)`` is true for an error: it is returned and not stored, and a failure for a write
                and for the loop guard.
            store_if: ``store_if(answer)`` is false for what is not stored although it is no error.
            refused: makes the answer in place of the tool's when a session answers a loop by a notice. Without it, the
                answer is the text of the notice.
            context: what a framework gives the tool beside its arguments, if it gives anything. The fields of it that
                say who asks distinguish this call, unless the rule has ``vary`` or ``shared=True``. Where they cannot
                be compared the call of a read runs uncached.

        Returns:
            What `run` returned, now or earlier.

        Raises:
            ConfigurationError: if a template names no property of `schema`, or a function takes no answer. Nothing ran.
            AgentLoopDetectedError: if a session refuses the call.
        """
        value, work = self._begin(
            self._tools, name, arguments, run, schema, annotations, vary, returns, failed, store_if, refused, context
        )
        return value if work is None else await work

    def call_sync(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Any], **options: Any) -> Any:
        """The same from synchronous code, with the same options: `run` is a plain function, and runs in this thread.

        Identical calls of several threads share one run. Calls by `call` share tags with them and no entries.
        """
        value, work = self._begin(self._sync_tools, name, arguments, run, **options)
        return value if work is None else run_blocking(work)

    def _begin(
        self,
        tools: dict[Any, _Tool],
        name: str,
        arguments: Mapping[str, Any],
        run: Callable[[], Any],
        schema: Mapping[str, Any] | None = None,
        annotations: Any = None,
        vary: Any = None,
        returns: Any = None,
        failed: Any = None,
        store_if: Any = None,
        refused: Any = None,
        context: Any = None,
    ) -> tuple[Any, Any]:
        """Identify a call, and look for its answer. Returns that, and None; or what else answers it, to be awaited."""
        form = None if returns is failed is store_if is refused is None else _Form(returns, failed, store_if, refused)
        tool = tools.get(name if form is None else (name, form))
        if (
            tool is None
            or (schema is not None and schema is not tool.schema)
            or (annotations is not None and annotations is not tool.annotations)
        ):
            tool = self._compiled(tools, name, schema, annotations, form)
        while tool.operation is None:
            if not isinstance(tool.rule, Inner):
                answer = run()
                return (None, answer) if tools is self._tools and isawaitable(answer) else (answer, None)
            vary = Apart(vary.who, ["inner", name, vary.where]) if type(vary) is Apart else Apart(vary, ["inner", name])
            name, arguments = tool.rule.of(name, arguments) or (name + _UNNAMED, arguments)
            tool = tools.get(name if form is None else (name, form)) or self._compiled(tools, name, None, None, form)
        operation = tool.operation
        key: Any = UNKEYED
        given: dict[str, Any] = {}
        try:
            given = {**tool.defaults, **arguments}
            if context is not None and operation.policy.heeds_contexts:
                vary = _with_asker(operation, vary, context)
            if isinstance(operation, ReadOperation):
                key = operation.key_of(Named(given, vary))
        except (Uncacheable, TypeError, ValueError) as error:
            plain_result(vary.who if type(vary) is Apart else vary, f"{operation.name}: vary")
            if not isinstance(error, Uncacheable):
                given, error = {"arguments": arguments}, Uncacheable("the arguments are no JSON object")
            if isinstance(operation, ReadOperation):
                key = operation.unkeyed(error)
            vary = error if type(error) is UnknownAsker else vary
        here = PLACE.get()
        if key is not UNKEYED:
            value = hit(operation, here, key, given)
            if value is not MISSING:
                return value, None
        if not all(type(name) is str for name in given):  # such names cannot be passed, and are no JSON
            key, given = UNKEYED, {"arguments": given}
        return None, run_call(operation, here, key, (run, vary), given)

    async def aclose(self) -> None:
        """Close the tier that its file has named as ``remote``, which delivers the invalidations that are pending."""
        if self.tier is not None:
            await self.tier.aclose()

    def forget(self) -> None:
        """Drop what its tools have stored in this process, and what it knows of their schemas and hints: the tools are
        others now. Tiers keep what they have until a write or its ttl.
        """
        with self._lock:
            forgotten = [*self._tools.values(), *self._sync_tools.values()]
            self._tools.clear()
            self._sync_tools.clear()
        for tool in forgotten:
            if isinstance(tool.operation, ReadOperation):
                tool.operation.clear()

    def _compiled(
        self, tools: dict[Any, _Tool], name: str, schema: Mapping[str, Any] | None, annotations: Any, form: _Form | None
    ) -> _Tool:
        """A tool that is called first, or with another schema or hints."""
        key = name if form is None else (name, form)
        found = self._find(name, annotations)
        with self._lock:  # threads that call it first at once share one operation, and so one run
            tool = tools.get(key)
            if tool is not None and schema is None:
                schema = tool.schema
            if tool is None or tool.rule is not found.rule or _taken_of(schema) != _taken_of(tool.schema):
                tool = self._compile(name, found, schema, form or _NO_FORM, is_sync=tools is self._sync_tools)
            tools[key] = tool = tool._replace(schema=schema, annotations=annotations)
            forget_oldest(tools, _MAX_TOOLS)
        return tool

    def _compile(
        self, name: str, found: Found, schema: Mapping[str, Any] | None, form: _Form, *, is_sync: bool
    ) -> _Tool:
        rule, full_name = found.rule, f"{self.namespace}:{name}"
        for option in ("failed", "store_if", "refused"):
            checked_function(getattr(form, option), f"{full_name}: {option}", 1)
        self._warn_of_unknown(found, full_name)
        if isinstance(rule, Pass | Inner):
            return _Tool(None, rule, schema)
        kind: Any = _NamedWrite if isinstance(rule, Write) else _NamedRead
        tags, function = self._tags_of(rule, name, schema), _runner(name, form.returns, is_sync=is_sync)
        policy: Any = form.of_write(rule) if isinstance(rule, Write) else form.of_read(rule, tags)
        parameters = JsonArguments(is_read=kind is _NamedRead, form=form.label)
        operation = kind(function, full_name, parameters, tags, policy, rule.decorator.tiers, is_sync=is_sync)
        # If it was new, it would warn of roots that no tool writes or reads: that tool may not have been called yet.
        operation.form, operation.rule, operation.is_new = form, rule, False
        return _Tool(operation, rule, schema, _taken_of(schema)[1])

    def _warn_of_unknown(self, found: Found, full_name: str) -> None:
        if found.is_unknown:
            rule, roots = found.rule, shorten(", ".join(self._roots), 160)
            what = f"each call invalidates {roots}" if rule is self._every_root else repr(rule)
            warn_once(f"no rule is of this tool, so it is taken as unknown={self._unknown!r}: {what}", full_name)

    # Functions of one's own

    @overload
    def tool(self, function: F) -> F: ...
    @overload
    def tool(self) -> Callable[[F], F]: ...
    def tool(self, function: Any = MISSING) -> Any:
        """Give a function the rule of its name: a decorator, with or without parentheses.

        Raises:
            ConfigurationError: if a template of the rule names no parameter.
            TypeError: as `agent_cache.AgentCache`, for a function that it cannot take.
        """
        if function is MISSING:
            return self.tool
        name = checked_tool(function, "Toolbox.tool").__name__
        full_name, found = f"{self.namespace}:{name}", self._find(name, None)
        self._warn_of_unknown(found, full_name)
        rule = found.rule
        if isinstance(rule, Inner):
            raise ConfigurationError(f"{full_name}: a function whose calls are of inner tools needs `Toolbox.call`")
        if isinstance(rule, Pass):
            return function
        decorator: Any = rule.decorator
        if isinstance(rule, Watch):
            decorator = AgentCache(templates_of(self._roots), ttl=no_life, loop=decorator.policy.loop)
        return decorator.named(full_name)(function)


def every_tag(box: Toolbox) -> tuple[tuple[str], ...]:
    """The roots that the rules of a toolbox name, as `writing` takes them."""
    return tuple((unescape(root),) for root in box._roots)


class _Tool(NamedTuple):
    """A tool, compiled."""

    operation: ReadOperation | WriteOperation | None  # None for `Pass` and `Inner`
    rule: Rule
    schema: Mapping[str, Any] | None  # as the caller gave it
    defaults: Mapping[str, Any] = MappingProxyType({})  # in the schema
    annotations: Any = None  # as the caller gave them


class _Form(NamedTuple):
    """How a caller's answers are to be taken: see `Toolbox.call`."""

    returns: Any
    failed: Callable[[Any], bool] | None
    store_if: Callable[[Any], bool] | None
    refused: Callable[[AgentLoopDetectedError], Any] | None

    @property
    def label(self) -> str | None:
        """What tells it from others in a tier: the names of its functions, which are the same in other processes."""
        if self == _NO_FORM:
            return None
        functions = [getattr(one, "__qualname__", type(one).__qualname__) if one else "" for one in self[1:]]
        names = [f"{getattr(one, '__module__', '')}.{name}" for one, name in zip(self[1:], functions, strict=True)]
        return ",".join([repr(self.returns), *names])

    def of_read(self, rule: Read | Watch, tags: TagSet) -> ReadPolicy:
        """The policy of a read whose answers have this form."""
        policy: ReadPolicy = rule.decorator.policy
        failed, store_if, own, key, label = self.failed, self.store_if, policy.cache_if, policy.key, self.label
        validate = policy.validate

        def may_be_stored(answer: Any) -> bool:
            return (
                (failed is None or not failed(answer))
                and (store_if is None or bool(store_if(answer)))
                and (own is None or bool(own(answer)))
            )

        def key_of(_run: Any, vary: Any, /, **arguments: Any) -> Any:
            assert key is not None
            own = key(**arguments)
            return None if own is None else [label, vary, own]

        def still_holds(previous: Any, _run: Any, _vary: Any, /, **arguments: Any) -> Any:
            assert validate is not None
            return validate(previous, **arguments)

        if failed is not None or store_if is not None:
            policy = replace(policy, cache_if=may_be_stored)
        if validate is not None:
            policy = replace(policy, validate=still_holds)
        return policy if key is None else replace(policy, key=tags.with_key(key_of, lambda _, given: Named(given)))

    def of_write(self, rule: Write) -> WritePolicy:
        """The policy of a write whose answers have this form."""
        policy: WritePolicy = rule.decorator.policy
        failed, own = self.failed, policy.ok
        if failed is None:
            return policy
        return replace(policy, ok=lambda answer: not failed(answer) and (own is None or bool(own(answer))))


_NO_FORM: Final = _Form(None, None, None, None)


class _Named:
    """What reads and writes of a toolbox have in common."""

    __slots__ = ()

    form: _Form
    rule: Any

    def notice(self, loop: AgentLoopDetectedError) -> Any:
        refused = self.form.refused
        return str(loop) if refused is None else refused(loop)


class _NamedRead(_Named, ReadOperation):
    """A read or a watch of a toolbox."""

    __slots__ = ("form", "rule")

    def audit_share(self, configuration: Configuration) -> float:
        """By its rule alone: an audit calls once more what runs the tool for one call."""
        return super().audit_share(configuration) if self.policy.audit is not None else 0.0

    def is_successful(self, value: Any) -> bool:
        failed, cache_if = self.form.failed, self.rule.decorator.policy.cache_if
        try:
            if failed is not None and failed(value):
                return False
            return cache_if is None or is_empty(value) or bool(cache_if(value))
        except Exception:  # noqa: BLE001 - the user's function; that it raises has been logged where the answer was stored
            return True


class _NamedWrite(_Named, WriteOperation):
    """A write of a toolbox."""

    __slots__ = ("form", "rule")


def _with_asker(operation: ReadOperation | WriteOperation, vary: Any, context: Any) -> Any:
    """What a call varies by, and who asks by its contexts. Raises `UnknownAsker`, for a read, if none can tell."""
    is_several = type(context) is tuple and all(type(one) is Injected for one in context)
    try:
        asker = asker_in(context if is_several else (Injected("context", context),))
    except UnknownAsker as unknown:
        if PLACE.get().scope.tenant is not None:
            return vary
        if operation.is_read:
            raise
        return unknown
    if asker is None:
        return vary
    if type(vary) is Apart:
        return vary._replace(who=[asker, vary.who])
    return asker if vary is None else [asker, vary]


def _runner(name: str, returns: Any, *, is_sync: bool) -> Callable[..., Any]:
    """The function of a tool's operation, which each call gives what runs it."""

    async def awaiting(run: Callable[[], Any], _vary: Any, /, **_arguments: Any) -> Any:
        answer = run()
        return await answer if isawaitable(answer) else answer  # which an error would lose: a write has been made

    def plain(run: Callable[[], Any], _vary: Any, /, **_arguments: Any) -> Any:
        return run()

    function = plain if is_sync else awaiting
    function.__name__ = function.__qualname__ = name
    function.__annotations__ = {} if returns is None else {"return": returns}
    return function


def _taken_of(schema: Any) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
    """What is taken of a schema: the arguments that it names, None if it allows others, and defaults. It comes from a
    server, and may be anything; its other words may differ by user or by day.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return None, {}
    described = [(name, one) for name, one in properties.items() if isinstance(one, Mapping)]
    is_open = schema.get("additionalProperties") or schema.get("patternProperties")
    return None if is_open else tuple(properties), {name: one["default"] for name, one in described if "default" in one}
