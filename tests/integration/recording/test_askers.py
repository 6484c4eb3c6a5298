"""Who asks is part of a recorded call: what keeps callers apart in the cache keeps their lines apart in a recording.

Each way to tell callers apart (`vary=`, `key=`, the tenant of a session, `vary` of a toolbox, `vary=` of a function) is
tried with calls that are equal otherwise, and whose callers come in another order in the replay.
"""

import asyncio
import contextvars
import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, Read, Toolbox, Write
from agent_cache.recording import (
    CassetteError,
    DivergenceError,
    cached_llm_call,
    fork,
    intercept,
    record,
    replay,
)
from agent_cache.resume import Journal

USER = contextvars.ContextVar("user", default="nobody")
RUNS = Counter()


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def no_runs():
    RUNS.clear()


def answer(what):
    RUNS[what, USER.get()] += 1
    return f"{what} of {USER.get()}"


@AgentCache("mail", vary=USER.get, name="askers:by_vary")
async def by_vary(n: int) -> str:
    return answer("mail")


@AgentCache("mail", key=lambda n: (USER.get(), n), name="askers:by_key")
async def by_key(n: int) -> str:
    return answer("mail")


@AgentCache("mail", vary=USER.get, name="askers:stream")
async def stream(n: int):
    yield answer("mail")
    yield "end"


@AgentCache("mail", name="askers:plain")
async def plain(n: int) -> str:
    return answer("mail")


@AgentCacheInvalidator("mail", name="askers:send")
async def send(n: int) -> str:
    return answer("sent")


@cached_llm_call(name="askers:ask")
async def ask(n: int) -> str:
    return answer("words")


@intercept(name="askers:look", vary=lambda n: USER.get())
async def look(n: int) -> str:
    return answer("look")


@cached_llm_call(name="askers:think", vary=lambda n: USER.get())
async def think(n: int) -> str:
    return answer("thought")


BOX = Toolbox({"read": Read("mail"), "pay": Write("mail")}, namespace="askers")


async def box_read(n):
    async def run():
        return answer("box")

    return await BOX.call("read", {"n": n}, run, vary=USER.get())


async def box_write(n):
    async def run():
        return answer("paid")

    return await BOX.call("pay", {"n": n}, run, vary=USER.get())


async def chunks(n):
    first, _ = [chunk async for chunk in stream(n)]
    return first


def in_tenant(tool):
    async def call(n):
        async with AgentCacheSession(tenant=USER.get()):
            return await tool(n)

    return call


class RunContext:
    __module__ = "pydantic_ai.tools"

    def __init__(self, deps):
        self.deps = deps


@AgentCache("mail", name="askers:by_context")
async def by_context(ctx: RunContext) -> str:
    return answer("mail")


@AgentCacheInvalidator("mail", name="askers:write_by_context")
async def write_by_context(ctx: RunContext) -> str:
    return answer("sent")


async def box_by_context(ctx):
    async def run():
        return answer("box")

    return await BOX.call("read", {}, run, context=ctx)


READS = {"read": by_context, "read of a toolbox": box_by_context}
WRITES = {"write": write_by_context}


def of_user(tool, deps):
    async def call(_):
        return await tool(RunContext(deps(USER.get())))

    return call


WAYS = {
    **{f"context of a {name}": of_user(tool, lambda user: {"user": user}) for name, tool in (READS | WRITES).items()},
    "vary": by_vary,
    "key": by_key,
    "vary of a stream": chunks,
    "vary of a toolbox, read": box_read,
    "vary of a toolbox, write": box_write,
    "tenant, read": in_tenant(plain),
    "tenant, write": in_tenant(send),
    "tenant, model": in_tenant(ask),
    "vary of intercept": look,
    "vary of cached_llm_call": think,
}


async def as_user(user, tool):
    USER.set(user)
    return await tool(1)


async def agent(tool, users):
    return [await asyncio.create_task(as_user(user, tool)) for user in users]


def calls_of(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"id":')]


@pytest.mark.parametrize("way", WAYS)
async def test_each_asker_gets_what_was_recorded_for_it_and_nobody_another_ones(tmp_path, way):
    """In another order of askers, too. A line has a digest of the asker, and not its name."""
    path = tmp_path / "run.jsonl"
    with record(path):
        recorded = await agent(WAYS[way], ["adalovelace", "bob"])
    before = RUNS.copy()
    for strict in (False, True):
        with replay(path, strict=strict):
            assert await agent(WAYS[way], ["bob", "adalovelace"]) == recorded[::-1]
    with pytest.raises(DivergenceError, match="another asker"), replay(path):
        await agent(WAYS[way], ["eve"])
    assert recorded[0] != recorded[1]
    assert before == RUNS
    one, other = calls_of(path)
    assert one["digest"] == other["digest"]
    assert one["asker"] != other["asker"]
    assert "lovelace" not in str([{**call, "outcome": None} for call in (one, other)])


@pytest.mark.parametrize("way", WAYS)
async def test_a_resumed_run_answers_each_asker_from_its_own_lines(tmp_path, way):
    async def run(users, dies_after=None):
        async with AgentCacheSession("job", journal=Journal(tmp_path)):
            found = []
            for user in users:
                found += await agent(WAYS[way], [user])
                if user == dies_after:
                    raise Killed
            return found

    with pytest.raises(Killed):
        await run(["ada"], dies_after="ada")
    found = await run(["bob", "ada"])
    assert [one.rpartition(" ")[2] for one in found] == ["bob", "ada"]
    assert all(count == 1 for count in RUNS.values()), RUNS


@pytest.mark.parametrize("way", WAYS)
async def test_a_fork_answers_each_asker_from_its_own_lines(tmp_path, way):
    path = tmp_path / "run.jsonl"
    with record(path):
        recorded = await agent(WAYS[way], ["ada", "bob"])
    with fork(path, at=None, to=tmp_path / "branch.jsonl"):
        assert await agent(WAYS[way], ["bob", "ada"]) == recorded[::-1]


PROGRAM = """
import asyncio, enum, sys
from agent_cache import AgentCache, AgentCacheSession
from agent_cache.recording import record, replay

class Other(enum.Enum):
    A = 1

class User(enum.Enum):
    ADA = 1
    BOB = 2

asker = [Other.A] if sys.argv[1] == "record" else []

@AgentCache("mail", vary=lambda: asker[-1])
async def mail(n):
    return asker[-1].name

async def agent(users):
    for user in users:
        asker.append(user)
        async with AgentCacheSession(tenant=user.name):
            print(await mail(1))

with (record if sys.argv[1] == "record" else replay)(sys.argv[2]):
    if asker:
        asyncio.run(agent([Other.A, User.ADA, User.BOB]))
    else:
        asyncio.run(agent([User.BOB, User.ADA]))
"""


def test_an_asker_is_the_same_in_another_process(tmp_path):
    """Classes have other numbers there, and hashes another seed."""
    path = tmp_path / "run.jsonl"
    shown = []
    for seed, mode in enumerate(("record", "replay")):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, mode, path],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=False,
        )
        shown.append((run.stdout.split(), run.stderr))
    assert shown == [(["A", "ADA", "BOB"], ""), (["BOB", "ADA"], "")]


async def test_an_asker_without_identity_is_refused_by_a_recording(tmp_path):
    @AgentCache("mail", vary=object, name="askers:of_no_identity")
    async def of_no_identity(n: int) -> str:
        return answer("mail")

    with pytest.raises(CassetteError, match=r"vary="), record(tmp_path / "run.jsonl"):
        await of_no_identity(1)
    assert not RUNS


# Askers that cannot be told


class Hidden:
    """Holds its user where nobody can compare it."""

    def __init__(self, user):
        self.user = lambda: user


@pytest.mark.parametrize("way", READS | WRITES)
@pytest.mark.parametrize("strict", [False, True])
async def test_a_replay_refuses_a_call_whose_asker_cannot_be_told(tmp_path, way, strict):
    path, call = tmp_path / "run.jsonl", of_user((READS | WRITES)[way], Hidden)
    with record(path):
        assert [one.rpartition(" ")[2] for one in await agent(call, ["ada", "bob"])] == ["ada", "bob"]
    assert {one["asker"] for one in calls_of(path)} == {"unknown"}
    with pytest.raises(DivergenceError, match=r"vary=.*shared=True"), replay(path, strict=strict):
        await agent(call, ["bob"])
    assert RUNS.total() == 2


@pytest.mark.parametrize("way", READS)
async def test_a_resumed_run_makes_a_read_again_whose_asker_cannot_be_told(tmp_path, way):
    call = of_user(READS[way], Hidden)
    with pytest.raises(Killed):
        async with AgentCacheSession("job", journal=Journal(tmp_path)):
            await agent(call, ["ada"])
            raise Killed
    async with AgentCacheSession("job", journal=Journal(tmp_path)):
        (found,) = await agent(call, ["bob"])
    assert found.endswith("bob")


@pytest.mark.parametrize("way", WRITES)
async def test_a_resumed_run_neither_repeats_nor_answers_a_write_whose_asker_cannot_be_told(tmp_path, way):
    call = of_user(WRITES[way], Hidden)
    with pytest.raises(Killed):
        async with AgentCacheSession("job", journal=Journal(tmp_path)):
            await agent(call, ["ada"])
            raise Killed
    with pytest.raises(CassetteError, match=r"vary=.*shared=True"):
        async with AgentCacheSession("job", journal=Journal(tmp_path)):
            await agent(call, ["bob"])
    assert RUNS.total() == 1
