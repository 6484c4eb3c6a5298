"""The rule of coherence in one process: whole it has no counterexample, and each part that is taken out has one.

`-rP` shows what leads to it, event by event.
"""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.harness.slow import slow
from tests.properties.versions_model import PARTS, SCENES, Process, Scene, play

ENOUGH = 300
"""So many interleavings are tried, from the one on in which a part was missed when this was written."""


def shown(seed: int, process: Process) -> str:
    wrong = [f"{name}: {sentence}" for name, sentence in process.broken.items()]
    return "\n".join([f"Interleaving {seed}", *process.trace, *wrong, ""])


@pytest.mark.parametrize("seeds", [50, *slow(5_000)])
@pytest.mark.parametrize("in_a_loop", [False, True], ids=["threads", "one loop"])
@pytest.mark.parametrize("scene", SCENES)
def test_the_whole_rule_has_no_counterexample(scene: str, in_a_loop: bool, seeds: int):
    happened: Counter[str] = Counter()
    for seed in range(seeds):
        process = play(SCENES[scene], seed, in_a_loop=in_a_loop)
        assert not process.broken, shown(seed, process)
        happened += process.happened
    assert all(happened[what] > seeds / 50 for what in ("hits", "joins", "stores")), f"little happens: {happened}"


MISSED = [
    (part, in_a_loop)
    for part, described in PARTS.items()
    for in_a_loop in ([False] if described.seed_of_loop < 0 else [False, True])
    if described.scene
]


@pytest.mark.parametrize(("part", "in_a_loop"), MISSED)
def test_a_part_that_is_taken_out_is_missed(part: str, in_a_loop: bool):
    _, effect, scene, *seeds = PARTS[part]
    first = seeds[in_a_loop]
    for seed in range(first, first + ENOUGH):
        process = play(SCENES[scene], seed, in_a_loop=in_a_loop, without=(part,))
        if effect in process.broken:
            sys.stdout.write(shown(seed, process))
            return
    pytest.fail(f"nothing is {effect!r} without {part!r}")


NEEDLESS = {
    "since checked": ("read entity, " + "write x, read entity, write y, read entity, " * 4, "entity", 1),
    "own since": ("read user, read entity, write report, read report, read report", "report", 1),
    "lapsed before since": ("write lost, time, time, read entity, read entity", "entity", 1),
    "given at the end": ("write giving, read entity", "entity", 0),
}
"""What is called, one after the other; a tool that is read; how often it runs under the whole rule."""


@pytest.mark.parametrize("part", NEEDLESS)
def test_a_part_saves_runs_of_a_tool(part: str):
    calls, tool, runs = NEEDLESS[part]

    def runs_of(process: Process) -> int:
        for call in calls.strip(", ").split(", "):
            kind, _, name = call.partition(" ")
            if kind == "time":
                process.pass_time()
            else:
                for _ in process.read(name) if kind == "read" else process.write(name):
                    if kind == "write" and process.writes[-1].ended:
                        break
        assert not process.broken, process.broken
        return process.happened[tool]

    assert runs_of(Process((), Scene(generation=3))) == runs
    assert runs_of(Process((part,), Scene(generation=3))) > runs


def test_every_part_is_taken_out():
    assert {part for part, _ in MISSED} | {*NEEDLESS} == {*PARTS}
