"""Paths of the values in calls, what their names and values say, and which pairs of them may be one entity.

A path is what stands in a template (`agent_cache.core.tags`): ``order_id``, ``result[orders][][id]``; and it is
followed as a template follows it. The first pass over a log is a `survey` of its tools and their paths. Names are a
weak sign: words are compared without those that mean an id (``_id``, ``number``) or a role (``from_``, ``new_``), and
only together with the values that were seen there.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final, Literal

from agent_cache.advise.calls import UNKNOWN, LoggedCall, is_failure
from agent_cache.core.tags import TagRule, TagSet

__all__ = [
    "Pair", "ToolFacts", "find_pairs", "kind_by_name", "may_list", "nouns_of", "path_of", "server_of", "survey",
    "values_at",
]  # fmt: skip

_MAX_LEAVES: Final = 2_000
"""How many leaves of one call are looked at."""
_MAX_CHILDREN: Final = 40
"""A mapping with more keys than this is a table, and its keys are ids: no template can name them."""
_MAX_TEXT: Final = 200
"""A longer text is no value of an id."""
_MAX_VALUES: Final = 20_000
_MAX_PAIRS: Final = 40
_MIN_OVERLAP: Final = 0.3
"""The share of their values that two paths have in common if they may stand for the same things."""

_NAME: Final = re.compile(r"[^\W\d][\w-]{0,63}")


@lru_cache(65_536)
def _rule_of(path: str) -> TagRule:
    """The tags of a template with these fields, whose root is of no account here."""
    names = {one.partition("[")[0] for one in path.split(":")}
    tags = TagSet.compile(f"x:{':'.join(f'{{{one}}}' for one in path.split(':'))}", [*names - {"result"}], "a path")
    return (*tags.early, *tags.late)[0]


def values_at(call: LoggedCall, path: str, *, is_write: bool) -> tuple[str, ...] | None:
    """The values at a path, as a template takes them, of several arguments, ``repo:number``, those of all; none for
    the whole root; None if the template fails.
    """
    rule = _rule_of(path)
    if rule.when == "late" and (call.error is not None or call.result is UNKNOWN):
        return None
    try:
        made = rule.make(call.arguments, call.result)
    except KeyError:
        return None if is_write or rule.when == "late" else ()
    except (TypeError, IndexError, AttributeError, ValueError):
        return None
    return () if rule.root in made else made


# Names


_WORDS: Final = {
    name: frozenset(words.split())
    for name, words in tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8")).items()
}
_ID_WORDS, _NATURAL_KEYS, _ROLE_WORDS = _WORDS["ids"], _WORDS["natural_keys"], _WORDS["roles"]
_READ_WORDS, _READ_NOUNS, _WRITE_WORDS = _WORDS["reads"], _WORDS["read_nouns"], _WORDS["writes"]
_VERBS: Final = _READ_WORDS | _WRITE_WORDS


@lru_cache(65_536)
def _words(name: str) -> tuple[str, ...]:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return tuple(_singular(word) for word in re.split(r"[\W_]+", spaced.lower()) if word)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


_NO_ENTITY: Final = frozenset(map(_singular, _ID_WORDS | _ROLE_WORDS)) | _ID_WORDS | _ROLE_WORDS


@lru_cache(65_536)
def server_of(tool: str) -> tuple[str, tuple[str, ...]]:
    """The server in front of a tool's name, empty if there is none, and the words of the rest.

    It is what stands before the last of ``:``, ``/``, ``.`` and ``__``; and then the words before the first verb:
    ``mcp__git__git_log`` is ``log`` of ``mcp git git``, ``canvas_get_user`` is ``get user`` of ``canvas``.
    """
    parts = [part for part in re.split(r"[:./]|__", tool) if _words(part)]
    before = [word for part in parts[:-1] for word in _words(part)]
    words = list(_words(parts[-1])) if parts else []
    at = next((at for at, word in enumerate(words[:4]) if word in _VERBS), 0)
    return " ".join(before + words[:at]), tuple(words[at:])


def nouns_of(tool: str) -> frozenset[str]:
    """The words in the name of a tool that are neither a verb nor an id."""
    words = list(server_of(tool)[1])
    while len(words) > 1 and words[0] in _VERBS:
        words = words[1:]
    return frozenset(words[: words.index("by")] if "by" in words else words) - _NO_ENTITY


def kind_by_name(tool: str, servers: Mapping[str, int]) -> Literal["read", "write"] | None:
    """What the words of a tool's name say: a weak sign, which is to be reported as such."""
    before, words = server_of(tool)
    first, rest = (words[0], words[1:]) if words else ("", ())
    if first in _WRITE_WORDS or (first == "check" and rest[:1] in (("in",), ("out",), ("off",))):
        return "write"
    if first not in _READ_WORDS or (first in ("log", "load", "resolve", "select") and rest):
        return None
    if before and first in _READ_NOUNS and servers.get(before, 0) < 3:
        return None
    own = set(_words(re.split(r"[:./]|__", tool)[-1])) - set(words)
    joined = any(one in ("and", "or") and other in _WRITE_WORDS for one, other in pairwise(words))
    return None if joined or rest[:1] == ("replace",) or own & _WRITE_WORDS else "read"


# Tools and their paths

_DATE: Final = re.compile(r"\d{4}-\d\d(-\d\d)?([T ].*)?|\d{1,2}:\d\d(:\d\d)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}")
_COMMANDS: Final = _WORDS["commands"]
_STATEMENT: Final = re.compile(
    r"(^|;)\s*(select\s[^;]+\sfrom|with\s+\w+\s+as|insert\s+into|update\s+\S+\s+set|delete\s+from|(create|alter|drop)"
    r"\s+table)\s|^\s*mutation\b[^{]*\{|^(post|put|patch|delete)$",
    re.IGNORECASE,
)


@lru_cache(65_536)
def _class_of(text: str) -> str:
    """The class of a text, empty for what is no id."""
    if not text or "\n" in text:
        return ""
    if text.isdecimal():
        return "int" if len(text) <= 5 else "id"
    if _DATE.fullmatch(text):
        return "date"
    return "id" if " " not in text and len(text) >= 3 and re.search(r"[\d_@/#:.-]", text) else "word"


@dataclass(slots=True, eq=False)
class Path:
    """One path of one tool: what its name says, and what it has held.

    Attributes:
        leaf: its last key.
        entity: the words of its entity; those of its tool, if it has none of its own.
        is_id: whether it is named as an id.
        calls: how many have it, and `last` is the position of the last one.
        classes: of its values, and how many there are of each.
    """

    text: str
    leaf: str
    entity: frozenset[str]
    is_argument: bool
    is_id: bool
    is_own: bool
    calls: int = 0
    last: int = -1
    classes: Counter[str] = field(default_factory=Counter)
    values: set[str] = field(default_factory=set)

    def add(self, value: Any, at: int) -> None:
        """Take a value of the call at a position into account."""
        if self.last != at:
            self.calls, self.last = self.calls + 1, at
        if value is UNKNOWN:
            return
        kind = "float" if isinstance(value, float) else ""
        if isinstance(value, str) and len(value) <= _MAX_TEXT:
            kind = _class_of(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            value, kind = str(value), "int"
        self.classes[kind] += 1
        if kind not in ("", "float") and len(self.values) < _MAX_VALUES:
            self.values.add(value)

    @property
    def main_class(self) -> str:
        """The most frequent class of its values."""
        return max(self.classes, key=self.classes.__getitem__, default="")


def path_of(tool: str, text: str) -> Path:
    """A path that has held nothing yet, with what its name says in the context of its tool."""
    keys = [key for key in re.split(r"[\[\]]+", text) if key]
    if keys[-1] == "result":
        is_id = bool(_ID_WORDS.intersection(server_of(tool)[1]))
        return Path(text, "result", nouns_of(tool), is_argument=False, is_id=is_id, is_own=False)
    entity = frozenset[str]()
    for key in reversed(keys):
        if entity or key == "result":
            break
        entity = frozenset(_words(key)) - _NO_ENTITY
    is_id = bool((_ID_WORDS | _NATURAL_KEYS).intersection(_words(keys[-1])))
    return Path(text, keys[-1], entity or nouns_of(tool), keys[0] != "result", is_id, is_own=bool(entity))


@dataclass(slots=True, eq=False)
class ToolFacts:
    """What the calls of one tool have in common.

    Attributes:
        answered, refusals: how many calls have an answer, and how many of these refuse.
        given, hint: what the log says of its kind; what its annotations say.
        parameters: in the order seen, and whether every call had them.
        listed: values of its lists, and keys of its tables.
        is_open: whether its arguments say what it does, as those of a shell, of SQL or of HTTP do.
    """

    name: str
    calls: int = 0
    answered: int = 0
    refusals: int = 0
    given: Counter[str] = field(default_factory=Counter)
    hint: Literal["read", "write"] | None = None
    parameters: dict[str, bool] = field(default_factory=dict)
    is_text: bool = False
    paths: dict[str, Path] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    is_open: bool = False

    def add(self, call: LoggedCall, at: int) -> None:
        """Take the call at a position into account."""
        for name in {**self.parameters, **call.arguments}:
            is_known = name in self.parameters or self.calls == 0
            self.parameters[name] = is_known and self.parameters.get(name, True) and name in call.arguments
        self.is_open |= any(
            name in _COMMANDS
            or (isinstance(value, str) and _STATEMENT.search(value[:1_000]) is not None)
            or (name == "code" and "(" in str(value))  # and not that of an airport
            for name, value in call.arguments.items()
        )
        self.calls += 1
        self.is_text |= call.is_parsed
        self.answered += call.error is None and call.result is not UNKNOWN
        self.refusals += call.error is None and is_failure(call)
        if call.kind is not None:
            self.given[call.kind] += 1
        if (said := call.hints.get("readOnlyHint")) is not None:
            self.hint = "read" if said else "write"
        for text, value in self._leaves(call):
            if (path := self.paths.get(text)) is None:
                path = self.paths[text] = path_of(self.name, text)
            path.add(value, at)

    def _leaves(self, call: LoggedCall) -> Iterator[tuple[str, Any]]:
        """The leaves of a call that a template can name, with their paths, arguments first."""
        stack = [] if call.error is not None or call.result is UNKNOWN else [("result", call.result)]
        stack += [(n, v) for n, v in call.arguments.items() if n != "result" and _NAME.fullmatch(n)][::-1]
        left = _MAX_LEAVES
        while stack and left:
            path, value = stack.pop()
            if isinstance(value, list | tuple):
                stack += [(path + "[]", item) for item in reversed(value[:left])]
                if not value:  # a template makes no tag of it, and does not fail
                    yield path + "[]", UNKNOWN
            elif isinstance(value, Mapping) and len(value) > _MAX_CHILDREN:
                self.listed.update(value if path.partition("[")[0] == "result" else ())
            elif isinstance(value, Mapping):
                stack += [(f"{path}[{key}]", inner) for key, inner in value.items() if _NAME.fullmatch(str(key))]
            else:
                left -= 1
                yield path, value

    @property
    def arguments(self) -> list[Path]:
        """The paths in its arguments."""
        return [path for path in self.paths.values() if path.is_argument]

    @property
    def ids(self) -> set[str]:
        """The arguments that are ids, by their names or by their values."""
        return {path.text for path in self.arguments if path.main_class == "id" or path.is_id}

    def usable(self) -> list[Path]:
        """The paths that nearly every call has, without prose, and without those of a result that repeat an argument:
        templates know it before the call.
        """
        found: list[Path] = []
        for path in self.paths.values():
            least = 0.5 * self.calls if path.is_argument else 0.8 * (self.answered - self.refusals)
            is_prose = path.main_class == "word" and len(path.values) > 1 and any(" " in one for one in path.values)
            is_text = path.text == "result" and (self.refusals or is_prose)  # "not found" is a tag that no write has
            listed, _, inner = path.text.partition("[]")  # a list in a list is not what the read is about
            empty = self.paths.get(listed + "[]") if inner and "[]" not in inner else None
            if path.values and not is_text and path.calls + (empty.calls if empty else 0) >= least:
                found.append(path)
        held = [path for path in found if path.is_argument and "[" not in path.text]
        return [
            path
            for path in found
            if path.is_argument
            or "[]" in path.text
            or not any(path.leaf == one.leaf and path.values <= one.values for one in held)
        ]


def survey(calls: Iterable[LoggedCall]) -> dict[str, ToolFacts]:
    """The first pass over a log: its tools."""
    tools: dict[str, ToolFacts] = {}
    for at, call in enumerate(calls):
        tools.setdefault(call.tool, ToolFacts(call.tool)).add(call, at)
    for tool in tools.values():
        tool.listed.update(*(one.values for one in tool.paths.values() if not one.is_argument and "[]" in one.text))
    return tools


def may_list(read: ToolFacts, write: ToolFacts) -> bool:
    """Whether a read without an id among its arguments lists what a write or its result names.

    Then every such write may bring an item in, or take one out, whatever was in the list before. The lists in a
    result do not count: they are of what it has to do with, and not of what it is about.
    """
    if not read.listed or read.ids:
        return False
    for path in write.paths.values():
        if (path.is_argument or "[]" not in path.text) and path.main_class in ("id", "int", "word"):
            shared = len(read.listed & path.values)
            if shared >= max(3, _MIN_OVERLAP * min(len(read.listed), len(path.values))):
                return True
    return False


# Pairs


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A pair of paths through which a write may meet a read; or of several arguments that have one name in both calls,
    joined by colons. Without paths: the two meet whatever the calls are.

    Attributes:
        is_entity: whether the two look so much like one entity that they are believed without a change.
        is_key: whether both are arguments, and `is_entity`, and had a value in common.
        is_argument: whether the path of the read is in its arguments.
    """

    write: str
    write_path: str
    read: str
    read_path: str
    is_entity: bool = False
    is_key: bool = False
    is_argument: bool = False

    @property
    def is_root(self) -> bool:
        """Whether it has no paths."""
        return not self.write_path

    @property
    def parts(self) -> frozenset[tuple[str, str]]:
        """The pairs of paths."""
        return frozenset(zip(self.write_path.split(":"), self.read_path.split(":"), strict=True))

    @property
    def weight(self) -> float:
        """How much it is to explain changes, beside others: first what a read is about by its arguments."""
        if self.is_root:
            return 0.02
        return 0.1 if not self.is_entity else 0.8 if self.is_argument else 0.6


def find_pairs(tools: Mapping[str, ToolFacts], writers: set[str], readers: set[str]) -> list[Pair]:
    """The pairs of paths worth counting, at most `_MAX_PAIRS` for each pair of tools, and those joined."""
    usable = {tool: tools[tool].usable() for tool in writers | readers}
    found: list[Pair] = []
    for write in sorted(writers):
        for read in sorted(readers):
            made = (_pair(write, own, read, other) for own in usable[write] for other in usable[read])
            pairs = [pair for pair in made if pair is not None]
            pairs.sort(key=lambda p: (-p.weight, len(p.write_path + p.read_path), p.write_path, p.read_path))
            found += pairs[:_MAX_PAIRS] + _together(pairs, tools[write], tools[read])
    return found


def _together(pairs: list[Pair], write: ToolFacts, read: ToolFacts) -> list[Pair]:
    """Of arguments of one name in both calls all together that have values in common: ``repo:number``.

    These are an entity if they are at least half of those of the read: neither the ``floor`` nor the ``zone`` of a lamp
    is named as an id, and none alone tells one lamp from another.
    """
    same = {one.read_path: one for one in pairs if one.write_path == one.read_path}
    names = [name for name in read.parameters if name in same]
    names = [name for name in names if _overlap(write.paths[name], read.paths[name]) >= _MIN_OVERLAP]
    if len(names) < 2:
        return []
    is_entity = any(same[name].is_entity for name in names) or 2 * len(names) >= len(read.parameters)
    path = ":".join(names)
    return [Pair(write.name, path, read.name, path, is_entity, is_key=False, is_argument=True)]


def _overlap(own: Path, other: Path) -> float:
    """The share of their values that two paths have in common, of those of the path with fewer."""
    return len(own.values & other.values) / (min(len(own.values), len(other.values)) or 1)


def _pair(write: str, own: Path, read: str, other: Path) -> Pair | None:
    """A pair of paths that look like one entity, or of arguments that have one name and values in common."""
    shared, both = len(own.values & other.values), own.is_argument and other.is_argument
    is_alike = _is_entity(own, other, shared)
    if not is_alike and not (shared and both and own.leaf == other.leaf):
        return None
    is_entity = is_alike and (own.is_argument or other.is_argument)  # of two results it takes a change to believe it
    return Pair(write, own.text, read, other.text, is_entity, is_entity and both and shared > 0, other.is_argument)


def _is_entity(own: Path, other: Path, shared: int) -> bool:
    """Whether a path of a write and one of a read are of one entity, by their names and values."""
    if not shared and (min(len(own.values), len(other.values)) >= 20 or not (own.is_own and other.is_own)):
        return False  # so many values, and not one in common; or not even a name
    is_wide = shared / (min(len(own.values), len(other.values)) or 1) >= _MIN_OVERLAP
    classes = own.main_class, other.main_class
    are_named = bool(own.entity and other.entity) and (own.entity <= other.entity or other.entity <= own.entity)
    ids, both = own.is_id or other.is_id, own.is_id and other.is_id
    are_arguments = own.is_argument and other.is_argument and own.leaf == other.leaf
    if "id" in classes and set(classes) <= {"id", "int", "word"}:
        return (are_named and ids and (shared > 0 or classes == ("id", "id"))) or (shared >= 3 and is_wide)
    if classes == ("int", "int"):
        are_own = own.is_own and other.is_own
        is_known = (both and not are_own) or (are_named and are_own and ids)  # "id", "number": of whatever
        return (are_named and both) or (is_known and is_wide) or (both and are_arguments)
    return (
        classes == ("word", "word")
        and is_wide
        and ((are_named and ids and shared >= 2) or (are_arguments and shared >= 5))
    )
