"""The rule by which values are dropped in one process: its text, and a model of it that runs random interleavings.

**A write gives the tags that it names a new version, when it begins and when it has ended. A value counts while no tag
that it depends on has a newer version than the moment at which its load began.**

`agent_cache.core.versions` says what a version, a path and a hold are; `PARTS` has the rest of the rule, sentence by
sentence. A *load* reads `now` before its tool runs: its `since`. A *hit* reads the entry, whose tags it notes in the
load that it is made for, then `now`, then the table of versions. A reader *joins* a load if no tag that is known of it
so far was written since. An outer load *inherits* the tags of each read that its tool makes. A write that may take
effect later is in *doubt* until some time.

**The model.** Reads and writes are generators: where they yield, another thread may go on; with one event loop only
where they await something. `PARTS` are what can be taken out of the rule. A value says when each of its sources was
looked at, so what is wrong with an answer is seen from the answer, and from when writes have begun and ended:

- "stale": it was loaded before a write of what it depends on had ended, and that was before the read started;
- "stale after doubt": it was loaded before an effect that came late, and the doubt was over before the read started;
- "kept": it was kept although a write of its early tags had begun when the read started, and runs still;
- "kept in doubt": the same of a write that has ended in doubt;
- "dead": what was stored did not count any more; "back": what was removed is there again; "hangs": a read never ends;
- "needless": a tool runs although nothing was written (`test_versions_model` calls these one after the other).

Searched, not proved. Not modelled: expiry, grace, tenants, eviction, forks, the order in which asyncio wakes tasks,
interrupts elsewhere than at the end of a write, and the memory order of builds without a global lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Steps = Generator[Callable[[], bool] | None, None, T]
"""It yields None where another thread may go on, or awaits what has to be true before it goes on itself."""
Name = tuple[str | None, str]
"""A session, or None for the whole process; and a path in it."""
Table = tuple[dict[Name, int], dict[Name, int], int]
"""The newer and the older generation of versions, and the floor."""
Seen = dict[str, tuple[int, "Write | None"]]
"""What a value is made of: each tag, when its source was looked at, and the write that gave it, if one did."""
STEP = None
AWAIT: Callable[[], bool] = lambda: True


class Part(NamedTuple):
    """A part of the rule, what goes wrong without it, in which scene, and with which seeds: in threads, in one loop."""

    rule: str
    effect: str
    scene: str = ""
    seed: int = 0
    seed_of_loop: int = -1


PARTS = {
    "paths before now": Part("the paths are entered, then `now` is published", "stale", "races", 34),
    "paths again": Part("... again if `now` has moved meanwhile", "stale", "signals", 45),
    "below": Part("`a:b` asks for `a:b:*`", "stale", "hits", 99, 1),
    "own key": Part("entries, loads and holds have their own key as a tag", "stale", "by key", 2, 1),
    "floor": Part("what is below the floor counts as written", "stale", "old", 93, 11),
    "one tuple": Part("both generations and the floor are read at once", "stale", "old", 172),
    "note before now": Part(
        "a hit notes its tags in the outer load before it reads `now`", "stale", "inner joins", 1431
    ),
    "now before table": Part("... and reads the table after that", "stale", "old", 598),
    "the same now": Part("`checked` becomes the `now` that was read before the table", "stale", "races", 2),
    "since checked": Part("a hit asks for writes since `checked`, not since the load has begun", "needless"),
    "in place": Part("`checked` is set in the entry, not in a copy of it", "back", "races", 85),
    "since before": Part("`since` is read before the tool runs", "stale", "hits", 202, 125),
    "store asks": Part("what was written since is not stored", "dead", "hits", 0, 13),
    "join asks": Part("a reader asks for what is known of a load", "stale", "joins", 59, 2),
    "late roots": Part("... for the roots of what its result will tell", "stale", "joins", 280, 118),
    "inherited": Part("... for what it has inherited", "stale", "inheritance", 2, 45),
    "loads inside": Part("... for what is known of the loads inside of it", "stale", "inheritance", 153, 452),
    "inside, then asked": Part("an inner load is noted before its reader asks to join it", "stale", "inner asks", 264),
    "one step": Part("joining and the end of a load exclude each other", "hangs", "joins", 37),
    "noted at the end": Part("the tags of an inner load are noted", "stale", "inheritance", 51, 7),
    "noted, then taken": Part("... before the note that it runs is taken away", "stale", "inner races", 1038),
    "noted if raised": Part("... also if it has raised", "stale", "inheritance", 841, 467),
    "own since": Part("an outer load does not inherit a `since`", "needless"),
    "begin": Part("the begin of a write is a version", "kept", "hits", 482, 45),
    "held while running": Part("its early tags are held until it has ended", "kept", "hits", 652, 693),
    "end": Part("the end of a write is a version", "stale", "hits", 127, 12),
    "end in any case": Part("... also if it is interrupted", "stale", "interrupts", 170, 20),
    "root if failed": Part("... of the root if it has failed before its id was known", "stale", "joins", 481, 110),
    "root:* without id": Part("... of what the whole root is read for if there is no id", "stale", "hits", 1339, 455),
    "held in doubt": Part("the tags of a write in doubt are held", "stale after doubt", "doubt", 23, 24),
    "held before now": Part("... before the `now` of its end is published", "kept in doubt", "doubt", 427),
    "version at the lapse": Part("the end of a doubt is a version", "stale after doubt", "doubt", 147, 300),
    "each lapse": Part("... also if another doubt goes on", "stale after doubt", "doubts", 1716, 387),
    "version, then release": Part("... and then the hold is taken away", "stale after doubt", "doubts", 644),
    "one clock": Part("... if it was over when the version was given", "stale after doubt", "doubts", 757),
    "held to the version": Part("a hold counts until its version is given", "stale after doubt", "doubt", 292, 207),
    "lapsed before join": Part("doubts are ended before a join", "stale after doubt", "doubt", 636, 411),
    "lapsed before since": Part("doubts are ended before `since` is read", "needless"),
    "given asks": Part("a given result is dropped if another write has come between", "stale", "given", 13, 21),
    "given in one step": Part("... which is asked in the step that gives the end", "stale", "given", 1),
    "given at the end": Part("its `since` is the end of the write", "needless"),
    "session asks": Part("entries of a session ask for its versions", "stale", "sessions", 8, 1),
    "session moves now": Part("writes of a session move the process's `now`", "stale", "sessions", 55, 1),
}


class Tool(NamedTuple):
    """A read tool: it looks at the source of its tag, then makes other reads."""

    tags: tuple[str, ...] = ()
    late: tuple[str, ...] = ()  # known from the result
    inner: tuple[str, ...] = ()
    in_session: bool = False
    forgives: bool = False  # it answers although an inner read has raised


TOOLS = {
    "entity": Tool(("o:7",)),
    "item": Tool(("o:7:i",)),
    "listing": Tool(("o",)),
    "found": Tool(late=("o:7",)),
    "user": Tool(("u:1",)),
    "report": Tool(("r",), inner=("entity", "user")),
    "book": Tool(("b",), inner=("report", "found")),
    "front": Tool(late=("u:1",), inner=("entity",)),
    "careful": Tool(("g",), inner=("found",), forgives=True),
    "mine": Tool(("o:7",), in_session=True),
    "my_report": Tool(("r",), inner=("mine",), in_session=True),
}


class Change(NamedTuple):
    """A write tool."""

    tags: tuple[str, ...] = ()
    late: tuple[str, ...] = ()  # known from the result
    doubt: int = 0  # for how long after its end it may take effect
    in_session: bool = False
    gives: str = ""  # the read to which it gives its result, by `set`


CHANGES = {
    "entity": Change(("o:7",)),
    "item": Change(("o:7:i",)),
    "root": Change(("o",)),
    "found": Change(late=("o:7",)),
    "both": Change(late=("u:1", "o:7")),
    "user": Change(("u:1",)),
    "report": Change(("r",)),
    "lost": Change(("o:7",), doubt=2),
    "lost_long": Change(("o:7",), doubt=3),
    "lost_found": Change(late=("o:7",), doubt=2),
    "giving": Change(("o:7",), gives="entity"),
    "invalidate": Change(("@entity:1",)),
    "clear": Change(("@entity",)),
    "mine": Change(("o:7",), in_session=True),
    "x": Change(("x:1",)),
    "y": Change(("y:1",)),
}
SESSIONS = {"outer": ("outer",), "inner": ("inner", "outer")}
"""Two sessions, and those that a write in one of them reaches."""


class Scene(NamedTuple):
    """Which reads and writes are made, how many, how fast time passes, and how many paths a generation may have."""

    reads: str = ""
    writes: str = ""
    many: tuple[int, int] = (6, 3)
    time: float = 0.0
    generation: int = 1000
    interrupts: float = 0.0  # the ends of so many writes
    signals: float = 0.0  # what writes while paths are entered


QUIET = Scene()
SCENES = {
    "hits": Scene("entity item listing found", "entity item root found"),
    "races": Scene("entity entity listing", "found found x", (10, 4)),
    "signals": Scene("entity", "both", (8, 2), signals=0.2),
    "old": Scene("entity", "found x y", (8, 7), generation=3),
    "by key": Scene("entity report", "invalidate clear"),
    "joins": Scene("found entity", "entity found"),
    "inheritance": Scene("report book front careful entity found", "entity user found report", (7, 3)),
    "inner races": Scene("report report entity", "found found x", (9, 3)),
    "inner joins": Scene("front entity", "found", (9, 2)),
    "inner asks": Scene("front entity", "entity", (8, 1)),
    "interrupts": Scene("entity found report", "entity found", interrupts=0.3),
    "doubt": Scene("entity entity found report", "lost lost lost_found entity", (9, 2), time=0.02),
    "doubts": Scene("entity", "lost lost_long", (12, 4), time=0.05),
    "given": Scene("entity report", "giving giving entity"),
    "sessions": Scene("mine my_report entity", "mine entity"),
}


def above(tag: str) -> list[str]:
    parts = tag.split(":")
    return [":".join(parts[:length]) for length in range(1, len(parts))]


def roots(tags: Iterable[str]) -> list[str]:
    return [tag.partition(":")[0] for tag in tags]


def written(tags: Iterable[str], chain: Iterable[str | None] = (None,)) -> list[Name]:
    """The names that a write of these tags enters."""
    paths = [path for tag in tags for path in (tag, *(f"{each}:*" for each in above(tag)))]
    return [(session, path) for session in chain for path in paths]


def meet(some: Iterable[str], other: str) -> bool:
    """Whether any of these tags is that one, or is above or below it."""
    return any(f"{tag}:".startswith(f"{other}:") or f"{other}:".startswith(f"{tag}:") for tag in some)


def at_once(steps: Steps[T]) -> T:
    """Let nothing else happen in between."""
    try:
        while True:
            condition = next(steps)
            assert condition is None or condition(), "it would wait for ever"
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


@dataclass(slots=True)
class Entry:
    value: Seen
    tags: tuple[str, ...]
    since: int
    checked: int


@dataclass(slots=True)
class Hold:
    """Keeps what has a path from being stored: as long as so many writes run, or until the last of these times."""

    running: int = 0
    untils: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Load:
    """A run of a read tool. Who waits for it has a list there, which gets a reason to go on."""

    tool: str
    session: str | None
    since: int = 0
    inherited: set[str] = field(default_factory=set)
    inside: list[Load] = field(default_factory=list)  # what it leads or waits for
    waiters: list[list[str]] = field(default_factory=list)
    is_running: bool = True
    has_failed: bool = False
    value: Seen = field(default_factory=dict)
    tags: tuple[str, ...] = ()  # when it has ended


@dataclass(eq=False, slots=True)
class Write:
    """When what has happened to a write, as numbers that grow with each event."""

    early: tuple[str, ...]
    chain: tuple[str | None, ...]
    tags: tuple[str, ...]  # what it may have changed
    begun: int = 0
    ending: int = 0
    ended: int = 0
    until: int = 0  # on the clock: the end of its doubt
    landed: int = 0  # its effect, after its end
    lapsed: int = 0  # its doubt


class Failed(Exception):
    """A read has raised. What it was made of is its argument."""


class Process:
    """A process under the rule, without some parts of it.

    Attributes:
        broken: what has gone wrong, and the first sentence about it.
        happened: how many hits and so on there were.
    """

    def __init__(self, without: Collection[str] = (), scene: Scene = QUIET, random: Random | None = None) -> None:
        self.has = {part: part not in without for part in PARTS}
        self.scene, self.random = scene, random
        self.now, self.rotated, self.is_locked = 0, 0, False
        self.table: Table = ({}, {}, 0)
        self.holds: dict[Name, Hold] = {}
        self.entries: dict[tuple[str, str | None], Entry] = {}
        self.loads: dict[tuple[str, str | None], Load] = {}
        # What is seen from outside
        self.clock = self.ticks = 0
        self.writes: list[Write] = []
        self.removed: list[Seen] = []
        self.happened: Counter[str] = Counter()
        self.trace: list[str] = []
        self.broken: dict[str, str] = {}

    def chance(self, share: float) -> bool:
        return self.random is not None and self.random.random() < share

    def log(self, *words: object) -> int:
        self.ticks += 1
        self.trace.append(" ".join(map(str, (self.ticks, *words))))
        return self.ticks

    # -- versions and holds ------------------------------------------------------------------------------------

    def give(self, names: Sequence[Name], *first: Callable[[], object]) -> Steps[int]:
        """Give these names a new version, in one locked step that begins with something else."""
        while self.is_locked:
            yield lambda: not self.is_locked
        self.is_locked = True
        for each in first:
            each()
        moves = self.has["session moves now"] or not names or names[0][0] is None
        version = self.now + 1
        if moves and not self.has["paths before now"]:
            self.now = version
        before = self.now
        yield from self.enter(names, version)
        while self.now != before and self.has["paths again"]:
            before, version = self.now, self.now + 1
            yield from self.enter(names, version)
        if len(self.table[0]) > self.scene.generation:
            self.table, self.rotated = ({}, self.table[0], self.rotated), version
        yield STEP
        if moves:
            self.now = max(version, self.now)
        self.is_locked = False
        return version

    def enter(self, names: Sequence[Name], version: int) -> Steps[None]:
        for name in names:
            if not name[1].startswith("x") and self.chance(self.scene.signals):  # the lock lets its thread in again
                self.is_locked = False
                at_once(self.write("x"))
                self.is_locked = True
            yield STEP
            self.table[0][name] = version

    def read_names(self, tags: Iterable[str], session: str | None) -> list[Name]:
        """The names that what has these tags asks for."""
        stars = [f"{tag}:*" for tag in tags if ":" not in tag or self.has["below"]]
        paths = [*stars, *(path for tag in tags for path in (tag, *above(tag)))]
        sessions = (None, session) if session and self.has["session asks"] else (None,)
        return [(each, path) for each in sessions for path in paths]

    def touched(
        self, tags: Collection[str], since: int, session: str | None, table: Table | None = None
    ) -> Steps[bool]:
        """Whether any of these has been written since."""
        newer, older, floor = table or self.table
        if not self.has["one tuple"]:
            yield STEP
            newer = self.table[0]
            yield STEP
            older = self.table[1]
        if since < floor and self.has["floor"]:
            return True
        for name in self.read_names(tags, session):
            yield STEP
            if max(newer.get(name, 0), older.get(name, 0)) > since:
                return True
        return False

    def hold(self, names: Iterable[Name], *, running: int = 0, until: int = 0) -> None:
        for name in names:
            hold = self.holds.setdefault(name, Hold())
            hold.running += running
            if until:
                hold.untils = [*hold.untils, until] if self.has["each lapse"] else [max(*hold.untils, until, until)]
            if not hold.running and not hold.untils:
                del self.holds[name]

    def is_held(self, tags: Collection[str], session: str | None) -> bool:
        holds = [self.holds[name] for name in self.read_names(tags, session) if name in self.holds]
        return any(hold.running or max(hold.untils) > self.clock or self.has["held to the version"] for hold in holds)

    def end_doubts(self) -> Steps[None]:
        """Give what was in doubt a version, then take the holds away."""
        clock = self.clock
        names = [name for name, hold in self.holds.items() if any(until <= clock for until in hold.untils)]
        if not self.has["version, then release"]:
            self.release(names, clock)
            yield STEP
        if names and self.has["version at the lapse"]:
            yield from self.give(names)
        while names and self.chance(0.9):  # here it matters most if time passes
            yield STEP
        self.release(names, clock if self.has["one clock"] else self.clock)

    def release(self, names: Iterable[Name], clock: int) -> None:
        for name in names:
            if name in self.holds:
                self.holds[name].untils = [until for until in self.holds[name].untils if until > clock]
                self.hold([name])

    # -- reads -------------------------------------------------------------------------------------------------

    def read(self, name: str, place: str | None = None, outer: Load | None = None) -> Steps[Seen]:
        """Call a read tool. `outer` is the load whose tool calls it. Raises `Failed` if the tool does."""
        session = place if TOOLS[name].in_session else None
        started = self.log("read", name, session or "", "starts")
        entry = yield from self.hit(name, session, outer)
        value = entry.value if entry else (yield from self.load(name, session, place, outer))
        self.happened["hits" if entry else "misses"] += 1
        made_of = ", ".join(f"{tag} of {when}" for tag, (when, _) in value.items())
        self.log("read", name, f"of {started} returns", "what was kept:" if entry else "a load:", made_of)
        self.judge(name, value, started, session, is_kept=entry is not None)
        return value

    def hit(self, name: str, session: str | None, outer: Load | None) -> Steps[Entry | None]:
        """Find an entry that counts."""
        now, table = self.now, self.table  # read too early, if a part is taken out
        yield STEP
        entry = self.entries.get((name, session))
        if entry is None:
            return None
        if any(entry.value is value for value in self.removed):
            self.broken.setdefault("back", f"{name} is there, and it was removed")
        yield STEP
        if outer is not None:
            outer.inherited.update(entry.tags)
            yield STEP
        if self.has["note before now"]:
            now = self.now
            yield STEP
        if entry.checked == now:
            return entry
        since = entry.checked if self.has["since checked"] else entry.since
        table = self.table if self.has["now before table"] else table
        if (yield from self.touched(entry.tags, since, session, table)):
            if self.entries.get((name, session)) is entry:
                del self.entries[name, session]
                self.removed.append(entry.value)
            return None
        yield STEP
        now = now if self.has["the same now"] else self.now
        if self.has["in place"]:
            entry.checked = now
        else:
            self.entries[name, session] = replace(entry, checked=now)
        return entry

    def load(self, name: str, session: str | None, place: str | None, outer: Load | None) -> Steps[Seen]:
        """Wait for the load that runs, or lead one."""
        load = self.loads.get((name, session))
        if load is None or not (yield from self.join(load, outer)):
            load = Load(name, session)
            if outer is not None:
                outer.inside.append(load)
        if load.is_running:  # it is new, or its leader was cancelled
            yield from self.lead(load, place, may_be_cancelled=outer is None)
        if outer is not None:
            if not self.has["noted, then taken"]:
                outer.inside.remove(load)
                yield STEP
            if self.has["noted at the end"] and (self.has["noted if raised"] or not load.has_failed):
                outer.inherited.update(load.tags)
            if self.has["noted, then taken"]:
                yield STEP
                outer.inside.remove(load)
        if load.has_failed:
            raise Failed(load.value)
        return load.value

    def join(self, load: Load, outer: Load | None) -> Steps[bool]:
        """Wait until a load has ended, or is this reader's to lead. Returns False if it is too old to be joined."""
        if self.has["lapsed before join"]:
            yield from self.end_doubts()
        inside = [] if outer is None else outer.inside
        if self.has["inside, then asked"]:
            inside.append(load)
            yield STEP
        is_old = self.has["join asks"] and (yield from self.touched(self.known(load), load.since, load.session))
        if is_old or not load.is_running:
            if self.has["inside, then asked"]:
                inside.remove(load)
            return False
        if not self.has["one step"]:
            yield STEP
        reasons: list[str] = []
        load.waiters.append(reasons)
        self.happened["joins"] += 1
        self.log("read", load.tool, "joins a load since version", load.since)
        if not self.has["inside, then asked"]:
            yield STEP
            inside.append(load)
        yield lambda: bool(reasons)
        return True

    def tags(self, name: str) -> tuple[str, ...]:
        """The tags of a read that are known before its load."""
        return (*TOOLS[name].tags, *((f"@{name}:1",) if self.has["own key"] else ()))

    def known(self, load: Load) -> list[str]:
        """The tags that a running load is known to depend on."""
        late = roots(TOOLS[load.tool].late) if self.has["late roots"] else ()
        inside = [tag for inner in load.inside for tag in self.known(inner)] if self.has["loads inside"] else ()
        return [*self.tags(load.tool), *late, *(load.inherited if self.has["inherited"] else ()), *inside]

    def lead(self, load: Load, place: str | None, *, may_be_cancelled: bool) -> Steps[None]:
        """Run the tool of a load, store its result, end it."""
        name, tool, key = load.tool, TOOLS[load.tool], (load.tool, load.session)
        if self.has["lapsed before since"]:
            yield from self.end_doubts()
        load.since = self.now
        yield STEP
        if not self.has["lapsed before since"]:
            yield from self.end_doubts()
        self.loads[key] = load
        self.happened[name] += 1
        yield AWAIT
        look = self.log("read", name, "looks at its source"), None
        value: Seen = {f"@{name}:1": look, (tool.tags or tool.late)[0]: look}
        load.has_failed = self.chance(0.25 if name == "found" else 0.05)
        for inner in () if load.has_failed else tool.inner:
            yield AWAIT
            try:
                part = yield from self.read(inner, place, load)
            except Failed as error:
                part = error.args[0]
                load.has_failed |= not tool.forgives
            value |= {tag: min(look, value.get(tag, look), key=lambda look: look[0]) for tag, look in part.items()}
        yield AWAIT
        if load.waiters and may_be_cancelled and self.chance(0.1):
            self.log("read", name, "is cancelled")
            load.waiters.pop(0).append("it is led by who waits here")
            raise Failed({})
        if not self.has["since before"]:
            load.since = self.now
        late = roots(tool.late) if load.has_failed else tool.late
        tags = (*self.tags(name), *late, *sorted(load.inherited))
        parts = [self.entries[inner, None].since for inner in tool.inner if (inner, None) in self.entries]
        if not load.has_failed:
            since = load.since if self.has["own since"] else min([load.since, *parts])
            yield from self.store(key, tags, value, since)
        yield STEP
        load.value, load.tags, load.is_running = value, tags, False
        if self.loads.get(key) is load:
            del self.loads[key]
        for reasons in load.waiters:
            reasons.append("it has ended")

    def store(self, key: tuple[str, str | None], tags: tuple[str, ...], value: Seen, since: int) -> Steps[None]:
        """Insert an entry, in one locked step, unless it does not count or is held."""
        while self.is_locked:
            yield lambda: not self.is_locked
        is_dead = at_once(self.touched(tags, since, key[1]))
        if self.is_held(tags, key[1]) or (is_dead and self.has["store asks"]):
            return
        if is_dead:
            self.broken.setdefault("dead", f"{key} is stored, and has been written since {since}")
        self.happened["stores"] += 1
        self.entries[key] = Entry(value, tags, since, since)

    # -- writes ------------------------------------------------------------------------------------------------

    def write(self, name: str, place: str | None = None) -> Steps[None]:
        """Call a write tool."""
        change = CHANGES[name]
        write = Write(change.tags, SESSIONS[place] if place and change.in_session else (None,), change.tags)
        self.writes.append(write)
        self.log("write", name, place if change.in_session else "", "begins")
        names, begun, running = written(change.tags, write.chain), self.now, int(self.has["held while running"])
        if names and self.has["begin"]:
            begun = yield from self.give(names, lambda: self.hold(names, running=running))
        else:
            self.hold(names, running=running)
        write.begun = self.log("write", name, "has begun")
        yield AWAIT
        looked, since = self.log("write", name, "takes effect"), self.now
        yield AWAIT
        is_interrupted, has_id = self.chance(self.scene.interrupts), not change.late or not self.chance(0.2)
        how = "has failed" if is_interrupted or self.chance(0.15) else "returns" if has_id else "has no id"
        late: dict[str, list[Name]] = {
            "returns": written(change.late),
            "has no id": [(None, "o:*")] if self.has["root:* without id"] else [],
            "has failed": written(roots(change.late)) if self.has["root if failed"] else [],
        }
        ends = [*names, *late[how]] if self.has["end in any case" if is_interrupted else "end"] else []
        write.tags += ("o:8",) if how == "has no id" else change.late
        write.ending = self.log("write", name, "is about to end")
        write.until = self.clock + change.doubt if change.doubt else 0
        others: list[bool] = []  # whether one has come between

        def ask() -> None:
            if change.gives and self.has["given asks"]:
                others.append(at_once(self.touched(self.tags(change.gives), begun, None)))

        def doubt() -> None:
            if write.until and self.has["held in doubt"]:
                self.hold(ends, until=write.until)

        asks, holds = self.has["given in one step"], self.has["held before now"]
        if not asks:
            ask()
            yield STEP
        version = yield from self.give(ends, *(each for each, is_inside in ((ask, asks), (doubt, holds)) if is_inside))
        if not holds:
            yield STEP
            doubt()
        self.hold(names, running=-running)
        if change.gives and how == "returns" and not any(others):
            given: Seen = {"o:7": (looked, write), f"@{change.gives}:1": (looked, write)}
            since = version if self.has["given at the end"] else since
            yield from self.store((change.gives, None), self.tags(change.gives), given, since)
        write.ended = self.log("write", name, how)
        while self.clock < write.until:
            yield AWAIT
            if self.clock < write.until and self.chance(0.5):
                write.landed = self.log("write", name, "takes effect late")

    def pass_time(self) -> None:
        self.clock += 1
        self.log("it is", self.clock)
        for write in self.writes:
            if write.until and not write.lapsed and write.until <= self.clock:
                write.lapsed = self.ticks

    def judge(self, name: str, value: Seen, started: int, session: str | None, *, is_kept: bool) -> None:
        """Look for what is wrong with an answer."""
        for write in self.writes:
            for tag, (when, giver) in value.items() if {None, session} & {*write.chain} else ():
                is_over = 0 < write.ended < started
                if giver is write or not meet((*write.early, *write.tags), tag):
                    continue
                if is_over and when < write.ending:
                    wrong = "stale"
                elif 0 < write.lapsed < started and when < write.landed:
                    wrong = "stale after doubt"
                elif is_kept and is_over and self.clock < write.until:
                    wrong = "kept in doubt"
                elif is_kept and 0 < write.begun < started and not write.ending and meet(write.early, tag):
                    wrong = "kept"
                else:
                    continue
                at = f"begun at {write.begun}, ended at {write.ended}, late effect at {write.landed}"
                self.broken.setdefault(wrong, f"{name} of {started} has {tag} of {when}, and a write of it: {at}")


def play(scene: Scene, seed: int, *, in_a_loop: bool, without: Collection[str] = ()) -> Process:
    """Let a random interleaving happen. Now and then a call stands still for a while, in which others may do much."""
    random = Random(seed)
    process = Process(without, scene, random)
    reads, writes = scene.many
    starts = [(process.read, scene.reads)] * reads + [(process.write, scene.writes)] * writes
    random.shuffle(starts)
    actors: dict[Steps[object], Callable[[], bool]] = {}
    still: dict[Steps[object], int] = {}
    share = random.choice((0.0, 0.03, 0.1))
    while starts or actors:
        ready = [actor for actor, condition in actors.items() if condition()]
        if starts and len(actors) < 4 and (not ready or random.random() < 0.2):
            start, names = starts.pop()
            actors[start(random.choice(names.split()), random.choice([*SESSIONS]))] = AWAIT
            continue
        if not ready:
            process.broken["hangs"] = f"{len(actors)} calls wait for ever"
            break
        actor = random.choice([one for one in ready if one not in still] or ready)
        still = {one: turns - 1 for one, turns in still.items() if turns and one is not actor}
        if random.random() < share:
            still[actor] = random.randrange(60)
        condition = None
        try:
            while condition is None:
                if scene.time and random.random() < scene.time:
                    process.pass_time()
                condition = next(actor)
                if not in_a_loop:
                    break
            actors[actor] = condition or AWAIT
        except (StopIteration, Failed):
            del actors[actor]
    return process
