"""Tags: what an entry depends on and a write touches, and the rules by which a call gets its own.

A *tag* is a path of segments under a root, ``root:segment:...``, with ``%`` and ``:`` inside a segment escaped, so that
an id that contains a colon is one segment. Two tags *meet* if they are equal or one lies below the other: that is the
whole rule of invalidation. Writing ``order:7`` drops what is tagged ``order:7``, anything below it, and what depends on
all of ``order``; writing ``order`` drops the tree.

A *template*, ``order:{order_id}``, gives a call its tags. Its fields are those of `str.format` without conversions and
formats. Each names a parameter of the tool, or ``result`` for what the tool returns, and may continue with attributes
and keys; ``{result[orders][][id]}`` gives one tag for each item. `tags_from` computes tags by a function instead.
"""

from __future__ import annotations

import inspect
import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from agent_cache.core.options import configures
from agent_cache.errors import ConfigurationError

__all__ = [
    "EVERY_KEY",
    "MANY_PATHS",
    "ComputedTags",
    "Field",
    "Segment",
    "Tag",
    "TagRule",
    "TagSet",
    "ancestors",
    "every_key_of",
    "json_text",
    "meet",
    "parse_tag",
    "parse_tags",
    "parse_template",
    "root_of",
    "tags_from",
    "unescape",
    "within_limit",
]


_STEP = r"\.(?P<attribute>[^.\[\]]+)|\[(?P<key>[^\]]*)\]"

_EVERY: Final = (False, "")
"""The step ``[]``: each item of what was reached so far."""


class Field(NamedTuple):
    """A replacement field of a template: ``{name}``, ``{name.attribute}``, ``{name[key]}`` or ``{name[]}``."""

    name: str
    of_result: bool
    path: tuple[tuple[bool, str | int], ...]

    @property
    def is_bare(self) -> bool:
        return not self.path

    @property
    def is_of_many(self) -> bool:
        """Whether it stands for each item of something."""
        return _EVERY in self.path

    def value(self, arguments: Mapping[str, Any], result: Any) -> Any:
        """What it stands for; of one that `is_of_many`, a list."""
        found = result if self.of_result else arguments[self.name]
        return _followed(found, self.path)


def _followed(found: Any, path: tuple[tuple[bool, str | int], ...]) -> Any:
    for at, (is_attribute, step) in enumerate(path):
        if not is_attribute and step == "":
            if isinstance(found, str | bytes | Mapping):
                raise TypeError(f"[] stands for each item of a list, and not for those of a {type(found).__name__}")
            rest = path[at + 1 :]
            items = [_followed(item, rest) for item in found]
            return [inner for item in items for inner in item] if _EVERY in rest else items
        found = getattr(found, str(step)) if is_attribute else found[step]
    return found


Segment = list[str | Field]
"""The fixed texts and fields between two colons of a template."""


def parse_template(template: str, parameters: Sequence[str], tool: str) -> tuple[str, list[Segment]]:
    """Parse a template into its root, not escaped, and the segments below it.

    Raises:
        ConfigurationError: naming the tool, if it is malformed, has no fixed root, or names no parameter.
    """
    segments = _split(_pieces(template, parameters, tool))
    if not all(segments):
        raise ConfigurationError(f"{tool}: resource {template!r} has an empty segment")
    (root, *others), *below = segments
    if others or not isinstance(root, str):
        raise ConfigurationError(
            f"{tool}: resource {template!r} must start with a fixed root, as in 'order:{{order_id}}'"
        )
    return root, below


def _pieces(template: str, parameters: Sequence[str], tool: str) -> list[str | Field]:
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigurationError(f"{tool}: resource {template!r} is not a template: {error}") from None
    pieces: list[str | Field] = []
    for literal, name_and_path, spec, conversion in parsed:
        if literal and pieces and isinstance(pieces[-1], str):
            pieces[-1] += literal  # string.Formatter yields an escaped brace as a piece of its own
        elif literal:
            pieces.append(literal)
        if name_and_path is None:
            continue
        if spec or conversion:
            raise ConfigurationError(
                f"{tool}: resource {template!r} has a conversion or a format after {{{name_and_path}}}, which is not "
                "supported; leave it out, or compute the tag with tags_from(...)"
            )
        read = _name_and_path(name_and_path)
        if read is None:
            raise ConfigurationError(
                f"{tool}: resource {template!r} has a malformed field {{{name_and_path}}}; write it as {{name}}, "
                "{name.attribute}, {name[key]} or {name[]} for each item"
            )
        name, path = read
        if name not in parameters and name != "result":
            raise ConfigurationError(
                f"{tool}: resource {template!r} names {name!r}, which is not a parameter of the tool. Use one of "
                f"{', '.join(parameters) or 'none'}, or 'result' for the value that the tool returns"
            )
        pieces.append(Field(name, name == "result" and name not in parameters, path))
    if not pieces:
        raise ConfigurationError(
            f"{tool}: resource is empty; name what the tool reads, as in 'order' or 'order:{{order_id}}'"
        )
    return pieces


def _name_and_path(field: str) -> tuple[str, tuple[tuple[bool, str | int], ...]] | None:
    """Parse ``name.attribute[key]`` as `str.format` does: a key of digits is an index. None if it is malformed."""
    name = re.match(r"[^.\[\]]*", field)
    assert name is not None
    steps: list[tuple[bool, str | int]] = []
    at = name.end()
    while at < len(field):
        step = re.compile(_STEP).match(field, at)  # `re` keeps it; few tools need it
        if step is None:
            return None
        attribute, key = step["attribute"], step["key"]
        steps.append((True, attribute) if attribute else (False, int(key) if key.isdecimal() else key))
        at = step.end()
    return name.group(), tuple(steps)


def _split(pieces: Iterable[str | Field]) -> list[Segment]:
    """Split at the colons of the fixed text only: the value of a field is one segment, or a part of one."""
    segments: list[Segment] = [[]]
    for piece in pieces:
        if isinstance(piece, Field):
            segments[-1].append(piece)
            continue
        first, *rest = piece.split(":")
        if first:
            segments[-1].append(first)
        segments.extend([text] if text else [] for text in rest)
    return segments


# Tags

Tag = str

When = Literal["static", "early", "late"]
"""When a tag is known: at decoration, before the call (from its arguments), or after it (from its result)."""


def root_of(tag: Tag) -> str:
    """The first segment of a tag."""
    return tag.partition(":")[0]


def ancestors(tag: Tag) -> list[Tag]:
    """All proper prefixes of a tag, the root first."""
    found = []
    at = tag.find(":")
    while at >= 0:
        found.append(tag[:at])
        at = tag.find(":", at + 1)
    return found


def meet(one: Tag, other: Tag) -> bool:
    """Whether a write to one tag changes what depends on the other."""
    return one == other or one.startswith(other + ":") or other.startswith(one + ":")


def escape(segment: str) -> str:
    """Escape the ``%`` and ``:`` in a segment."""
    return segment.replace("%", "%25").replace(":", "%3A") if "%" in segment or ":" in segment else segment


def unescape(segment: str) -> str:
    """The segment that `escape` was given."""
    return segment.replace("%3A", ":").replace("%25", "%") if "%" in segment else segment


def parse_tag(tag: str | Sequence[object]) -> Tag:
    """Parse a tag as users write it: ``"order:7"``, or ``("order", "a:b")`` where an id may contain a colon.

    Raises:
        ConfigurationError: if it is empty, or has an empty segment.
    """
    if isinstance(tag, str):
        segments = tag.split(":")
    elif isinstance(tag, Sequence) and not isinstance(tag, bytes | bytearray | memoryview):
        segments = [str(segment) for segment in tag]
    else:
        raise ConfigurationError(f"{tag!r} is not a tag; write 'root', 'root:id' or ('root', 'id')")
    if not segments or not all(segments):
        raise ConfigurationError(f"{tag!r} is not a tag; write 'root' or 'root:id' without empty segments")
    return ":".join(map(escape, segments))


def parse_tags(tags: Sequence[str | Sequence[object]]) -> tuple[Tag, ...]:
    """Parse tags as `parse_tag` does, each once."""
    # 20,000 of them take 2 ms instead of 15 ms, if none of them has to be escaped, nor has an empty segment.
    if {*map(type, tags)} == {str}:
        together = "\0".join(tags)  # type: ignore[arg-type]  # they are texts
        between = ":\0:"
        if "%" not in together and "::" not in f":{together.replace(chr(0), between)}:":
            return tuple(dict.fromkeys(tags))  # type: ignore[arg-type]  # as above
    return tuple(dict.fromkeys(map(parse_tag, tags)))


# Regions: the part of all data that a write names

MANY_PATHS: Final = 2_000
"""How many tags a write names one by one, and how many entries by their keys, at 2 us each. If there are more, it names
the roots with most of them, and the tools, as a whole: that is always safe, and bounds how long a write takes."""

EVERY_KEY: Final = object()
"""Stands for all keys of a tool in the keys of a region."""


def within_limit(paths: tuple[Tag, ...]) -> tuple[Tag, ...]:
    """These tags, or the roots of many of them."""
    numbers = Counter(map(root_of, paths))
    whole, left = dict[Tag, None](), len(paths)
    for root, number in numbers.most_common():
        if left <= MANY_PATHS or number == 1:
            break
        whole[root] = None
        left -= number - 1
    return (*whole, *(path for path in paths if root_of(path) not in whole)) if left > len(whole) else tuple(whole)


def every_key_of(keys: Iterable[tuple[Any, Hashable]]) -> tuple[tuple[Any, Hashable], ...]:
    """All keys of the tools of these."""
    return tuple({id(tool): (tool, EVERY_KEY) for tool, _ in keys}.values())


# Rules


@dataclass(frozen=True, slots=True, eq=False)
class ComputedTags:
    """Tags computed by a function: the result of `tags_from`."""

    root: str
    function: Callable[..., Any]


@configures
def tags_from(
    root: str, function: Callable[[Mapping[str, Any]], object] | Callable[[Mapping[str, Any], Any], object]
) -> ComputedTags:
    """Compute the ids that a read depends on, or that a write touches, where a template cannot express them.

    Can be used wherever a template can. The root is static, so that an invalidation finds the tool.

    Args:
        root: first segment of the tags, for example ``"order"``.
        function: ``function(arguments)`` is evaluated before the call, ``function(arguments, result)`` after it.
            `arguments` maps parameter names to values. It returns one id, an iterable of ids, or None; no id means
            that a read depends on the whole root, and that a write touched nothing below it.

    Raises:
        ConfigurationError: if the root is empty or the function does not take one or two positional arguments.

    Example: ``tags_from("order", lambda arguments, result: [order.id for order in result.orders])``
    """
    if not isinstance(root, str) or not root or ":" in root:
        raise ConfigurationError(
            f"tags_from needs the root of the tags as its first argument, a str without a colon such as "
            f"'order'; got {root!r}"
        )
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"tags_from({root!r}, ...) needs a plain function, got {function!r}")
    return ComputedTags(root, function)


Text = Callable[[Any], str]


def json_text(value: Any) -> str:
    """The text of a value that may have been parsed from JSON: the same whether it was or not."""
    if isinstance(value, Enum):
        return json_text(value.value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, date | time) else str(value)


class TagRule(NamedTuple):
    """One compiled resource of a tool.

    Attributes:
        root: the root of its tags.
        when: when its tags are known.
        make: ``make(arguments, result)`` returns the tags, or the bare root if there is no id. It raises what the
            user's template or function raises.
        source: the resource as the user wrote it, for messages.
        of_one: for ``root:{parameter}``: the parameter, and a function from its value to the tags, which needs no
            mapping of all arguments.
        is_of_result: whether `make` reads the result alone, so that the arguments need not be mapped.
        arguments: the fields of a template that name arguments.
        null_is_all: whether a write with a null for one of these touches the whole root.
    """

    root: str
    when: When
    make: Callable[[Mapping[str, Any], Any], tuple[Tag, ...]]
    source: str
    of_one: tuple[str, Callable[[Any], tuple[Tag, ...]]] | None = None
    is_of_result: bool = False
    arguments: tuple[Field, ...] = ()
    null_is_all: bool = False

    def names_null(self, arguments: Mapping[str, Any]) -> bool:
        """Whether one of these arguments is null."""
        return any(field.value(arguments, None) is None for field in self.arguments if not field.is_of_many)


class TagSet(NamedTuple):
    """All resources of a tool, by when their tags are known."""

    static: tuple[Tag, ...]
    early: tuple[TagRule, ...]
    late: tuple[TagRule, ...]
    roots: tuple[str, ...]

    @classmethod
    def compile(cls, resource: Any, parameters: Sequence[str], tool: str, text: Text = str) -> TagSet:
        """Compile a ``resource=`` option.

        Args:
            text: what a value is in a tag.

        Raises:
            ConfigurationError: naming the tool and the fix, if a part of it is empty or malformed, or names an unknown
                parameter.
        """
        resources = [resource] if isinstance(resource, str | ComputedTags) else _as_sequence(resource, tool)
        rules = [_compile(one, parameters, tool, text) for one in resources]
        static = tuple(dict.fromkeys(rule.make({}, None)[0] for rule in rules if rule.when == "static"))
        roots = tuple(dict.fromkeys(rule.root for rule in rules))
        # An entry that depends on a whole root needs no tag below it.
        dynamic = [rule for rule in rules if rule.when != "static" and rule.root not in static]
        return cls(
            static=static,
            early=tuple(rule for rule in dynamic if rule.when == "early"),
            late=tuple(rule for rule in dynamic if rule.when == "late"),
            roots=roots,
        )

    def parsing(self, parse: Callable[[Any], Any]) -> TagSet:
        """The same for a tool whose templates see `parse` of the result."""

        def of_parsed(rule: TagRule) -> Callable[[Mapping[str, Any], Any], tuple[Tag, ...]]:
            return lambda arguments, result: rule.make(arguments, parse(result))

        return self._replace(late=tuple(rule._replace(make=of_parsed(rule)) for rule in self.late))

    def beside(self, other: TagSet) -> TagSet:
        """The same with the tags that the templates of another set make, too, of the same resource."""
        early, late = (
            tuple(map(_of_both, mine, theirs)) for mine, theirs in ((self.early, other.early), (self.late, other.late))
        )
        return self._replace(early=early, late=late)

    def taking_null_for_all(self) -> TagSet:
        """The same for a write that touches the whole root if an argument that a template names is null."""
        early, late = ([rule._replace(null_is_all=True) for rule in rules] for rules in (self.early, self.late))
        return self._replace(early=tuple(early), late=tuple(late))


def _of_both(rule: TagRule, other: TagRule) -> TagRule:
    """A rule with the tags of two, of one template; that of a function stays as it is."""
    if not rule.arguments and not rule.is_of_result:
        return rule

    def both(make: Callable[..., tuple[Tag, ...]], make_others: Callable[..., tuple[Tag, ...]]) -> Callable[..., Any]:
        def made(*given: Any) -> tuple[Tag, ...]:
            tags, more = make(*given), make_others(*given)
            return tags if tags == more else tuple(dict.fromkeys((*tags, *more)))

        return made

    of_one = None
    if rule.of_one is not None and other.of_one is not None:
        of_one = rule.of_one[0], both(rule.of_one[1], other.of_one[1])
    return rule._replace(make=both(rule.make, other.make), of_one=of_one)


def _as_sequence(resource: Any, tool: str) -> list[Any]:
    if not isinstance(resource, Sequence | frozenset | set) or not resource:
        raise ConfigurationError(
            f"{tool}: resource must be a tag, a template or a non-empty sequence of them, got {resource!r}"
        )
    return list(resource)


def _compile(resource: Any, parameters: Sequence[str], tool: str, text: Text) -> TagRule:
    if isinstance(resource, ComputedTags):
        return _compile_computed(resource, tool)
    if not isinstance(resource, str):
        raise ConfigurationError(
            f"{tool}: resource {resource!r} must be a str or tags_from(...), not {type(resource).__name__}"
        )
    return _compile_template(resource, parameters, tool, text)


def _compile_computed(computed: ComputedTags, tool: str) -> TagRule:
    root, function = escape(computed.root), computed.function
    source = f"tags_from({computed.root!r}, ...)"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{tool}: the function in {source} has no signature that Python can inspect; wrap it in a lambda"
        ) from None
    when: When
    if _binds(signature, 2):
        when = "late"
    elif _binds(signature, 1):
        when = "early"
    else:
        raise ConfigurationError(f"{tool}: the function in {source} must take (arguments) or (arguments, result)")

    def make(arguments: Mapping[str, Any], result: Any) -> tuple[Tag, ...]:
        ids = function(arguments, result) if when == "late" else function(arguments)
        return _tags_of(root, ids)

    return TagRule(root, when, make, source)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _tags_of(root: str, ids: Any) -> tuple[Tag, ...]:
    if ids is None:
        return (root,)
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        ids = (ids,)
    segments = [one if type(one) is str else str(one) for one in ids if one is not None]
    together = "".join(segments)
    if "%" in together or ":" in together:
        segments = list(map(escape, segments))
    prefix = root + ":"
    return tuple(dict.fromkeys([prefix + segment for segment in segments])) or (root,)


def _compile_template(template: str, parameters: Sequence[str], tool: str, text: Text) -> TagRule:
    fixed, below = parse_template(template, parameters, tool)
    root = escape(fixed)
    fields = [piece for segment in below for piece in segment if isinstance(piece, Field)]
    if not fields:
        tag = ":".join((root, *(escape("".join(map(str, segment))) for segment in below)))
        return TagRule(root, "static", lambda _arguments, _result: (tag,), template)
    late = any(field.of_result for field in fields)
    many = [field for field in fields if field.is_of_many]
    if len(many) > 1:
        raise ConfigurationError(
            f"{tool}: resource {template!r} has several fields with []; write one template for each, or compute the "
            "tags with tags_from(...)"
        )
    if len(below) == 1 and len(below[0]) == 1 and fields[0].is_bare:
        return _compile_bare(root, fields[0], template, text)

    def made_of(arguments: Mapping[str, Any], result: Any, item: Any) -> Tag:
        made = [root]
        for segment in below:
            together = ""
            for piece in segment:
                if isinstance(piece, str):
                    together += piece
                    continue
                value = item if piece.is_of_many else piece.value(arguments, result)
                if value is None:
                    return root
                together += value if type(value) is str else text(value)
            made.append(escape(together))
        return ":".join(made)

    def make(arguments: Mapping[str, Any], result: Any) -> tuple[Tag, ...]:
        if not many:
            return (made_of(arguments, result, None),)
        items = many[0].value(arguments, result)
        return tuple(dict.fromkeys([made_of(arguments, result, item) for item in items])) or (root,)

    of_arguments = tuple(field for field in fields if not field.of_result)
    return TagRule(
        root, "late" if late else "early", make, template, is_of_result=not of_arguments, arguments=of_arguments
    )


def _compile_bare(root: str, field: Field, template: str, text: Text) -> TagRule:
    """Compile ``root:{name}``, the most frequent form, without loops (0.1 us a miss instead of 1 us)."""
    name, prefix = field.name, root + ":"

    def tags_of(value: Any) -> tuple[Tag, ...]:
        if value is None:
            return (root,)
        segment = value if type(value) is str else text(value)
        if "%" in segment or ":" in segment:
            segment = escape(segment)
        return (prefix + segment,)

    if field.of_result:
        return TagRule(root, "late", lambda _arguments, result: tags_of(result), template, is_of_result=True)
    return TagRule(
        root,
        "early",
        lambda arguments, _result: tags_of(arguments[name]),
        template,
        (name, tags_of),
        arguments=(field,),
    )
