"""A graph of LangGraph that waits for somebody makes its node again: what the journal knows is not made twice."""

import asyncio
from collections import Counter

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agent_cache import AgentCacheInvalidator, AgentCacheSession
from agent_cache.recording import intercept
from agent_cache.resume import InDoubtError, Journal, JournalEnded, idempotency_key
from agent_cache.resume.journal import read_journal

WRITES = Counter()
KEYS = []
CONFIG = {"configurable": {"thread_id": "t"}}


@pytest.fixture(autouse=True)
def no_writes():
    WRITES.clear()
    KEYS.clear()


@AgentCacheInvalidator("order:{order}", name="waiting:reserve")
async def reserve(order: str) -> str:
    WRITES["reserve"] += 1
    return f"reserved {order}"


@AgentCacheInvalidator("order:{order}", name="waiting:cancel")
async def cancel(order: str) -> str:
    """A write that asks in its middle."""
    WRITES["cancel"] += 1
    KEYS.append(idempotency_key())
    return f"cancelled, {interrupt('really?')}"


@intercept(name="waiting:book")
async def book(order: str) -> str:
    return f"{await reserve(order)}, {interrupt('really?')}"


def graph(tool, saver=None):
    async def node(state):
        return {"messages": [("ai", await tool("W1"))]}

    builder = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
    return builder.compile(checkpointer=saver or InMemorySaver())


async def both(tool, journal):
    """Ask and answer in one session."""
    made = graph(tool)
    async with AgentCacheSession("job", journal=journal):
        await made.ainvoke({"messages": []}, CONFIG)
        return (await made.ainvoke(Command(resume="yes"), CONFIG))["messages"][-1].content


@pytest.mark.parametrize(
    ("tool", "answer", "writes"),
    [(book, "reserved W1, yes", {"reserve": 1}), (cancel, "cancelled, yes", {"cancel": 2})],
)
def test_a_write_inside_of_a_call_that_waits_is_answered_and_one_that_waits_is_made_again_with_its_key(
    tmp_path, tool, answer, writes
):
    assert asyncio.run(both(tool, Journal(tmp_path, on_doubt="rerun"))) == answer
    assert writes == WRITES
    assert len(set(KEYS)) <= 1
    assert read_journal(tmp_path / "job.jsonl").is_sealed


def test_a_write_that_waits_is_in_doubt_when_it_is_made_again(tmp_path):
    with pytest.raises(InDoubtError):
        asyncio.run(both(cancel, Journal(tmp_path)))
    assert WRITES == {"cancel": 1}


@pytest.mark.parametrize(("tool", "expected"), [(book, {"reserve": 1}), (cancel, {"cancel": 2})])
def test_a_run_that_waits_goes_on_in_another_process(tmp_path, tool, expected):
    saver = InMemorySaver()

    async def ask():
        async with AgentCacheSession("job", journal=Journal(tmp_path)):
            await graph(tool, saver).ainvoke({"messages": []}, CONFIG)

    async def answer(**options):
        async with AgentCacheSession("job", journal=Journal(tmp_path, **options)):
            return (await graph(tool, saver).ainvoke(Command(resume="yes"), CONFIG))["messages"][-1].content

    asyncio.run(ask())
    assert not read_journal(tmp_path / "job.jsonl").is_sealed
    if tool is cancel:
        with pytest.raises(InDoubtError):
            asyncio.run(answer())
        assert WRITES == {"cancel": 1}
    assert asyncio.run(answer(on_doubt="rerun")).endswith("yes")
    assert expected == WRITES
    assert len(set(KEYS)) <= 1
    with pytest.raises(JournalEnded):
        asyncio.run(answer())
