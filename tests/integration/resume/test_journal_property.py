"""A random run, killed at each byte of its journal and resumed: each write once, and no answered model call twice."""

import asyncio
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import strategies as st

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import InDoubtError, JournalError
from agent_cache.recording import cached_llm_call, intercept, replay
from agent_cache.resume import Journal, NotDone, idempotency_key
from agent_cache.resume.journal import read_journal
from agent_cache.testing import reset
from tests.harness.searches import searched


class Receiver:
    """What is outside of the process: it outlives it."""

    def __init__(self, done=()):
        self.done = dict(done)  # what each key has done
        self.writes = Counter()
        self.models = Counter()
        self.reads = Counter()


WORLD = Receiver()
PACE = random.Random()  # how fast things are, which is different in each process


async def pause():
    for _ in range(PACE.randrange(4)):
        await asyncio.sleep(0)


@AgentCache("thing:{label}", name="prop:read")
async def read(label: str) -> str:
    WORLD.reads[label] += 1
    await pause()
    return f"read {label}"


@cached_llm_call(name="prop:ask")
async def ask(label: str) -> dict:
    await pause()
    WORLD.models[label] += 1
    return {"text": f"answer to {label}", "nonce": random.random()}


@AgentCacheInvalidator("thing:{label}", name="prop:write")
async def write(label: str) -> str:
    return await effect(label)


@intercept(kind="write", name="prop:note")
def note(label: str) -> str:
    WORLD.writes[label] += 1
    WORLD.done[idempotency_key()] = f"done {label}"
    return f"done {label}"


@AgentCacheInvalidator("thing:{label}", name="prop:nested_write")
async def nested_write(label: str) -> str:
    inner = await write(f"{label}/inner")
    return f"{inner}, {await effect(label)}"


@AgentCache("thing:{label}", name="prop:look")
async def look(label: str) -> str:
    """A read that makes a write."""
    return f"{await write(f'{label}/inner')}, {await read(label)}"


async def effect(label):
    await pause()
    WORLD.writes[label] += 1
    result = WORLD.done[idempotency_key()] = f"done {label}"
    await pause()
    return result


@AgentCacheInvalidator("thing:{label}", name="prop:refuse")
async def refuse(label: str) -> None:
    raise LookupError(await effect(label))


@intercept(name="prop:step")
async def step(program: list, label: str) -> list:
    return [await run(one, f"{label}.{at}") for at, one in enumerate(program)]


CALLS = {"read": read, "look": look, "ask": ask, "write": write, "nested": nested_write}


async def run(operation, label):
    kind, *inside = operation
    if kind == "note":
        return note(label)
    if kind == "refuse":
        try:
            return await refuse(label)
        except LookupError as error:  # also a call that has raised is made once
            return error.args[0]
    if kind in CALLS:
        return await CALLS[kind](label)
    if kind == "step":
        return await step(inside[0], label)
    return await asyncio.gather(*[everything(one, f"{label}.{at}") for at, one in enumerate(inside[0])])


async def everything(program, label="top"):
    return [await run(one, f"{label}.{at}") for at, one in enumerate(program)]


async def session(directory, program, **options):
    reset()  # another process
    async with AgentCacheSession("run", journal=Journal(directory, **options)):
        return await everything(program)


simple = st.sampled_from(["read", "look", "ask", "write", "note", "nested", "refuse"]).map(lambda kind: (kind,))
programs = st.lists(
    st.recursive(
        simple,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda body: ("step", body)),
            st.lists(st.lists(inner, min_size=1, max_size=2), min_size=2, max_size=3).map(lambda all_: ("all", all_)),
        ),
        max_leaves=5,
    ),
    min_size=1,
    max_size=3,
)


def stored(path):
    """The calls of a journal that have ended, its writes in doubt, and all its writes; none without a header."""
    try:
        found = read_journal(path)
    except JournalError:
        return [], [], []
    return found.calls, found.in_doubt, found.intents.values()


def killed(tmp_path, whole, size, done, chance):
    """A directory with what a process has left that was killed when its journal had this size."""
    directory = Path(tmp_path) / "killed"
    directory.mkdir(exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    (directory / "run.jsonl").write_bytes(whole[:size])
    calls, doubts, intents = stored(directory / "run.jsonl")
    global WORLD
    WORLD = Receiver()
    enclosing = {one.parent for one in calls}
    for one in intents:
        is_first = one.name == "prop:nested_write" and one.id not in enclosing
        if one in doubts and (is_first or chance.random() < 0.5):
            continue  # a nested write takes effect after its inner one has ended
        WORLD.writes[one.arguments["label"]] += 1
        WORLD.done[one.key] = done[one.key]
    WORLD.models.update(one.arguments["label"] for one in calls if one.kind == "llm")
    return directory, doubts


def check(arguments, key):
    assert arguments["label"]
    return WORLD.done.get(key, NotDone)


def sizes(whole):
    """Each end of a line, and a place in the middle of each line."""
    start = 0
    for line in whole.splitlines(keepends=True):
        yield start + len(line) // 2
        start += len(line)
        yield start


def without_trailer(whole):
    lines = whole.splitlines(keepends=True)
    assert lines[-1].startswith(b'{"trailer"')
    return b"".join(lines[:-1])


@searched(4, 150, programs, st.integers(0, 2**32))
def test_each_write_takes_effect_once_wherever_the_process_was_killed(program, seed):
    with tempfile.TemporaryDirectory() as folder:
        every_kill(folder, program, random.Random(seed))


def kill_and_resume(tmp_path, program, chance, whole, size, first):
    """Kill a process when its journal has this size, and resume its run. Returns the journal then, without its end."""
    place, doubts = killed(tmp_path, whole, size, first.done | WORLD.done, chance)
    PACE.seed(chance.random())
    if doubts:
        before = WORLD.writes.copy()
        with pytest.raises(InDoubtError) as raised:
            asyncio.run(session(place, program))
        assert raised.value.key in {one.key for one in doubts}
        assert not [label for label in before if WORLD.writes[label] > before[label]]
    calls, _, _ = stored(place / "run.jsonl")
    answered = {one.arguments["label"] for one in calls if one.kind == "llm"}
    asked = WORLD.models.copy()
    asyncio.run(session(place, program, on_doubt=dict.fromkeys((write, note, nested_write, refuse), check)))
    assert WORLD.writes == first.writes, (size, doubts)
    assert set(WORLD.models) == set(first.models)
    assert [label for label in answered if WORLD.models[label] > asked[label]] == []
    return without_trailer((place / "run.jsonl").read_bytes())


def every_kill(tmp_path, program, chance):
    global WORLD
    WORLD = Receiver()
    directory = Path(tmp_path) / "first"
    result = asyncio.run(session(directory, program))
    first = WORLD
    sealed = (directory / "run.jsonl").read_bytes()
    whole = without_trailer(sealed)
    for size in sizes(whole):
        again = kill_and_resume(tmp_path, program, chance, whole, size, first)
        later = [one for one in sizes(again) if one > size]
        if later and chance.random() < 0.2:  # the process that resumes is killed, too
            kill_and_resume(tmp_path, program, chance, again, chance.choice(later), first)
    place = Path(tmp_path) / "killed"
    with replay(directory / "run.jsonl", strict=True):
        assert asyncio.run(everything(program)) == result
    with replay(place / "run.jsonl", strict=True):
        assert asyncio.run(everything(program)) == result
