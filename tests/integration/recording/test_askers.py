"""Who asks is part of a recorded call: what keeps callers apart in the cache keeps their lines apart in a recording.

Each way to tell callers apart (`vary=`, `key=`, the tenant of a session, `vary` of a toolbox, `vary=` of a function) is
tried with calls that are equal otherwise, and whose callers come in another order in the replay.
"""

import asyncio
import contextlib
import contextvars
import enum
import json
from collections import Counter

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, Read, Toolbox, Write
from agent_cache.recording import CassetteError, DivergenceError, cached_llm_call, fork, intercept, record, replay
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


@AgentCache("mail", vary=USER.get, name="askers:stream")
async def stream(n: int):
    yield answer("mail")
    yield "end"


async def unwrapped(n: int) -> str:
    return answer("mail")


plain = AgentCache("mail", name="askers:plain")(unwrapped)
by_vary = AgentCache("mail", vary=USER.get, name="askers:by_vary")(unwrapped)
by_key = AgentCache("mail", key=lambda n: (USER.get(), n), name="askers:by_key")(unwrapped)
send = AgentCacheInvalidator("mail", name="askers:send")(unwrapped)
ask = cached_llm_call(name="askers:ask")(unwrapped)
look = intercept(unwrapped, name="askers:look", vary=lambda n: USER.get())
think = cached_llm_call(name="askers:think", vary=lambda n: USER.get())(unwrapped)


BOX = Toolbox({"read": Read("mail"), "pay": Write("mail")}, namespace="askers")


async def box(name, arguments, **options):
    async def run():
        return answer(name)

    return await BOX.call(name, arguments, run, **options)


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


READS = {"read": by_context, "read of a toolbox": lambda ctx: box("read", {}, context=ctx)}
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
    "vary of a toolbox, read": lambda n: box("read", {"n": n}, vary=USER.get()),
    "vary of a toolbox, write": lambda n: box("pay", {"n": n}, vary=USER.get()),
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
    with fork(path, at=None, to=tmp_path / "branch.jsonl"):
        assert await agent(WAYS[way], ["bob", "adalovelace"]) == recorded[::-1]
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
    assert [one.rpartition(" ")[2] for one in await run(["bob", "ada"])] == ["bob", "ada"]
    assert all(count == 1 for count in RUNS.values()), RUNS


class User(enum.Enum):
    ADA = 1


async def test_an_asker_is_the_same_in_another_process(tmp_path):
    """Classes have other numbers there, and hashes another seed."""
    mail = AgentCache("mail", vary=lambda: User.ADA, key=lambda n: {n, "b", 3.5}, name="askers:fixed")(unwrapped)
    with record(tmp_path / "run.jsonl"):
        async with AgentCacheSession(tenant="t"):
            await mail(1)
    assert calls_of(tmp_path / "run.jsonl")[0]["asker"] == "52d0b8902f66af14"


async def test_an_asker_without_identity_is_refused_by_a_recording(tmp_path):
    mail = AgentCache("mail", vary=object, name="askers:of_no_identity")(unwrapped)
    with pytest.raises(CassetteError, match=r"vary="), record(tmp_path / "run.jsonl"):
        await mail(1)
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
    is_made = contextlib.nullcontext() if way in READS else pytest.raises(DivergenceError)
    with is_made, record(path, mode="new_episodes"):
        await agent(call, ["bob"])
    assert RUNS.total() == (3 if way in READS else 2), "a write is not made again"


@pytest.mark.parametrize("way", READS | WRITES)
async def test_a_resumed_run_makes_a_read_again_whose_asker_cannot_be_told_and_never_a_write(tmp_path, way):
    """Nor does it answer the write."""
    call = of_user((READS | WRITES)[way], Hidden)

    async def run(user, *errors):
        async with AgentCacheSession("job", journal=Journal(tmp_path)):
            found.extend(await agent(call, [user]))
            for error in errors:
                raise error

    found = []
    with pytest.raises(Killed):
        await run("ada", Killed())
    if way in READS:
        await run("bob")
    else:
        with pytest.raises(CassetteError, match=r"vary=.*shared=True"):
            await run("bob")
    assert [one.rpartition(" ")[2] for one in found] == ["ada", "bob"][: 2 if way in READS else 1]
    assert RUNS.total() == len(found)
