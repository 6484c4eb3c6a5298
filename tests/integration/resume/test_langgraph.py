"""Checkpoints of LangChain and LangGraph, restored into the real packages."""

import operator
import types
from typing import Annotated, Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from agent_cache.errors import CheckpointError, RestoreError
from agent_cache.resume import LangChainState, restore
from tests.harness.cassettes import stored_checkpoint as checkpoint

MESSAGES = [
    SystemMessage("be brief", id="0"),
    HumanMessage("hi", id="1"),
    AIMessage("", id="2", tool_calls=[{"name": "look", "args": {"a": 1}, "id": "c1"}]),
    ToolMessage("found", id="3", tool_call_id="c1"),
]


class State(MessagesState):
    steps: Annotated[list[str], operator.add]
    plan: str


class Saver(InMemorySaver):
    """A checkpointer that can be made to fail at a write."""

    fails_at = -1
    puts = 0

    async def aput(self, *arguments: Any) -> Any:
        self.puts += 1
        if self.puts == self.fails_at:
            raise OSError("the disk is full")
        return await super().aput(*arguments)


def graph(saver: Any = None, thread: str = "t", state: Any = State, **options: Any) -> Any:
    model = GenericFakeChatModel(messages=iter([AIMessage(f"answer {number}") for number in range(9)]))

    async def plan(state):
        return Command(goto="answer", update={"steps": ["plan"], "plan": "first"})

    async def answer(state):
        return {"messages": [await model.ainvoke(state["messages"])], "steps": ["answer"]}

    async def review(state):
        return {"steps": ["review"], "plan": "reviewed"}

    built = StateGraph(state)
    for node in (plan, answer, review):
        built.add_node(node.__name__, node)
    built.add_edge(START, "plan").add_edge("review", END)
    built.add_conditional_edges("answer", lambda state: "review" if state["steps"].count("answer") < 3 else END)
    compiled = built.compile(checkpointer=Saver() if saver is None else saver, **options)
    return compiled.with_config({"configurable": {"thread_id": thread}})


async def snapshot(target: Any) -> Any:
    return await target.aget_state(target.config)


async def test_messages_come_back_as_objects_of_their_classes():
    made = checkpoint(LangChainState(messages=MESSAGES))
    assert made.framework == "langchain"
    agent = types.SimpleNamespace(messages=[HumanMessage("old")])
    assert await restore(made, agent) is agent
    assert agent.messages == MESSAGES
    listed: list[Any] = []
    await restore(made, listed)
    assert listed == MESSAGES


async def test_what_a_graph_returns_is_a_state():
    returned = await graph().ainvoke({"messages": [("user", "hi")]})
    state = checkpoint(returned).state
    assert isinstance(state, LangChainState)
    assert state.values == {"steps": ["plan", "answer", "review"], "plan": "reviewed"}
    assert [message["type"] for message in state.messages] == ["human", "ai"]


async def test_a_thread_goes_back_to_its_checkpoint_and_on_from_there():
    target = graph()
    await target.ainvoke({"messages": [("user", "hi")]})
    before = await snapshot(target)
    made = checkpoint(before)
    await target.ainvoke({"messages": [("user", "more")]})
    assert len((await snapshot(target)).values["messages"]) == 4
    assert await restore(made, target) is target
    after = await snapshot(target)
    assert (after.values, after.next) == (before.values, before.next)
    assert after.parent_config == before.config  # as LangGraph's own time travel does it
    await target.ainvoke({"messages": [("user", "again")]})
    assert [m.content for m in (await snapshot(target)).values["messages"]] == ["hi", "answer 0", "again", "answer 2"]


@pytest.mark.parametrize("node", ["plan", "answer", "review"])
async def test_a_new_process_gets_the_values_and_runs_what_was_next(node):
    first = graph(interrupt_before=[node])
    await first.ainvoke({"messages": [("user", "hi")]})
    before = await snapshot(first)
    assert before.next == (node,)
    await first.ainvoke(None)
    for target in (graph(thread="another"), first):
        await restore(checkpoint(before), target)
        after = await snapshot(target)
        assert (after.values, after.next) == (before.values, before.next)
        await target.ainvoke(None)
        assert (await snapshot(target)).values["steps"] == ["plan", "answer", "review"]


async def test_a_thread_that_had_ended_has_ended_also_in_a_graph_that_would_go_on():
    built = StateGraph(MessagesState).add_node("again", lambda state: {"messages": []}).add_edge(START, "again")
    built.add_conditional_edges("again", lambda state: "again")
    target = built.compile(checkpointer=InMemorySaver()).with_config({"configurable": {"thread_id": "t"}})
    await restore(checkpoint(LangChainState(messages=MESSAGES)), target)
    after = await snapshot(target)
    assert (after.values["messages"], after.next) == (MESSAGES, ())


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (LangChainState(values={"unknown": 1}), "no channel 'unknown'"),
        (LangChainState(next=["unknown"]), "no node 'unknown'"),
        (LangChainState(next=["plan", "plan"]), "next would differ"),
        (LangChainState(messages=[{"no": "message"}]), r"messages\[0\]"),
    ],
)
@pytest.mark.parametrize("is_fresh", [True, False])
async def test_a_state_that_the_graph_cannot_have_leaves_the_thread_as_it_was(state, reason, is_fresh):
    target = graph(interrupt_before=["answer"])
    if not is_fresh:
        await target.ainvoke({"messages": [("user", "hi")]})
    before = await snapshot(target)
    with pytest.raises((RestoreError, CheckpointError), match=reason):
        await restore(checkpoint(state), target)
    after = await snapshot(target)
    assert (after.values, after.next) == (before.values, before.next)
    assert is_fresh == ([each async for each in target.aget_state_history(target.config)] == [])


@pytest.mark.parametrize("write", [1, 2])
async def test_a_thread_whose_database_fails_is_as_it_was(write):
    target = graph(saver := Saver(), interrupt_before=["answer"])
    await target.ainvoke({"messages": [("user", "hi")]})
    before = await snapshot(target)
    saver.fails_at = saver.puts + write
    with pytest.raises(RestoreError):
        await restore(checkpoint(LangChainState(values={"steps": [], "plan": ""}, next=["plan", "plan"])), target)
    after = await snapshot(target)
    assert (after.values, after.next) == (before.values, before.next)
