"""Counts false alarms, and what is found."""

from __future__ import annotations

import ast
import random
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from agent_cache.recording import Baseline, Cassette, Tolerance
from benchmarks.drift.runs import LEAST_CALLS, SHAPES, Call, Injector, RunRecorder, Scene, calls_of
from benchmarks.recorded_runs import RETAIL_SETS, Run, load_rows
from benchmarks.retail.store import READ_TOOLS, WRITE_TOOLS, RetailStore

REPEATS: Final = 3
RawRun: TypeAlias = tuple[str, bool, list[Call]]
"""Task, success and calls of a run."""
_LISTS: Final = ("item_ids", "new_item_ids")


@dataclass(slots=True)
class Counts:
    """What was found, of how many.

    Attributes:
        alarms, repeats: repeats with a drift, and all.
        found, injected: changed runs with a drift, and all; by kind of the change.
        in_hole: of those that were not found, the ones whose change the tape cannot know; by kind.
    """

    alarms: int = 0
    repeats: int = 0
    found: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    in_hole: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def missed(self) -> int:
        """Changes that were not found, and that the tape knows."""
        return self.injected.total() - self.found.total() - self.in_hole.total()


class Measurement:
    """Records and compares.

    Args:
        store: what the runs start from.
        runs: recorded runs of agents; those of less than three calls are left out.
    """

    def __init__(self, store: RetailStore, runs: Iterable[Run]) -> None:
        self._recorder = RunRecorder(store)
        self._calls = [(run.id, calls) for run in runs if len(calls := calls_of(run)) >= LEAST_CALLS]
        self._injector = Injector(store)
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0

    def __len__(self) -> int:
        return len(self._calls)

    def close(self) -> None:
        """Delete the recordings."""
        self._folder.cleanup()

    async def shape(self, shape: str, *, repeats: int = REPEATS, advance: Callable[[], None] = lambda: None) -> Counts:
        """Repeat each run in one shape, and change it in each way that it has a place for."""
        counts = Counts()
        for place, (name, calls) in enumerate(self._calls):
            other = self._about_others(place) if shape == "two agents" else ()
            seed = zlib.crc32(f"{name} {shape}".encode())
            scene = Scene(shape, calls, other, seed)
            first = await self._made(scene)
            baseline = Baseline(first)
            for number in range(1, repeats + 1):
                again = await self._made(Scene(shape, calls, other, seed + 7919 * number, is_warm=number == repeats))
                counts.repeats += 1
                if drifts := baseline.compare(again):
                    counts.alarms += 1
                    counts.examples.append(f"{shape}, {name}: {drifts[0]}")
            for kind in Injector.KINDS:
                await self._inject(kind, scene, baseline, counts)
            advance()
        return counts

    def _about_others(self, place: int) -> list[Call]:
        """The calls of the next run that has no customer and no order in common with this one."""
        own = _entities(self._calls[place][1])
        following = (*self._calls[place + 1 :], *self._calls[:place])
        return next((calls for _, calls in following if own.isdisjoint(_entities(calls))), [])

    async def _inject(self, kind: str, scene: Scene, baseline: Baseline, counts: Counts) -> None:
        chance = random.Random(zlib.crc32(f"{kind} {scene.seed}".encode()))
        injection = self._injector.inject(kind, scene, chance)
        if injection is None:
            return
        changed = await self._made(injection.scene)
        counts.injected[kind] += 1
        if baseline.compare(changed):
            counts.found[kind] += 1
        elif injection.is_in_hole:
            counts.in_hole[kind] += 1
        else:
            counts.examples.append(f"{scene.shape}: {kind} not found: {scene.calls} and {injection.scene.calls}")

    async def volatile(self, runs: int, *, advance: Callable[[], None] = lambda: None) -> tuple[Counts, Counts]:
        """Runs whose answers have request ids: with one recording as the baseline, and with two."""
        one, two = Counts(), Counts()
        for name, calls in self._calls[:runs]:
            seed = zlib.crc32(name.encode())
            scenes = [Scene("in sequence", calls, seed=seed + 7919 * number, is_volatile=True) for number in range(3)]
            first, second, third = [await self._made(scene) for scene in scenes]
            both = Baseline(first, second)
            for baseline, counts in ((Baseline(first), one), (both, two)):
                counts.repeats += 1
                counts.alarms += bool(baseline.compare(third))
            chance = random.Random(seed)
            kind = chance.choice(Injector.KINDS)
            await self._inject(kind, scenes[2], both, two)
            advance()
        return one, two

    async def _made(self, scene: Scene) -> Cassette:
        self._count = (self._count + 1) % 8  # a loaded cassette reads its file, also when it has been replaced
        return await self._recorder.record(scene, Path(self._folder.name) / f"{self._count}.jsonl")


def _entities(calls: Iterable[Call]) -> set[str]:
    names = ("order_id", "user_id", "email", "last_name")
    return {str(arguments[name]).lower() for _, arguments in calls for name in names if name in arguments}


# Natural runs


@dataclass(slots=True)
class Natural:
    """Other runs of the task of a successful run, compared with it. Alarms are drifts that are critical.

    Attributes:
        alarms, successes: alarms of successful runs, and all of them.
        found, failures: alarms of runs that failed, and all of them.
    """

    alarms: int = 0
    successes: int = 0
    found: int = 0
    failures: int = 0


def same_items(expected: dict[str, Any], actual: dict[str, Any]) -> bool:
    """Whether two writes are about the same items: in any order, and sent as lists or as their texts."""
    return _of_items(expected) == _of_items(actual)


def _of_items(arguments: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    lists = [arguments[name] for name in _LISTS if name in arguments]
    items = [ast.literal_eval(one) if isinstance(one, str) else one for one in lists]
    rest = {name: value for name, value in arguments.items() if name not in _LISTS}
    return rest, sorted(zip(*items, strict=False))


class TextLists:
    """A store that also takes lists as texts, as the recorded tools did.

    Args:
        store: answers.
    """

    def __init__(self, store: RetailStore) -> None:
        self._store = store
        self.owner_of = store.owner_of

    def copy(self) -> TextLists:
        """A copy with the same records."""
        return TextLists(self._store.copy())

    def answer(self, tool: str, arguments: Any) -> str:
        """Run one tool and return its text."""
        read = {
            name: ast.literal_eval(value) if name in _LISTS and isinstance(value, str) else value
            for name, value in arguments.items()
        }
        return self._store.answer(tool, read)


def raw_runs(directory: Path, limit: int | None = None) -> list[RawRun]:
    """The runs of the larger retail set, with the arguments as the model sent them."""
    return [
        (
            row["id"].rpartition("/")[2],
            bool(row["success"]),
            [(call["tool"], call["args"]) for call in row["calls"] if call["tool"] in READ_TOOLS + WRITE_TOOLS],
        )
        for row in load_rows(directory, RETAIL_SETS[0], limit)
    ]


async def natural(
    runs: Sequence[RawRun], store: RetailStore, advance: Callable[[], None] = lambda: None
) -> tuple[Natural, Natural]:
    """Compare each successful run with the others of its task: as they are, and with `same_items`.

    Args:
        runs: of `raw_runs`.
        store: what they start from.
        advance: is called with each run.
    """
    tasks: dict[str, list[tuple[bool, Cassette]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        async for task, success, cassette in _recorded(runs, store, Path(folder)):
            tasks[task].append((success, cassette))
            advance()
        plain = Tolerance(fail_on="critical")
        same = Tolerance(
            same_arguments={
                "modify_pending_order_items": same_items,
                "return_delivered_order_items": same_items,
                "exchange_delivered_order_items": same_items,
            },
            fail_on="critical",
        )
        outcomes = Natural(), Natural()
        for group in tasks.values():
            for success, cassette in group:
                if not success or not len(cassette):
                    continue
                baseline = Baseline(cassette)
                for tolerance, counts in zip((plain, same), outcomes, strict=True):
                    for other_success, other in group:
                        if other is not cassette:
                            _count(baseline, other, tolerance, counts, is_success=other_success)
    return outcomes


def _count(baseline: Baseline, other: Cassette, tolerance: Tolerance, counts: Natural, *, is_success: bool) -> None:
    is_alarm = tolerance.fails(baseline.compare(other, tolerance))
    if is_success:
        counts.successes += 1
        counts.alarms += is_alarm
    else:
        counts.failures += 1
        counts.found += is_alarm


async def _recorded(
    runs: Sequence[RawRun], store: RetailStore, folder: Path
) -> AsyncIterator[tuple[str, bool, Cassette]]:
    recorder = RunRecorder(TextLists(store))
    for number, (task, success, calls) in enumerate(runs):
        yield task, success, await recorder.record(Scene(SHAPES[0], calls, seed=number), folder / f"{number}.jsonl")
