"""Meta-tools, whose arguments name the tool that runs, and names with a server in front."""

from __future__ import annotations

import json

import pytest

from agent_cache import Inner, Pass, Read, Toolbox, Watch, Write
from agent_cache.testing import reset

RULES = {
    "get_order": Read("order:{order_id}"),
    "cancel_order": Write("order:{order_id}"),
    "clock": Watch(),
    "hand_off": Pass(),
    "execute-tool": Inner(tool="tool_name", arguments="params"),
    "route": Inner(tool="target", arguments="payload"),
}


@pytest.fixture(autouse=True)
def clean():
    reset()
    yield
    reset()


class Agent:
    """Calls tools through a toolbox, and counts their runs."""

    def __init__(self, rules=None, **options):
        self.box = Toolbox(RULES if rules is None else rules, namespace="inner", **options)
        self.runs = 0

    async def call(self, name, arguments, **options):
        async def run():
            self.runs += 1
            return self.runs

        return await self.box.call(name, arguments, run, **options)

    async def execute(self, tool, arguments, **more):
        return await self.call("execute-tool", {"tool_name": tool, "params": arguments, **more})


async def test_a_call_goes_by_the_rule_of_the_inner_tool():
    agent = Agent()
    assert [await agent.execute("get_order", {"order_id": "1"}) for _ in range(2)] == [1, 1]
    await agent.execute("cancel_order", {"order_id": "2"})
    assert await agent.execute("get_order", {"order_id": "1"}) == 1
    await agent.execute("cancel_order", {"order_id": "1"})
    assert await agent.execute("get_order", {"order_id": "1"}) == 4
    assert [await agent.execute("clock", {}), await agent.execute("clock", {})] == [5, 6]
    assert [await agent.execute("hand_off", {}), await agent.execute("hand_off", {})] == [7, 8]
    assert await agent.execute("get_order", {"order_id": "1"}) == 4


async def test_a_write_by_its_own_name_ends_what_a_meta_tool_has_read_and_the_other_way_round():
    agent = Agent()
    assert await agent.execute("get_order", {"order_id": "1"}) == 1
    await agent.call("cancel_order", {"order_id": "1"})
    assert await agent.execute("get_order", {"order_id": "1"}) == 3
    assert await agent.call("get_order", {"order_id": "1"}) == 4
    await agent.execute("cancel_order", {"order_id": "1"})
    assert await agent.call("get_order", {"order_id": "1"}) == 6


async def test_arguments_may_be_a_text_and_meta_tools_may_be_nested():
    agent = Agent()
    as_text = json.dumps({"order_id": "1"})
    assert await agent.execute("get_order", {"order_id": "1"}) == await agent.execute("get_order", as_text) == 1
    nested = {"target": "get_order", "payload": {"order_id": "1"}}
    assert await agent.execute("route", nested) == await agent.execute("route", nested) == 2
    assert await agent.call("route", nested) == 3, "two meta-tools share no answers"


@pytest.mark.parametrize("annotations", [None, {"readOnlyHint": True}])
async def test_an_inner_tool_without_a_rule_ends_everything_whatever_the_hints_of_the_meta_tool_say(annotations):
    agent = Agent(hints="kind")
    assert await agent.execute("get_order", {"order_id": "1"}) == 1
    outer = {"tool_name": "delete_all", "params": "[" * 100_000 if annotations is None else {}}
    await agent.call("execute-tool", outer, annotations=annotations)
    assert await agent.execute("get_order", {"order_id": "1"}) == 3


async def test_users_of_a_meta_tool_share_nothing():
    agent = Agent()
    arguments = {"tool_name": "get_order", "params": {"order_id": "1"}}
    found = [await agent.call("execute-tool", arguments, vary=vary) for vary in ("ada", "bob", "ada")]
    assert found == [1, 2, 1]


def test_a_file_may_say_it(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        'namespace = "n"\n[tools.execute-tool]\ninner = {tool = "tool_name", arguments = "params"}\n'
        '[tools.get]\nkind = "read"\ntags = ["x"]\n'
    )
    box = Toolbox.from_file(path)
    assert box.rule("execute-tool", None, {"tool_name": "get", "params": {}}).kind == "read"
    assert box.rule("execute-tool").kind == "write"
    assert [(row.kind, row.tags, row.ttl) for row in box.explain()] == [("inner", "", ""), ("read", "x", "")]


# Names


IN_FRONT = ["", "shop__", "mcp__shop__", "shop.", "shop/", "shop-", "mcp__shop-"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((f"{front}get_order", "read") for front in IN_FRONT),
        *(("shop__list_orders", "read"), ("shop_get_order", "write"), ("forget_order", "write")),
        ("delete-list", "write"),
    ],
)
def test_the_name_of_a_server_in_front_may_be_left_out(name, kind):
    rules = {"get_order": Read("order"), "list_*": Read("order"), "list": Read("order")}
    assert Toolbox(rules, namespace="names").rule(name).kind == kind


async def test_tools_of_two_servers_share_tags_and_no_answers():
    agent = Agent()
    one = await agent.call("a__get_order", {"order_id": "1"})
    assert await agent.call("b__get_order", {"order_id": "1"}) != one
    assert await agent.call("a__get_order", {"order_id": "1"}) == one
    await agent.call("b__cancel_order", {"order_id": "1"})
    assert await agent.call("a__get_order", {"order_id": "1"}) != one
