"""Counts false alarms, and what is found."""

from __future__ import annotations

import random
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent_cache.recording import Baseline, Cassette
from benchmarks.drift.runs import LEAST_CALLS, Call, Injector, RunRecorder, Scene, calls_of
from benchmarks.recorded_runs import Run
from benchmarks.retail.store import RetailStore


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

    async def shape(self, shape: str, *, repeats: int) -> Counts:
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

    async def volatile(self, runs: int) -> tuple[Counts, Counts]:
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
        return one, two

    async def _made(self, scene: Scene) -> Cassette:
        self._count = (self._count + 1) % 8  # a loaded cassette reads its file, also when it has been replaced
        return await self._recorder.record(scene, Path(self._folder.name) / f"{self._count}.jsonl")


def _entities(calls: Iterable[Call]) -> set[str]:
    names = ("order_id", "user_id", "email", "last_name")
    return {str(arguments[name]).lower() for _, arguments in calls for name in names if name in arguments}
