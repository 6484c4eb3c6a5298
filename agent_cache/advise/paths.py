"""Paths of the values in calls, what their names and values say, and which pairs of them may be one entity.

A path is what stands in a template (`agent_cache.core.tags`): ``order_id``, ``result[orders][][id]``; and it is
followed as a template follows it. The first pass over a log takes a `Survey` of them. Names are a weak sign: words are
compared without those that mean an id (``_id``, ``number``) or a role (``from_``, ``new_``), and only together with the
values that were seen there.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, Literal

from agent_cache.advise.calls import UNKNOWN, LoggedCall

__all__ = [
    "Candidate",
    "Survey",
    "ToolFacts",
    "Values",
    "answer_digest",
    "compile_path",
    "find_candidates",
    "is_argument",
    "is_failure",
    "is_transient",
    "kind_by_name",
    "name_of",
    "nouns_of",
    "spellings",
    "values_at",
]

_MAX_LEAVES: Final = 2_000
"""How many leaves of one call are looked at."""
_MAX_CHILDREN: Final = 40
"""A mapping with more keys than this is a table, and its keys are ids: no template can name them."""
_MAX_TEXT: Final = 200
"""A longer text is no value of an id."""
_SKETCH: Final = 1_024
_MAX_JUDGED: Final = 65_536
_MAX_CANDIDATES: Final = 40

# Calls

_ERROR_TEXT = re.compile(r"\s*(error|exception|traceback|failed|failure|fatal|denied|invalid)\b", re.IGNORECASE)


def is_failure(call: LoggedCall) -> bool:
    """Whether a write failed: it raised, or its answer says so. What it has done is then not known."""
    if call.error is not None:
        return True
    result = call.result
    if isinstance(result, str):
        return _ERROR_TEXT.match(result) is not None
    if isinstance(result, Mapping):
        if any(result.get(name) is False for name in ("success", "ok", "succeeded")) or result.get("isError") is True:
            return True
        return bool(result.get("error")) or result.get("status") in ("error", "failed", "failure")
    return False


_TRANSIENT = re.compile(
    r"time(d )?.?out|connect|unavailable|rate.?limit|too many requests|overload|temporar|broken pipe|reset by peer"
    r"|\b(408|425|429|500|502|503|504)\b|cancel",
    re.IGNORECASE,
)


def is_transient(call: LoggedCall) -> bool:
    """Whether an error says nothing of what the tool reads: another call at the same time might have succeeded."""
    return call.error is not None and _TRANSIENT.search(call.error) is not None


def answer_digest(result: Any) -> bytes:
    """A digest of an answer: equal for equal ones, whatever the order of keys."""
    text = json.dumps(result, sort_keys=True, ensure_ascii=False, default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# Paths

_NAME: Final = re.compile(r"[^\W\d][\w -]{0,63}")
_PARAMETER: Final = re.compile(r"[^\W\d][\w-]{0,63}")


class _Place:
    """A place in the calls of one tool, and the places below it.

    Attributes:
        path: of this place.
        keys: the places below it by key, None for what no template can name.
        profile: what was seen here, if anything was.
    """

    __slots__ = ("_items", "keys", "path", "profile")

    def __init__(self, path: str) -> None:
        self.path = path
        self.keys: dict[str, _Place | None] = {}
        self.profile: _Profile | None = None
        self._items: _Place | None = None

    @property
    def is_table(self) -> bool:
        """Whether it has held so many keys that they are ids."""
        return len(self.keys) > _MAX_CHILDREN

    def of_items(self) -> _Place:
        """The place of the items of a list."""
        if self._items is None:
            self._items = _Place(self.path + "[]")
        return self._items

    def of_values(self, mapping: Mapping[Any, Any]) -> list[tuple[_Place, Any]]:
        """The values of a mapping that a template can name, with their places."""
        if self.is_table:
            return []
        keys, found = self.keys, []
        for key, value in mapping.items():
            if key in keys:
                place = keys[key]
            elif isinstance(key, str):
                may_be_named = _NAME.fullmatch(key) and not self.is_table
                place = keys[key] = _Place(f"{self.path}[{key}]") if may_be_named else None
            else:
                continue
            if place is not None:
                found.append((place, value))
        return found

    def below(self) -> list[_Place | None]:
        """The next places below it, none of a table: no template reaches its values."""
        return [] if self.is_table else [*self.keys.values(), self._items]


class _Places:
    """The places in the calls of one tool."""

    def __init__(self) -> None:
        self._arguments: dict[str, _Place | None] = {}
        self._result = _Place("result")

    def leaves(self, call: LoggedCall) -> Iterator[tuple[_Place, Any]]:
        """The leaves of a call with their places, arguments first."""
        stack = [] if call.error is not None or call.result is UNKNOWN else [(self._result, call.result)]
        stack += reversed(self._given(call.arguments))
        left = _MAX_LEAVES
        while stack and left:
            place, value = stack.pop()
            if isinstance(value, str):  # most are: it is no mapping, and is not asked whether it is
                left -= 1
                yield place, value
            elif isinstance(value, list | tuple):
                items = place.of_items()
                stack += [(items, item) for item in reversed(value[:left])]
            elif isinstance(value, Mapping):
                stack += reversed(place.of_values(value))
            else:
                left -= 1
                yield place, value

    def _given(self, arguments: Mapping[str, Any]) -> list[tuple[_Place, Any]]:
        known, found = self._arguments, []
        for name, value in arguments.items():
            if name not in known:
                may_be_named = isinstance(name, str) and name != "result" and _PARAMETER.fullmatch(name)
                known[name] = _Place(name) if may_be_named else None
            place = known[name]
            if place is not None:
                found.append((place, value))
        return found

    def all(self) -> Iterator[_Place]:
        """All places, but those below a table."""
        stack: list[_Place | None] = [*self._arguments.values(), self._result]
        while stack:
            place = stack.pop()
            if place is not None:
                yield place
                stack += place.below()


_STEP: Final = re.compile(r"\[([^\]]*)\]")


def compile_path(path: str) -> tuple[str, tuple[str, ...]]:
    """The name that a path begins with, and its steps: keys, and an empty text for each item."""
    name, bracket, rest = path.partition("[")
    return name, tuple(_STEP.findall(bracket + rest))


@dataclass(frozen=True, slots=True)
class Values:
    """What a template makes of one call: texts; or the whole root; or nothing, since it fails."""

    texts: tuple[str, ...] = ()
    is_root: bool = False
    is_error: bool = False


_ROOT: Final = Values(is_root=True)
_FAILED: Final = Values(is_error=True)


def values_at(call: LoggedCall, compiled: tuple[str, tuple[str, ...]], *, is_write: bool) -> Values:
    """The values at a path, as a template takes them: `agent_cache.core.tags.Field`."""
    name, steps = compiled
    if name == "result":
        if call.error is not None or call.result is UNKNOWN:
            return _FAILED
        found = call.result
    else:
        if name not in call.arguments:
            return _FAILED if is_write else _ROOT
        found = call.arguments[name]
    level = [found]
    is_many = False
    for step in steps:
        if step == "":
            is_many = True
            below: list[Any] = []
            for one in level:
                if not isinstance(one, list | tuple):
                    return _FAILED
                below.extend(one)
            level = below
        else:
            try:
                level = [one[step] for one in level]
            except (KeyError, TypeError, IndexError):
                return _FAILED
    if is_many and not level:
        return _ROOT
    if any(one is None for one in level):
        return _ROOT
    return Values(tuple(dict.fromkeys([one if type(one) is str else str(one) for one in level])))


# Names

_ID_WORDS: Final = frozenset({
    "id", "ids", "uuid", "guid", "key", "keys", "number", "numbers", "num", "nums", "no", "nr", "code", "codes",
    "ref", "refs", "reference", "pk", "uid", "oid",
})  # fmt: skip
_NATURAL_KEYS: Final = frozenset({
    "slug", "sku", "handle", "path", "email", "url", "uri", "login", "iban", "isbn", "pnr", "username", "branch",
    "sha", "commit", "filename", "account", "ticket",
})  # fmt: skip
"""Words that name an id and an entity at once."""
_ROLE_WORDS: Final = frozenset({
    "new", "old", "from", "to", "source", "target", "src", "dst", "dest", "destination", "the", "my", "a", "an",
    "of", "for", "by", "first", "last", "original", "current", "other", "parent", "child", "related", "main",
    "default", "in", "into", "on", "with", "all", "list", "data", "details", "detail", "info", "result", "results",
    "value", "values",
})  # fmt: skip
_READ_WORDS: Final = frozenset({
    "get", "list", "find", "search", "read", "fetch", "show", "lookup", "look", "query", "describe", "view",
    "check", "count", "calculate", "compute", "is", "has", "exists", "retrieve", "load", "stat", "cat", "ls",
    "head", "tail", "grep", "browse", "status", "info", "summarize", "peek", "whoami", "diff", "log", "history",
})  # fmt: skip
_WRITE_WORDS: Final = frozenset({
    "add", "create", "update", "delete", "remove", "set", "put", "post", "patch", "write", "insert", "upsert",
    "send", "cancel", "modify", "edit", "move", "rename", "copy", "book", "reserve", "return", "exchange",
    "transfer", "deposit", "withdraw", "pay", "refund", "close", "open", "reopen", "assign", "unassign", "archive",
    "restore", "enable", "disable", "append", "push", "commit", "merge", "checkout", "reset", "apply", "submit",
    "approve", "reject", "mark", "make", "save", "store", "register", "rm", "mkdir", "touch", "mv", "cp", "drop",
    "truncate", "replace", "increment", "adjust", "change", "schedule", "reschedule", "invite", "accept", "decline",
    "comment", "label", "tag", "untag", "revert", "rebase", "upload", "publish", "subscribe", "unsubscribe",
    "grant", "revoke", "ship", "restock", "reply", "forward", "draft", "toggle", "start", "stop", "launch", "kill",
    "clear", "purge", "link", "unlink", "share", "lock", "unlock", "escalate", "checkin",
})  # fmt: skip
_WRITES_OF_SOMETHING: Final = frozenset({"log", "load"})
"""Words that read alone, and write before a noun: ``log_workout``."""


def _words(name: str) -> list[str]:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [_singular(word) for word in re.split(r"[\W_]+", spaced.lower()) if word]


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


_SINGULAR_IDS: Final = frozenset(map(_singular, _ID_WORDS)) | _ID_WORDS
_SINGULAR_ROLES: Final = frozenset(map(_singular, _ROLE_WORDS)) | _ROLE_WORDS


def plain_name(tool: str) -> str:
    """The last part of a tool's full name."""
    return re.split(r"[:./]", tool)[-1] or tool


def nouns_of(tool: str) -> frozenset[str]:
    """The words in the name of a tool that are neither a verb nor an id."""
    words = _words(plain_name(tool))
    while words and (words[0] in _READ_WORDS or words[0] in _WRITE_WORDS) and len(words) > 1:
        words = words[1:]
    before = words[: words.index("by")] if "by" in words and words.index("by") else words
    return _entity_of(before)


def _entity_of(words: list[str]) -> frozenset[str]:
    """The words that name an entity, and neither an id nor a role."""
    return frozenset(words) - _SINGULAR_IDS - _SINGULAR_ROLES


def kind_by_name(tool: str) -> Literal["read", "write"] | None:
    """What the words of a tool's name say, the first above all: a weak sign, which is to be reported as such."""
    words = _words(plain_name(tool))
    if not words:
        return None
    if words[0] in _WRITE_WORDS or (words[0] == "check" and words[1:2] in (["in"], ["out"], ["off"])):
        return "write"
    if words[0] not in _READ_WORDS or (words[0] in _WRITES_OF_SOMETHING and len(words) > 1):
        return None
    joined = any(before in ("and", "or") and after in _WRITE_WORDS for before, after in pairwise(words))
    return None if joined or words[1:2] == ["replace"] else "read"


@dataclass(frozen=True, slots=True)
class _PathName:
    """What the name of a path says: its last key, the words of its entity, whether it is named as an id, and whether
    these words are its own, and not those of its tool.
    """

    leaf: str
    entity: frozenset[str]
    is_id: bool
    is_own: bool


def name_of(tool: str, path: str) -> _PathName:
    """What the name of a path says, in the context of its tool."""
    name, steps = compile_path(path)
    keys = [name, *(step for step in steps if step)]
    leaf = keys[-1]
    words = _words(leaf)
    if leaf == "result":
        return _PathName(
            leaf, nouns_of(tool), any(word in _SINGULAR_IDS for word in _words(plain_name(tool))), is_own=False
        )
    entity = _entity_of(words)
    is_id = any(word in _SINGULAR_IDS or word in _NATURAL_KEYS for word in words)
    if not entity:
        for above in reversed(keys[:-1]):
            if above == "result":
                break
            entity = _entity_of(_words(above))
            if entity:
                break
    return _PathName(leaf, entity or nouns_of(tool), is_id, bool(entity))


def _is_one_entity(one: _PathName, other: _PathName) -> bool:
    a, b = one.entity, other.entity
    return bool(a and b) and (a <= b or b <= a)


# The first pass: tools, paths, and their values

_UNSAMPLED: Final = frozenset({"", "float"})
"""Classes of values that are no ids."""
_DATE: Final = re.compile(r"\d{4}-\d\d(-\d\d)?([T ].*)?|\d{1,2}:\d\d(:\d\d)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}")


def _class_of(value: Any) -> str:
    if isinstance(value, float):
        return "float"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int"
    return ""


def _judge_text(text: str) -> tuple[str, int]:
    """The class of a text, and a hash of it."""
    hashed = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
    return _class_of_text(text), int.from_bytes(hashed.digest())


def _class_of_text(value: str) -> str:
    if not value or "\n" in value:
        return ""
    if value.isdecimal():
        return "int" if len(value) <= 5 else "id"
    if _DATE.fullmatch(value):
        return "date"
    if " " not in value and len(value) >= 3 and re.search(r"[\d_@/#:.-]", value):
        return "id"
    return "word"


_NUMBER: Final = re.compile(r"0*([0-9]+)(\.0+)?")


def spellings(texts: Iterable[str]) -> frozenset[str]:
    """What texts name where a tool minds neither upper and lower case, nor spaces around a text, nor a ``#`` before it,
    nor the form of a whole number.
    """
    return frozenset(map(_plain, texts))


def _plain(text: str) -> str:
    text = text.casefold().strip().lstrip("#")
    number = _NUMBER.fullmatch(text)
    return number[1] if number else text


class _Profile:
    """What one path of one tool has held: in how many calls, which classes of values, and a sample of them.

    The sample is the values with the smallest hashes ("bottom-k sketch"), so that samples of two paths hold the same
    values if the paths do.
    """

    __slots__ = ("_spellings", "calls", "classes", "largest", "last", "sample")

    def __init__(self) -> None:
        self._spellings: frozenset[str] | None = None
        self.calls = 0
        self.last = -1
        self.classes: Counter[str] = Counter()
        self.sample: dict[int, str] = {}
        self.largest = 0

    def add(self, text: str, kind: str, hashed: int, at: int) -> None:
        """Take a value of the call at a position into account: its text, its class, and a hash of its text."""
        if self.last != at:
            self.calls, self.last = self.calls + 1, at
        self.classes[kind] += 1
        if kind in _UNSAMPLED or hashed in self.sample:
            return
        if len(self.sample) < _SKETCH:
            self.sample[hashed] = text
            self.largest = max(self.largest, hashed)
        elif hashed < self.largest:
            del self.sample[self.largest]
            self.sample[hashed] = text
            self.largest = max(self.sample)

    @property
    def spellings(self) -> frozenset[str]:
        """The `spellings` of the sample, once the survey is complete."""
        if self._spellings is None:
            self._spellings = spellings(self.sample.values())
        return self._spellings

    @property
    def main_class(self) -> str:
        return self.classes.most_common(1)[0][0] if self.classes else ""


class Survey:
    """The first pass over a log."""

    def __init__(self) -> None:
        self.tools: dict[str, ToolFacts] = {}
        self.paths: dict[tuple[str, str], _Profile] = {}
        self._places: dict[str, _Places] = defaultdict(_Places)
        self._judged = lru_cache(_MAX_JUDGED)(_judge_text)
        self.count = 0

    def add(self, call: LoggedCall) -> None:
        """Take a call into account."""
        self.count += 1
        facts = self.tools.get(call.tool)
        if facts is None:
            facts = self.tools[call.tool] = ToolFacts()
        facts.add(call)
        for place, value in self._places[call.tool].leaves(call):
            profile = place.profile
            if profile is None:
                profile = place.profile = self.paths[call.tool, place.path] = _Profile()
            if not isinstance(value, str):
                kind = _class_of(value)
                text = str(value) if kind == "int" else ""
                profile.add(text, kind, self._judged(text)[1], self.count)
            elif len(value) > _MAX_TEXT:
                profile.add("", "", 0, self.count)
            else:
                profile.add(value, *self._judged(value), self.count)

    def takes_id(self, tool: str) -> bool:
        """Whether an argument of a tool is an id, by its name or by its values."""
        return any(
            profile.main_class == "id" or name_of(tool, path).is_id
            for (of, path), profile in self.paths.items()
            if of == tool and is_argument(path)
        )

    def count_arguments(self, tool: str) -> int:
        """How many paths there are in the arguments of a tool."""
        return sum(of == tool and is_argument(path) for of, path in self.paths)

    def may_list(self, read: str, write: str) -> bool:
        """Whether a read without an id among its arguments lists what a write or its result names.

        Then every such write may bring an item in, or take one out, whatever was in the list before. The lists in a
        result do not count: they are of what it has to do with, and not of what it is about.
        """
        if self.takes_id(read):
            return False
        listed: set[str] = set()
        for (tool, path), profile in self.paths.items():
            if tool == read and not is_argument(path) and "[]" in path:
                listed.update(profile.sample.values())
        for place in self._places[read].all():
            if place.is_table and not is_argument(place.path):
                listed |= place.keys.keys()
        if not listed:
            return False
        for (tool, path), profile in self.paths.items():
            is_named = tool == write and (is_argument(path) or "[]" not in path)
            if is_named and profile.main_class in ("id", "int", "word"):
                shared = listed & set(profile.sample.values())
                if len(shared) >= 3 and len(shared) >= 0.3 * min(len(listed), len(profile.sample)):
                    return True
        return False

    def finish(self) -> None:
        """Forget the paths through tables: no template reaches their values."""
        reached = {(tool, place.path) for tool, places in self._places.items() for place in places.all()}
        self.paths = {path: profile for path, profile in self.paths.items() if path in reached}


class ToolFacts:
    """What the calls of one tool have in common."""

    __slots__ = ("calls", "errors", "given", "hint", "parameters", "refusals", "seen", "text")

    def __init__(self) -> None:
        self.calls = self.errors = self.seen = self.refusals = 0
        self.given: Counter[str] = Counter()
        self.hint: Literal["read", "write"] | None = None
        self.parameters: dict[str, bool] = {}
        self.text = False

    def add(self, call: LoggedCall) -> None:
        """Take a call into account."""
        for name in call.arguments:
            if name not in self.parameters:
                self.parameters[name] = self.calls == 0
        for name in self.parameters:
            if name not in call.arguments:
                self.parameters[name] = False
        self.calls += 1
        self.text = self.text or call.is_parsed
        if call.error is not None:
            self.errors += 1
        elif call.result is not UNKNOWN:
            self.seen += 1
            if is_failure(call):
                self.refusals += 1
        if call.kind is not None:
            self.given[call.kind] += 1
        said = call.hints.get("readOnlyHint")
        if said is not None:
            self.hint = "read" if said else "write"


# Candidates


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair of paths through which a write may meet a read.

    Attributes:
        weight: how much the two look like one entity, in 0 to 1.
        is_entity: whether they do so enough to be believed without a change.
        is_key: whether both are arguments, and `is_entity`, and had a value in common.
        overlap: the share of their values that they have in common, of those of the path with fewer.
        is_ambiguous: whether the log has one of their values in several spellings. A tag compares text: it would miss
            the answers to the other ones.
    """

    write: str
    write_path: str
    read: str
    read_path: str
    weight: float
    is_entity: bool
    is_key: bool
    overlap: float
    is_ambiguous: bool


def is_argument(path: str) -> bool:
    """Whether a path begins in the arguments."""
    return path != "result" and not path.startswith("result[")


def find_candidates(survey: Survey, writers: set[str], readers: set[str]) -> list[Candidate]:
    """The pairs of paths worth counting, at most `_MAX_CANDIDATES` for each pair of tools."""
    of_tool: dict[str, list[tuple[str, _Profile, _PathName]]] = defaultdict(list)
    for (tool, path), profile in survey.paths.items():
        facts = survey.tools[tool]
        if not profile.sample:
            continue
        if path == "result" and (facts.refusals or _is_prose(profile)):
            continue  # a text that says "not found" would become a tag that no write has
        present = facts.calls if is_argument(path) else facts.seen - facts.refusals
        if profile.calls < (0.5 if is_argument(path) else 0.8) * present:
            continue  # without a value, a tag stands for the whole root
        of_tool[tool].append((path, profile, name_of(tool, path)))
    for tool, known in of_tool.items():
        of_tool[tool] = _without_echoes(known)
    found: list[Candidate] = []
    for write in sorted(writers):
        for read in sorted(readers):
            pairs = []
            facts = survey.tools[write]
            failing = (facts.errors + facts.refusals) / max(facts.calls, 1)
            for wp, wprofile, wname in of_tool[write]:
                for rp, rprofile, rname in of_tool[read]:
                    judged = _judge(wp, wprofile, wname, rp, rprofile, rname)
                    if judged is not None:
                        weight, is_entity, overlap = judged
                        if not is_argument(rp):
                            weight *= min(1.0, rprofile.calls / max(survey.tools[read].seen, 1))
                        if not is_argument(wp):  # a write that fails drops the whole root then
                            weight *= 1.0 - failing
                        is_key = is_entity and overlap > 0 and is_argument(wp) and is_argument(rp)
                        is_ambiguous = is_argument(rp) and _has_spellings(wprofile, rprofile)
                        pairs.append(Candidate(write, wp, read, rp, weight, is_entity, is_key, overlap, is_ambiguous))
            pairs.sort(key=_by_weight)
            found += pairs[:_MAX_CANDIDATES]
    return found


def _by_weight(one: Candidate) -> tuple[float, int, str, str]:
    return -one.weight, len(one.write_path) + len(one.read_path), one.write_path, one.read_path


def _is_prose(profile: _Profile) -> bool:
    texts = profile.sample.values()
    return profile.main_class == "word" and len(texts) > 1 and any(" " in text for text in texts)


def _without_echoes(paths: list[tuple[str, _Profile, _PathName]]) -> list[tuple[str, _Profile, _PathName]]:
    """Without the paths of a result that repeat an argument: templates know it before the call."""
    arguments = [(profile, name) for path, profile, name in paths if is_argument(path) and "[" not in path]
    return [
        (path, profile, name)
        for path, profile, name in paths
        if is_argument(path)
        or "[]" in path
        or not any(name.leaf == own.leaf and profile.sample.keys() <= held.sample.keys() for held, own in arguments)
    ]


def _has_spellings(one: _Profile, other: _Profile) -> bool:
    """Whether two paths have more in common if spelling is ignored, or something in common that one spells twice."""
    common = one.spellings & other.spellings
    spelt_twice = any(len(held.spellings) < len(held.sample) for held in (one, other))
    return len(common) > len(one.sample.keys() & other.sample.keys()) or (bool(common) and spelt_twice)


def _judge(
    wp: str, w: _Profile, wname: _PathName, rp: str, r: _Profile, rname: _PathName
) -> tuple[float, bool, float] | None:
    smaller, larger = (w.sample, r.sample) if len(w.sample) <= len(r.sample) else (r.sample, w.sample)
    bound = min(w.largest if len(w.sample) >= _SKETCH else 1 << 64, r.largest if len(r.sample) >= _SKETCH else 1 << 64)
    shared = sum(1 for hashed in smaller if hashed <= bound and hashed in larger)
    comparable = min(sum(1 for hashed in one if hashed <= bound) for one in (w.sample, r.sample)) or 1
    overlap = shared / comparable
    classes = w.main_class, r.main_class
    names = _is_one_entity(wname, rname)
    ids = wname.is_id or rname.is_id
    same_leaf = wname.leaf == rname.leaf
    is_entity = False
    places = is_argument(wp) + is_argument(rp)
    if not shared and (comparable >= 20 or not (wname.is_own and rname.is_own)):
        return None  # so many values, and not one in common; or not even a name
    if "id" in classes and set(classes) <= {"id", "int", "word"}:
        is_entity = (names and ids and (shared > 0 or classes == ("id", "id"))) or (shared >= 3 and overlap >= 0.3)
    elif classes == ("int", "int"):
        both = wname.is_id and rname.is_id
        is_bare = both and not (wname.is_own and rname.is_own) and overlap >= 0.3  # "id", "number": of whatever
        is_named = names and wname.is_own and rname.is_own and ids and overlap >= 0.3
        is_entity = (names and both) or is_named or is_bare or (both and same_leaf and places == 2)
    elif classes == ("word", "word"):
        known = (names and ids and shared >= 2) or (places == 2 and same_leaf and shared >= 5)
        is_entity = known and overlap >= 0.3
    if not is_entity and (not shared or not places or (places == 1 and min(len(w.sample), len(r.sample)) < 10)):
        return None
    weight = (0.35, 0.65, 0.9)[places] if is_entity else (0.02, 0.08, 0.25)[places]
    if not is_argument(rp) and is_entity and "[]" in rp:
        weight *= 0.9
    if same_leaf:
        weight *= 1.1
    elif not names:
        weight *= 0.7
    return min(weight, 1.0), is_entity and (places > 0), overlap
