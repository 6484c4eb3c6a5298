"""Tags: what an entry depends on and a write touches, and the rules by which a call gets its own.

A *tag* is a path of segments under a root, ``root:segment:...``, with ``%`` and ``:`` inside a segment escaped. Two
tags *meet* if they are equal or one lies below the other: that is the whole rule of invalidation.

A *template*, ``order:{order_id}``, gives a call its tags. Its fields are those of `str.format` without conversions and
formats. Each names a parameter of the tool, or ``result`` for what the tool returns, and may continue with attributes
and keys; ``{result[orders][][id]}`` gives one tag for each item. `tags_from` computes tags by a function instead.
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from itertools import accumulate, product
from typing import Any, Final, Literal, NamedTuple, cast

from agent_cache.errors import ConfigurationError

__all__ = [
    "EVERY_KEY", "MANY_PATHS", "ComputedTags", "Tag", "TagRule", "TagSet", "ancestors", "escape", "every_key_of",
    "meet", "parse_tag", "parse_template", "root_of", "tags_from", "unescape", "within_limit",
]  # fmt: skip

# Tags

Tag = str


def root_of(tag: Tag) -> str:
    """The first segment of a tag."""
    return tag.partition(":")[0]


def ancestors(tag: Tag) -> list[Tag]:
    """All proper prefixes of a tag, the root first."""
    return list(accumulate(tag.split(":")[:-1], "{}:{}".format))


def meet(one: Tag, other: Tag) -> bool:
    """Whether a write to one tag changes what depends on the other."""
    return one == other or one.startswith(other + ":") or other.startswith(one + ":")


def escape(segment: str) -> str:
    """Escape the ``%`` and ``:`` in a segment."""
    return segment.replace("%", "%25").replace(":", "%3A") if "%" in segment or ":" in segment else segment


def unescape(segment: str) -> str:
    """The segment that `escape` was given."""
    return segment.replace("%3A", ":").replace("%25", "%")


_NO_ID: Final = re.compile(r"\*|\{[^\W\d][\w.\[\]]*\}")
"""What a text hardly means as an id: all, and a field whose ``f`` in front of the text is missing."""


def parse_tag(tag: str | Sequence[object]) -> Tag:
    """Parse a tag as users write it: ``"order:7"``, or ``("order", "a:b")`` where an id may contain a colon.

    Raises:
        ConfigurationError: if it is empty, or has an empty segment or None; or, where the text would be taken for an
            id, ``*`` or the field of a template.
    """
    is_path = isinstance(tag, Sequence) and not isinstance(tag, bytes | bytearray | memoryview)
    parts = tag.split(":") if isinstance(tag, str) else tag if is_path else ()
    segments = ["" if one is None else _json_text(one) for one in parts]
    if not segments or not all(segments) or (isinstance(tag, str) and any(map(_NO_ID.fullmatch, segments))):
        raise ConfigurationError(
            f"{tag!r} is not a tag; write 'root' for all that is below it, 'root:id' or ('root', 'id'), without empty "
            "parts, None, wildcards and fields: an f-string puts the id of a variable in place of {...}"
        )
    return ":".join(map(escape, segments))


# Regions: the part of all data that a write names

MANY_PATHS: Final = 2_000
"""How many tags, and entries, a write names one by one. Of more it names the roots, and the tools, as a whole."""

EVERY_KEY: Final = object()
"""Stands for all keys of a tool in the keys of a region."""


def within_limit(tags: tuple[Tag, ...]) -> tuple[Tag, ...]:
    """These tags, or the roots of them all."""
    return tags if len(tags) <= MANY_PATHS else tuple(dict.fromkeys(map(root_of, tags)))


def every_key_of(keys: Iterable[tuple[Any, Hashable]]) -> tuple[tuple[Any, Hashable], ...]:
    """All keys of the tools of these."""
    return tuple({id(tool): (tool, EVERY_KEY) for tool, _ in keys}.values())


# Templates

_FIELD: Final = r"(?!\d*(?:[.\[]|$))([^.\[\]]*)((?:\.[^.\[\]]+|\[[^\]]*\])*)"
_STEP: Final = r"\.([^.\[\]]+)|\[([^\]]*)\]"

_EACH: Final = (False, "")
"""The step ``[]``: each item of what was reached so far."""

Steps = tuple[tuple[bool, str | int], ...]  # each is True and an attribute, or False and a key


class Field(NamedTuple):
    """A field of a template: ``{name}``, ``{name.attribute}``, ``{name[key]}`` or ``{name[]}``, and so on."""

    name: str
    of_result: bool
    steps: Steps

    @property
    def is_of_many(self) -> bool:
        """Whether it stands for each item of something."""
        return _EACH in self.steps

    def value(self, arguments: Mapping[str, Any], result: Any) -> Any:
        """What it stands for; of one that `is_of_many`, a list."""
        return _followed(result if self.of_result else arguments[self.name], self.steps)

    def each(self, arguments: Mapping[str, Any], result: Any) -> Iterable[Any]:
        """What tags name of it: the value and, of a list, a tuple or a set, its items; None where there are none."""
        value = self.value(arguments, result)
        if self.is_of_many:
            return cast("list[Any]", value)
        if type(value) in (str, int) or not isinstance(value, list | tuple | Set) or hasattr(value, "_fields"):
            return [value]
        return [value, *value] if value else [None]


def _followed(found: Any, steps: Steps) -> Any:
    for at, (is_attribute, step) in enumerate(steps):
        if not is_attribute and step == "":
            if isinstance(found, str | bytes | Mapping) or hasattr(found, "__next__"):  # an iterator would be used up
                raise TypeError(f"[] stands for each item of a list, and not for those of a {type(found).__name__}")
            rest = steps[at + 1 :]
            items = [_followed(item, rest) for item in found]
            return [inner for item in items for inner in item] if _EACH in rest else items
        found = getattr(found, str(step)) if is_attribute else found[step]
    return found


Segment = list[str | Field]
"""The fixed texts and fields between two colons of a template."""


def parse_template(template: str, parameters: Sequence[str], tool: str) -> tuple[str, list[Segment]]:
    """Parse a template into its root, not escaped, and the segments below it.

    Only colons of the fixed text separate segments: the value of a field is one segment, or a part of one.

    Raises:
        ConfigurationError: naming the tool, if it is malformed, has no fixed root, or names no parameter.
    """
    malformed = ConfigurationError(
        f"{tool}: resource {template!r} must have a fixed root, as in 'order:{{order_id}}', and fields {{a}}, "
        "{a.attribute}, {a[key]} or {a[]} below it, without empty parts, spaces around one, formats and wildcards: "
        "'order' is all"
    )
    segments: list[Segment] = [[]]
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError:
        raise malformed from None
    for fixed, field, spec, conversion in pieces:
        first, *others = fixed.split(":")
        segments[-1] += [first] if first else []
        segments += [[text] if text else [] for text in others]
        if field is None:
            continue
        read = re.fullmatch(_FIELD, field)
        if spec or conversion or read is None or field != field.strip():
            raise malformed
        name, steps = read.groups()
        if name not in parameters and name != "result":
            raise ConfigurationError(
                f"{tool}: resource {template!r} names {name!r}, which is no argument of its calls. Use one of "
                f"{', '.join(parameters) or 'none'}, 'result' for what the tool returns, or else tags_from()"
            )
        parsed = tuple(
            (True, attribute) if attribute else (False, int(key) if key.isdecimal() else key)
            for attribute, key in re.findall(_STEP, steps)
        )
        segments[-1].append(Field(name, name not in parameters, parsed))
    root, *below = segments
    texts = ["".join(map(str, segment)) for segment in segments]
    has_root = all(isinstance(piece, str) for piece in root)
    if not has_root or ["*"] in segments or any(not text or text != text.strip() for text in texts):
        raise malformed
    return texts[0], below


# Rules


@dataclass(frozen=True, slots=True, eq=False)
class ComputedTags:
    """Tags computed by a function: the result of `tags_from`."""

    root: str
    function: Callable[..., Any]


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
        raise ConfigurationError(f"tags_from: the root must be a str without a colon, such as 'order'; got {root!r}")
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"tags_from({root!r}, ...) needs a plain function, got {function!r}")
    return ComputedTags(root, function)


def _json_text(value: Any) -> str:
    """The text of a value that may have been parsed from JSON: the same whether it was or not."""
    if type(value) in (str, int):
        return str(value)
    if isinstance(value, Enum):
        return _json_text(value.value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list | tuple):
        return str([*map(_json_text, value)])
    if isinstance(value, Mapping | Set):  # equal keys of calls have equal tags, whatever the order is
        parts = value.items() if isinstance(value, Mapping) else value
        return str(sorted(map(_json_text, parts)))
    text = value.isoformat() if isinstance(value, date | time) else str(value)
    if (" at 0x" in text or "\n" in text) and not isinstance(value, str):  # an address, or a table
        kind = type(value).__qualname__
        raise ConfigurationError(f"a tag of a {kind} would be all of its text: name an id in it, as a.id or a[id][]")
    return text


_TEXTS: Final = (str, _json_text)
"""A write may get a member of an enum where a read got its value: where the texts differ, both have both."""


class TagRule(NamedTuple):
    """One compiled resource of a tool."""

    root: str
    when: Literal["static", "early", "late"]  # its tags are known: at decoration, before the call, or after it
    # of arguments and result: the tags, or the bare root if there is no id
    make: Callable[[Mapping[str, Any], Any], tuple[Tag, ...]]
    source: str  # the resource as the user wrote it, for messages
    of_one: tuple[str, Callable[[Any], tuple[Tag, ...]]] | None = None  # of ``root:{parameter}``: this, and its tags
    is_of_result: bool = False  # whether `make` reads the result alone
    arguments: tuple[Field, ...] = ()  # the fields of a template that name arguments
    null_is_all: bool = False  # whether a write touches the whole root if it `names_null`

    def names_null(self, arguments: Mapping[str, Any]) -> bool:
        """Whether one of these arguments is null, or empty."""
        return any(one is None for at in self.arguments if not at.is_of_many for one in at.each(arguments, None))


class TagSet(NamedTuple):
    """All resources of a tool, by when their tags are known."""

    static: tuple[Tag, ...]
    early: tuple[TagRule, ...]
    late: tuple[TagRule, ...]
    roots: tuple[str, ...]

    @classmethod
    def compile(cls, resource: Any, parameters: Sequence[str], tool: str) -> TagSet:
        """Compile a ``resource=`` option.

        Raises:
            ConfigurationError: naming the tool, if a part of it is empty or malformed, or names no parameter.
        """
        resources = [resource] if isinstance(resource, str | ComputedTags) else resource
        if not isinstance(resources, Sequence | Set) or not resources:
            raise ConfigurationError(
                f"{tool}: resource must be a tag, a template or a non-empty sequence of them, got {resource!r}"
            )
        rules = [
            _computed(one, tool) if isinstance(one, ComputedTags) else _templated(one, parameters, tool)
            for one in resources
        ]
        static = tuple(dict.fromkeys(rule.make({}, None)[0] for rule in rules if rule.when == "static"))
        # An entry that depends on a whole root needs no tag below it.
        early, late = (
            tuple(rule for rule in rules if rule.when == when and rule.root not in static) for when in ("early", "late")
        )
        return cls(static, early, late, tuple(dict.fromkeys(rule.root for rule in rules)))

    def parsing(self, parse: Callable[[Any], Any]) -> TagSet:
        """The same for a tool whose templates see `parse` of the result."""

        def parsing(rule: TagRule) -> TagRule:
            return rule._replace(make=lambda arguments, result: rule.make(arguments, parse(result)))

        return self._replace(late=tuple(map(parsing, self.late)))

    def with_key(self, key: Callable[..., Any], bind: Callable[..., Mapping[str, Any]]) -> Callable[..., Any]:
        """A ``key=`` that has the tags by templates, too: no entry outlives a write of one of the calls it answers."""

        def with_tags(*args: Any, **kwargs: Any) -> Any:
            own = key(*args, **kwargs)
            return None if own is None else [own, [rule.make(bind(args, kwargs), None) for rule in rules]]

        rules = [rule for rule in self.early if rule.arguments]
        return with_tags if rules else key

    def taking_null_for_all(self) -> TagSet:
        """The same for a write that touches the whole root if an argument that a template names is null."""
        early, late = ([rule._replace(null_is_all=True) for rule in rules] for rules in (self.early, self.late))
        return self._replace(early=tuple(early), late=tuple(late))


def _computed(computed: ComputedTags, tool: str) -> TagRule:
    root, function = escape(computed.root), computed.function
    source = f"tags_from({computed.root!r}, ...)"
    for when, given in (("late", ("arguments", "result")), ("early", ("arguments",))):
        try:
            inspect.signature(function).bind(*given)
        except TypeError:
            continue
        except ValueError:
            break

        def make(*both: Any, count: int = len(given)) -> tuple[Tag, ...]:
            return _tags_of(root, function(*both[:count]))

        return TagRule(root, cast('Literal["early", "late"]', when), make, source)
    raise ConfigurationError(f"{tool}: the function in {source} must take (arguments) or (arguments, result): a lambda")


def _tags_of(root: str, ids: Any) -> tuple[Tag, ...]:
    if type(ids) is not list and (isinstance(ids, str | bytes) or not isinstance(ids, Iterable)):
        ids = (ids,)
    tags = [f"{root}:{escape(text(one))}" for one in ids if one is not None for text in _TEXTS]
    return tuple(dict.fromkeys(tags)) or (root,)


def _templated(template: Any, parameters: Sequence[str], tool: str) -> TagRule:
    if not isinstance(template, str):
        raise ConfigurationError(f"{tool}: resource {template!r} must be a str or tags_from(...)")
    fixed, below = parse_template(template, parameters, tool)
    root = escape(fixed)
    fields = [piece for segment in below for piece in segment if isinstance(piece, Field)]
    if not fields:
        tag = ":".join([root, *(escape("".join(map(str, segment))) for segment in below)])
        return TagRule(root, "static", lambda _arguments, _result: (tag,), template)
    if sum(field.is_of_many for field in fields) > 1:
        raise ConfigurationError(f"{tool}: resource {template!r} has several fields with []; write a template for each")
    of_arguments = tuple(field for field in fields if not field.of_result)

    def make(arguments: Mapping[str, Any], result: Any) -> tuple[Tag, ...]:
        paths = [[[one] if isinstance(one, str) else one.each(arguments, result) for one in each] for each in below]
        tags: list[Tag] = []
        for path in product(*[[*product(*segment)] for segment in paths]):
            if any(value is None for segment in path for value in segment):
                tags.append(root)
            else:
                tags += [":".join([root, *(escape("".join(map(text, one))) for one in path)]) for text in _TEXTS]
        return tuple(dict.fromkeys(tags)) or (root,)

    def of_one(value: Any) -> tuple[Tag, ...]:
        """Of ``root:{name}``, the most frequent form, without loops."""
        if type(value) is not str and type(value) is not int:
            return make({fields[0].name: value}, value)
        text = str(value)
        return (f"{root}:{escape(text) if '%' in text or ':' in text else text}",)

    when: Literal["early", "late"] = "early" if len(of_arguments) == len(fields) else "late"
    rule = TagRule(root, when, make, template, is_of_result=not of_arguments, arguments=of_arguments)
    if below != [[fields[0]]] or fields[0].steps:
        return rule
    if rule.is_of_result:
        return rule._replace(make=lambda _arguments, result: of_one(result))
    name = fields[0].name
    return rule._replace(make=lambda arguments, _result: of_one(arguments[name]), of_one=(name, of_one))
