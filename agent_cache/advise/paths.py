"""Paths of the values in calls, what their names and values say, and which pairs of them may be one entity.

A path is what stands in a template (`agent_cache.core.tags`): ``order_id``, ``result[orders][][id]``; and it is
followed as a template follows it. The first pass over a log takes a `Survey` of them. Names are a weak sign: words are
compared without those that mean an id (``_id``, ``number``) or a role (``from_``, ``new_``), and only together with the
values that were seen there.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations, pairwise, product
from typing import Any, Final, Literal, NamedTuple, cast

from agent_cache.advise.calls import UNKNOWN, LoggedCall, is_failure

__all__ = [
    "Candidate", "Survey", "ToolFacts", "find_candidates", "is_argument", "kind_by_name", "name_of",
    "nouns_of", "server_of", "values_at",
]  # fmt: skip

_MAX_LEAVES: Final = 2_000
"""How many leaves of one call are looked at."""
_MAX_CHILDREN: Final = 40
"""A mapping with more keys than this is a table, and its keys are ids: no template can name them."""
_MAX_TEXT: Final = 200
"""A longer text is no value of an id."""
_MAX_VALUES: Final = 20_000
_MAX_CANDIDATES: Final = 40
MIN_OVERLAP: Final = 0.3
"""The share of their values that two arguments have in common if they may stand for the same things."""

_NAME: Final = re.compile(r"[^\W\d][\w-]{0,63}")
_STEP: Final = re.compile(r"\[([^\]]*)\]")


def is_argument(path: str) -> bool:
    """Whether a path begins in the arguments."""
    return path != "result" and not path.startswith("result[")


@lru_cache(65_536)
def _compiled(path: str) -> tuple[str, tuple[str, ...]]:
    """The name that a path begins with, and its steps: keys, and an empty text for each item."""
    name, bracket, rest = path.partition("[")
    return name, tuple(_STEP.findall(bracket + rest))


def values_at(call: LoggedCall, path: str, *, is_write: bool) -> tuple[str, ...] | None:
    """The values at a path, as a template takes them: texts; none for the whole root; None if the template fails.

    Of several arguments, ``repo:number``, those of all together.
    """
    if ":" in path:
        parts = [values_at(call, one, is_write=is_write) for one in path.split(":")]
        return None if None in parts else tuple(map(":".join, product(*cast("list[tuple[str, ...]]", parts))))
    name, steps = _compiled(path)
    if name == "result":
        if call.error is not None or call.result is UNKNOWN:
            return None
        level = [call.result]
    elif name not in call.arguments:
        return None if is_write else ()
    else:
        level = [call.arguments[name]]
    for step in steps:
        try:
            if step:
                level = [one[step] for one in level]
            elif all(isinstance(one, list | tuple) for one in level):
                level = [item for one in level for item in one]
            else:
                return None
        except (KeyError, TypeError, IndexError):
            return None
    if any(one is None for one in level):
        return ()
    return tuple(dict.fromkeys([one if type(one) is str else str(one) for one in level]))


# Names


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ID_WORDS: Final = _set(
    "id ids uuid guid key keys number numbers num nums no nr code codes ref refs reference references pk uid oid"
)
_NATURAL_KEYS: Final = _set(
    "slug sku handle path email url uri login iban isbn pnr username branch sha commit filename account ticket"
)
"""Words that name an id and an entity at once."""
_ROLE_WORDS: Final = _set(
    "new old from to source target src dst dest destination the my a an of for by first last original current other"
    " parent child related main default in into on with all list data details detail info result results value values"
)
_READ_WORDS: Final = _set(
    "get list find search read fetch show lookup look query describe view check count calculate compute is has exists"
    " retrieve load stat cat ls head tail grep browse status info summarize peek whoami diff log history inspect"
    " select resolve download tree"
)
_READ_NOUNS: Final = _set("look check count is has status info head tail log history view query diff load")
"""Those that are often no verb where they are not the first word."""
_WRITE_WORDS: Final = _set(
    "add create update delete remove set put post patch write insert upsert send cancel modify edit move rename copy"
    " book reserve return exchange transfer deposit withdraw pay refund close open reopen assign unassign archive"
    " restore enable disable append push commit merge checkout reset apply submit approve reject mark make save store"
    " register rm mkdir touch mv cp drop truncate replace increment adjust change schedule reschedule invite accept"
    " decline comment label tag untag revert rebase upload publish subscribe unsubscribe grant revoke ship restock"
    " reply forward draft toggle start stop launch kill clear purge link unlink share lock unlock escalate checkin"
    " complete finish trash destroy restart scale deploy amend place void finalize follow unfollow execute run install"
    " fork transition format sync trigger dispatch import"
)
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
    if first not in _READ_WORDS or (first in ("log", "load") and rest):  # `log_workout` writes
        return None
    if before and first in _READ_NOUNS and servers.get(before, 0) < 3:
        return None
    own = set(_words(re.split(r"[:./]|__", tool)[-1])) - set(words)
    joined = any(one in ("and", "or") and other in _WRITE_WORDS for one, other in pairwise(words))
    return None if joined or rest[:1] == ("replace",) or own & _WRITE_WORDS else "read"


class _PathName(NamedTuple):
    """What the name of a path says: its last key, the words of its entity, whether it is named as an id, and whether
    these words are its own, and not those of its tool.
    """

    leaf: str
    entity: frozenset[str]
    is_id: bool
    is_own: bool


@lru_cache(65_536)
def name_of(tool: str, path: str) -> _PathName:
    """What the name of a path says, in the context of its tool."""
    name, steps = _compiled(path)
    keys = [name, *(step for step in steps if step)]
    if keys[-1] == "result":
        return _PathName("result", nouns_of(tool), bool(_ID_WORDS.intersection(server_of(tool)[1])), is_own=False)
    entity = frozenset[str]()
    for key in reversed(keys):
        if entity or key == "result":
            break
        entity = frozenset(_words(key)) - _NO_ENTITY
    is_id = bool((_ID_WORDS | _NATURAL_KEYS).intersection(_words(keys[-1])))
    return _PathName(keys[-1], entity or nouns_of(tool), is_id, is_own=bool(entity))


# The first pass: tools, paths, and their values

_DATE: Final = re.compile(r"\d{4}-\d\d(-\d\d)?([T ].*)?|\d{1,2}:\d\d(:\d\d)?|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}")


@lru_cache(65_536)
def _kind_of(text: str) -> str:
    """The class of a text, empty for what is no id."""
    if not text or "\n" in text:
        return ""
    if text.isdecimal():
        return "int" if len(text) <= 5 else "id"
    if _DATE.fullmatch(text):
        return "date"
    return "id" if " " not in text and len(text) >= 3 and re.search(r"[\d_@/#:.-]", text) else "word"


class _Profile:
    """What one path of one tool has held: in how many calls, which classes of values, and the values themselves."""

    def __init__(self) -> None:
        self.calls = 0
        self.last = -1
        self.classes: Counter[str] = Counter()
        self.values: set[str] = set()

    def add(self, value: Any, at: int) -> None:
        """Take a value of the call at a position into account."""
        if self.last != at:
            self.calls, self.last = self.calls + 1, at
        kind = "float" if isinstance(value, float) else ""
        if isinstance(value, str) and len(value) <= _MAX_TEXT:
            kind = _kind_of(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            value, kind = str(value), "int"
        self.classes[kind] += 1
        if kind not in ("", "float") and len(self.values) < _MAX_VALUES:
            self.values.add(value)

    @cached_property
    def main_class(self) -> str:
        """The most frequent class of its values, once the survey is complete."""
        return self.classes.most_common(1)[0][0] if self.classes else ""


@dataclass(slots=True)
class ToolFacts:
    """What the calls of one tool have in common: how many there are, failed, were answered, and answered by a refusal;
    what the log says of its kind, and the annotations; its parameters in the order seen, and whether every call had
    them; and whether answers were texts that are JSON.
    """

    calls: int = 0
    errors: int = 0
    seen: int = 0
    refusals: int = 0
    given: Counter[str] = field(default_factory=Counter)
    hint: Literal["read", "write"] | None = None
    parameters: dict[str, bool] = field(default_factory=dict)
    text: bool = False

    def add(self, call: LoggedCall) -> None:
        """Take a call into account."""
        for name in {**self.parameters, **call.arguments}:
            is_known = name in self.parameters or self.calls == 0
            self.parameters[name] = is_known and self.parameters.get(name, True) and name in call.arguments
        self.calls += 1
        self.text |= call.is_parsed
        self.errors += call.error is not None
        self.seen += call.error is None and call.result is not UNKNOWN
        self.refusals += call.error is None and is_failure(call)
        if call.kind is not None:
            self.given[call.kind] += 1
        said = call.hints.get("readOnlyHint")
        if said is not None:
            self.hint = "read" if said else "write"


class Survey:
    """The first pass over a log."""

    def __init__(self, calls: Iterable[LoggedCall]) -> None:
        self.tools: dict[str, ToolFacts] = defaultdict(ToolFacts)
        self.of_tool: dict[str, list[tuple[str, _Profile]]] = defaultdict(list)
        self._listed: dict[str, set[str]] = defaultdict(set)
        profiles: dict[tuple[str, str], _Profile] = defaultdict(_Profile)
        for at, call in enumerate(calls):
            self.tools[call.tool].add(call)
            for path, value in self._leaves(call):
                profiles[call.tool, path].add(value, at)
        for (tool, path), profile in profiles.items():
            self.of_tool[tool].append((path, profile))
            if not is_argument(path) and "[]" in path:
                self._listed[tool] |= profile.values
        self.arguments = {tool: [one for one in paths if is_argument(one[0])] for tool, paths in self.of_tool.items()}

    def _leaves(self, call: LoggedCall) -> Iterator[tuple[str, Any]]:
        """The leaves of a call that a template can name, with their paths, arguments first."""
        stack = [] if call.error is not None or call.result is UNKNOWN else [("result", call.result)]
        stack += [(n, v) for n, v in call.arguments.items() if n != "result" and _NAME.fullmatch(n)][::-1]
        left = _MAX_LEAVES
        while stack and left:
            path, value = stack.pop()
            if isinstance(value, list | tuple):
                stack += [(path + "[]", item) for item in reversed(value[:left])]
            elif isinstance(value, Mapping) and len(value) > _MAX_CHILDREN:
                self._listed[call.tool].update(value if not is_argument(path) else ())
            elif isinstance(value, Mapping):
                stack += [(f"{path}[{key}]", inner) for key, inner in value.items() if _NAME.fullmatch(str(key))]
            else:
                left -= 1
                yield path, value

    def ids_of(self, tool: str) -> set[str]:
        """The arguments of a tool that are ids, by their names or by their values."""
        arguments = self.arguments.get(tool, ())
        return {path for path, profile in arguments if profile.main_class == "id" or name_of(tool, path).is_id}

    def may_list(self, read: str, write: str) -> bool:
        """Whether a read without an id among its arguments lists what a write or its result names.

        Then every such write may bring an item in, or take one out, whatever was in the list before. The lists in a
        result do not count: they are of what it has to do with, and not of what it is about.
        """
        listed = self._listed[read]
        if not listed or self.ids_of(read):
            return False
        for path, profile in self.of_tool[write]:
            if (is_argument(path) or "[]" not in path) and profile.main_class in ("id", "int", "word"):
                shared = len(listed & profile.values)
                if shared >= max(3, 0.3 * min(len(listed), len(profile.values))):
                    return True
        return False


# Candidates


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair of paths through which a write may meet a read; or of several arguments that have one name in both calls.

    Attributes:
        weight: how much the two look like one entity, in 0 to 1.
        is_entity: whether they do so enough to be believed without a change.
        is_key: whether both are arguments, and `is_entity`, and had a value in common.
        overlap: the share of their values that they have in common, of those of the path with fewer.
    """

    write: str
    write_path: str
    read: str
    read_path: str
    weight: float
    is_entity: bool
    is_key: bool
    overlap: float

    @property
    def parts(self) -> frozenset[tuple[str, str]]:
        """The pairs of paths."""
        return frozenset(zip(self.write_path.split(":"), self.read_path.split(":"), strict=True))


_Known = tuple[str, _Profile, _PathName]


def find_candidates(survey: Survey, writers: set[str], readers: set[str]) -> list[Candidate]:
    """The pairs of paths worth counting, at most `_MAX_CANDIDATES` for each pair of tools."""
    known = {tool: _paths_of(tool, survey) for tool in writers | readers}
    found: list[Candidate] = []
    for write in sorted(writers):
        facts = survey.tools[write]
        failing = (facts.errors + facts.refusals) / max(facts.calls, 1)
        for read in sorted(readers):
            pairs = []
            for wp, wprofile, wname in known[write]:
                for rp, rprofile, rname in known[read]:
                    judged = _judge(wp, wprofile, wname, rp, rprofile, rname)
                    if judged is None:
                        continue
                    weight, is_entity, overlap = judged
                    if not is_argument(rp):
                        weight *= min(1.0, rprofile.calls / max(survey.tools[read].seen, 1))
                    if not is_argument(wp):  # a write that fails drops the whole root then
                        weight *= 1.0 - failing
                    is_key = is_entity and overlap > 0 and is_argument(wp) and is_argument(rp)
                    pairs.append(Candidate(write, wp, read, rp, weight, is_entity, is_key, overlap))
            pairs.sort(
                key=lambda one: (-one.weight, len(one.write_path + one.read_path), one.write_path, one.read_path)
            )
            order = list(survey.tools[read].parameters)
            same = [one for one in pairs if one.write_path == one.read_path in order]
            same.sort(key=lambda one: order.index(one.read_path))
            found += [one for one in pairs[:_MAX_CANDIDATES] if one not in same] + _together(same, len(order))
    return found


def _together(same: list[Candidate], parameters: int) -> list[Candidate]:
    """Arguments of one name in both calls: each, in pairs, and all together: ``repo:number``.

    Those that have values in common are an entity together if they are at least half of those of the read: neither the
    ``floor`` nor the ``zone`` of a lamp is named as an id, and none alone tells one lamp from another.
    """
    alike = tuple(one for one in same if one.overlap >= MIN_OVERLAP)
    sets = dict.fromkeys([*((one,) for one in same), *combinations(same[:6], 2), tuple(same), alike])
    found = []
    for several in filter(None, sets):
        path = ":".join(one.write_path for one in several)
        found.append(
            replace(
                several[0],
                write_path=path,
                read_path=path,
                weight=max(one.weight for one in several),
                is_entity=any(one.is_entity for one in several) or (several == alike and 2 * len(alike) >= parameters),
                is_key=several[0].is_key and len(several) == 1,
                overlap=min(one.overlap for one in several),
            )
        )
    return found


def _paths_of(tool: str, survey: Survey) -> list[_Known]:
    """The paths of a tool that nearly every call has, without prose, and without those of a result that repeat an
    argument: templates know it before the call.
    """
    facts, found = survey.tools[tool], list[_Known]()
    for path, profile in survey.of_tool[tool]:
        is_given, texts = is_argument(path), profile.values
        least = 0.5 * facts.calls if is_given else 0.8 * (facts.seen - facts.refusals)
        is_prose = profile.main_class == "word" and len(texts) > 1 and any(" " in text for text in texts)
        is_text = path == "result" and (facts.refusals or is_prose)  # "not found" is a tag that no write has
        if texts and not is_text and profile.calls >= least:
            found.append((path, profile, name_of(tool, path)))
    arguments = [(profile, name.leaf) for path, profile, name in found if is_argument(path) and "[" not in path]
    return [
        (path, own, name)
        for path, own, name in found
        if is_argument(path)
        or "[]" in path
        or not any(name.leaf == leaf and own.values <= held.values for held, leaf in arguments)
    ]


def _judge(
    wp: str, w: _Profile, wname: _PathName, rp: str, r: _Profile, rname: _PathName
) -> tuple[float, bool, float] | None:
    """How much two paths look like one entity, whether that is enough, and which share of their values is common."""
    shared, comparable = len(w.values & r.values), min(len(w.values), len(r.values)) or 1
    overlap = shared / comparable
    if not shared and (comparable >= 20 or not (wname.is_own and rname.is_own)):
        return None  # so many values, and not one in common; or not even a name
    classes = w.main_class, r.main_class
    names = bool(wname.entity and rname.entity) and (wname.entity <= rname.entity or rname.entity <= wname.entity)
    ids, both = wname.is_id or rname.is_id, wname.is_id and rname.is_id
    same_leaf = wname.leaf == rname.leaf
    is_entity = False
    places = is_argument(wp) + is_argument(rp)
    if "id" in classes and set(classes) <= {"id", "int", "word"}:
        is_entity = (names and ids and (shared > 0 or classes == ("id", "id"))) or (shared >= 3 and overlap >= 0.3)
    elif classes == ("int", "int"):
        are_own = wname.is_own and rname.is_own
        is_named = (both and not are_own) or (names and are_own and ids)  # "id", "number": of whatever
        is_entity = (names and both) or (is_named and overlap >= 0.3) or (both and same_leaf and places == 2)
    elif classes == ("word", "word"):
        is_known = (names and ids and shared >= 2) or (places == 2 and same_leaf and shared >= 5)
        is_entity = is_known and overlap >= 0.3
    if not is_entity and (not shared or not places or (places == 1 and comparable < 10)):
        return None
    weight = (0.35, 0.65, 0.9)[places] if is_entity else (0.02, 0.08, 0.25)[places]
    if not is_argument(rp) and is_entity and "[]" in rp:
        weight *= 0.9
    weight *= 1.1 if same_leaf else 1.0 if names else 0.7
    return min(weight, 1.0), is_entity and places > 0, overlap
