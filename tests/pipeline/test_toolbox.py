"""Tools that are known by name: the rules of a toolbox, and calls by them."""

import asyncio
import enum
import json
import logging
from collections.abc import Callable
from datetime import date
from operator import itemgetter
from typing import Any

import pytest

from agent_cache import AgentCacheSession, ConfigurationError, Pass, Read, Toolbox, Watch, Write, configure
from agent_cache.testing import MemoryServer, MemoryTier
from agent_cache.toolbox import ToolInfo


class Status(enum.Enum):
    OPEN = "open"


class Shop:
    """Some tools, called by name, and how often each has run."""

    def __init__(self, box: Toolbox, answer: Callable[[str, dict[str, Any]], Any] | None = None) -> None:
        self.box = box
        self.runs: list[str] = []
        self.answer = answer or (lambda name, arguments: {"tool": name, **arguments})

    async def call(self, tool: str, arguments: Any = None, **options: Any) -> Any:
        async def run() -> Any:
            self.runs.append(tool)
            await asyncio.sleep(0)
            answer = self.answer(tool, arguments or {})
            if isinstance(answer, Exception):
                raise answer
            return answer

        return await self.box.call(tool, {} if arguments is None else arguments, run, **options)


def shop(**rules: Any) -> Shop:
    return Shop(Toolbox(rules, namespace="toolshop"))


ORDERS: dict[str, Any] = {
    "get_order": Read("order:{order_id}"),
    "cancel_order": Write("order:{order_id}"),
    "now": Watch(),
    "handoff": Pass(),
}


async def test_a_read_runs_once_until_a_write_of_what_it_depends_on():
    one = shop(**ORDERS)
    for _ in range(2):
        assert await one.call("get_order", {"order_id": "1"}) == {"tool": "get_order", "order_id": "1"}
    await one.call("get_order", {"order_id": "2"})
    await one.call("cancel_order", {"order_id": "1"})
    await one.call("get_order", {"order_id": "1"})
    await one.call("get_order", {"order_id": "2"})
    assert one.runs == ["get_order", "get_order", "cancel_order", "get_order"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": None}, {}),
        ({"x": 1}, {"x": "1"}),
        ({"x": 1}, {"x": True}),
        ({"x": [1]}, {"x": [[1]]}),
        ({"from": 1}, {"from": 2}),
        ({"self": 1, "run": 2}, {"self": 1, "run": 3}),
    ],
)
async def test_calls_with_other_arguments_are_other_calls(one: dict[str, Any], other: dict[str, Any]):
    tools = shop(find=Read("thing"))
    for arguments in (one, other, one, other):
        assert await tools.call("find", arguments) == {"tool": "find", **arguments}
    assert len(tools.runs) == 2


async def test_defaults_of_the_schema_complete_the_call():
    one = shop(find=Read("page:{page}"), change=Write("page:{page}"))
    schema = {"properties": {"page": {"type": "integer", "default": 1}}}
    await one.call("find", {}, schema=schema)
    await one.call("find", {"page": 1}, schema=dict(schema))
    assert one.runs == ["find"]
    await one.call("change", {"page": 1}, schema=schema)
    await one.call("find", {}, schema=schema)
    assert one.runs == ["find", "change", "find"]


@pytest.mark.parametrize(
    ("one", "other"), [(7, 7.0), (7, "7"), (date(2026, 1, 1), "2026-01-01"), (Status.OPEN, "open")]
)
async def test_a_write_reaches_an_entity_whether_its_argument_was_parsed_or_not(one: Any, other: Any):
    tools = shop(**ORDERS)
    for read, written in (({"order_id": one}, {"order_id": other}), ({"order_id": other}, {"order_id": one})):
        await tools.call("get_order", read)
        await tools.call("cancel_order", written)
        await tools.call("get_order", read)
    assert tools.runs == ["get_order", "cancel_order", "get_order"] * 2


async def test_an_argument_that_is_absent_stands_for_the_whole_root():
    one = shop(**ORDERS)
    await one.call("get_order", {"order_id": "1"})
    await one.call("get_order", {})
    await one.call("cancel_order", {"order_id": "7"})
    await one.call("get_order", {})
    assert one.runs == ["get_order", "get_order", "cancel_order", "get_order"]
    await one.call("cancel_order", {})
    await one.call("get_order", {"order_id": "1"})
    assert one.runs[-2:] == ["cancel_order", "get_order"]


NULLABLE = {"properties": {"order": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}}}


@pytest.mark.parametrize("template", ["order:{order}", "order:eu-{order}", "order:{order}:{result[tool]}"])
@pytest.mark.parametrize("schema", [None, NULLABLE])
@pytest.mark.parametrize("arguments", [{}, {"order": None}, {"order": []}])
async def test_a_write_that_names_no_entity_reaches_all_of_them(template: str, schema: Any, arguments: Any):
    """Whether its argument is absent, null, empty, or null by the default in its schema: only the tool knows it."""
    one = shop(get=Read("order:{order}"), put=Write(template))
    await one.call("get", {"order": "7"})
    await one.call("put", arguments, schema=schema)
    await one.call("get", {"order": "7"})
    await one.call("put", {"order": "8"}, schema=schema)
    await one.call("get", {"order": "7"})
    assert one.runs == ["get", "put", "get", "put"]


@pytest.mark.parametrize("rule", [Read("order"), Write("order"), Watch(), Pass()], ids=repr)
async def test_what_runs_a_tool_may_return_its_answer_at_once(rule: Any):
    """To await it would raise after a write was made, so that it is made again."""
    runs: list[str] = []

    def run() -> Any:
        runs.append("made")
        return "answer"

    assert await Toolbox({"tool": rule}, namespace="shop").call("tool", {}, run) == "answer"
    assert runs == ["made"]


async def test_a_template_that_names_no_property_of_the_schema_is_refused_before_the_tool_runs():
    one = shop(get_order=Read("order:{oder_id}"))
    with pytest.raises(ConfigurationError, match=r"toolshop:get_order.*'oder_id'.*order_id"):
        await one.call("get_order", {"order_id": "1"}, schema={"properties": {"order_id": {}}})
    assert one.runs == []


@pytest.mark.parametrize("arguments", [{"x": object()}, "no object", 7, [("a",)], {"x": {1, (2,)}, 3: 4}])
async def test_arguments_that_are_no_json_run_uncached_and_are_counted(arguments: Any):
    one = Shop(Toolbox({"find": Read("thing"), "change": Write("thing:{id}")}, namespace="toolshop_bad"), lambda *_: 1)
    await one.call("find", {"x": 1})
    async with AgentCacheSession() as session:
        await one.call("find", arguments)
        await one.call("find", arguments)
    assert one.runs == ["find"] * 3
    assert session.get_metrics()["uncached"] == 2
    await one.call("change", arguments)
    await one.call("find", {"x": 1})
    assert one.runs[-1] == "find"


# Rules


async def test_the_exact_name_comes_before_patterns_and_patterns_in_the_order_written():
    box = Toolbox({"get_*": Watch(), "get_o*": Pass(), "get_order": Read("order")}, namespace="toolshop")
    assert box.rule("get_order").kind == "read"
    assert box.rule("get_other").kind == "watch"
    assert box.rule("put").kind == "write"
    table = box.explain(["get_other", "get_order"])
    assert [row.kind for row in table] == ["watch", "read"]
    assert "get_other  watch" in str(table)
    with pytest.raises(TypeError, match="does not support item assignment"):
        box.rules["get_other"] = Pass()  # type: ignore[index]  # tools that were called would keep the former rule


async def test_a_rule_for_a_tool_that_does_not_exist_is_said_and_logged_once(caplog: pytest.LogCaptureFixture):
    box = Toolbox({"get_ordr": Read("order"), "put_*": Write("order")}, namespace="toolshop_typo")
    with caplog.at_level(logging.WARNING, "agent_cache"):
        for _ in range(2):
            table = box.explain([ToolInfo("get_order"), ToolInfo("own", is_decorated=True)])
    assert [row.kind for row in table] == ["write", "decorated"]
    assert any("'get_ordr'" in problem and "get_order" in problem for problem in table.problems)
    assert any("'put_*'" in problem for problem in table.problems)
    assert len([record for record in caplog.records if "'get_ordr'" in record.getMessage()]) == 1


async def test_the_table_of_many_tools_can_be_read():
    box = Toolbox({f"get_{number}": Read(f"it_{number}") for number in range(300)}, namespace="toolshop")
    assert max(map(len, str(box.explain([f"put_{number}" for number in range(300)])).splitlines())) < 400


async def test_explain_says_which_template_names_no_argument():
    box = Toolbox({"get_order": Read("order:{id}", ttl=60)}, namespace="toolshop")
    (problem,) = box.explain([ToolInfo("get_order", {"properties": {"order_id": {}}})]).problems
    assert "'id'" in problem
    (row,) = box.explain()
    assert (row.tags, row.ttl, row.why) == ("order:{id}", "60 s", "rule 'get_order'")


async def test_an_unknown_tool_invalidates_every_root_and_is_logged_once(caplog: pytest.LogCaptureFixture):
    one = Shop(Toolbox({**ORDERS, "get_user": Read("user:{id}")}, namespace="toolshop_unknown"))
    for call in range(2):
        await one.call("get_order", {"order_id": "1"})
        await one.call("get_user", {"id": "1"})
        with caplog.at_level(logging.WARNING, "agent_cache"):
            await one.call("anything")
        assert one.runs == ["get_order", "get_user", "anything"] * (call + 1)
    assert len([record for record in caplog.records if "toolshop_unknown:anything" in record.getMessage()]) == 1


@pytest.mark.parametrize(("unknown", "sources"), [("watch", ["miss", "miss"]), ("pass", [])])
async def test_an_unknown_tool_may_be_watched_or_left_alone(unknown: Any, sources: list[str]):
    one = Shop(Toolbox(ORDERS, namespace="toolshop", unknown=unknown))
    await one.call("get_order", {"order_id": "1"})
    async with AgentCacheSession() as session:
        await one.call("other")
        await one.call("other")
    assert [record.source for record in session.get_execution_trace()] == sources
    await one.call("get_order", {"order_id": "1"})
    assert one.runs == ["get_order", "other", "other"]


@pytest.mark.parametrize("annotations", [{"readOnlyHint": True}, type("Hints", (), {"read_only_hint": True})()])
async def test_a_hint_tells_a_read_from_a_write_and_caches_nothing(annotations: Any):
    one = Shop(Toolbox(ORDERS, namespace="toolshop", hints="kind"))
    await one.call("get_order", {"order_id": "1"})
    for _ in range(2):
        await one.call("status", annotations=annotations)
    await one.call("get_order", {"order_id": "1"})
    assert one.runs == ["get_order", "status", "status"]
    await one.call("change", annotations={"readOnlyHint": False})
    await one.call("get_order", {"order_id": "1"})
    assert one.runs[3:] == ["change", "get_order"]
    assert one.box.rule("now", annotations).kind == "watch"
    assert one.box.rule("cancel_order", annotations).kind == "write", "a rule beats a hint"
    patterns = Toolbox({"git_*": Write("repo")}, namespace="toolshop", hints="kind")
    assert patterns.rule("git_status", annotations).kind == "watch", "a pattern that writes does not"


# Watches


async def test_a_watch_is_shared_while_it_runs_and_never_stored():
    one = shop(**ORDERS)
    async with AgentCacheSession() as session:
        await asyncio.gather(one.call("now"), one.call("now"))
        await one.call("now")
    assert one.runs == ["now", "now"]
    assert sorted(record.source for record in session.get_execution_trace()) == ["miss", "miss", "shared"]


# Answers


def is_error(answer: Any) -> bool:
    return bool(answer["error"])


@pytest.mark.parametrize("option", ["failed", "store_if", "refused"])
async def test_a_function_of_answers_that_cannot_be_called_so_is_refused_before_the_tool_runs(option: str):
    async def later(answer: Any) -> bool:
        return False

    one = shop(**ORDERS)
    for wrong in (later, lambda: False, "error"):
        with pytest.raises(ConfigurationError, match=f"toolshop:cancel_order: {option} must be"):
            await one.call("cancel_order", {"order_id": "1"}, **{option: wrong})
    assert one.runs == []


@pytest.mark.parametrize(
    ("answer", "options", "errors"),
    [({"error": "gone"}, {"failed": is_error}, 1), ({"final": "", "error": ""}, {"store_if": itemgetter("final")}, 0)],
)
async def test_an_answer_may_be_a_failure_or_not_be_stored(answer: Any, options: Any, errors: int):
    one = Shop(Toolbox(ORDERS, namespace="toolshop"), lambda *_: answer)
    async with AgentCacheSession(on_loop="warn") as session:
        for _ in range(2):
            assert await one.call("get_order", {"order_id": "1"}, **{"failed": is_error, **options}) == answer
        for _ in range(4):
            await one.call("cancel_order", {"order_id": "1"}, **{"failed": is_error, **options})
    assert one.runs == ["get_order"] * 2 + ["cancel_order"] * 4
    assert session.get_metrics()["loops"].get("error", 0) == errors


async def test_callers_with_another_form_of_answers_share_tags_and_no_entries():
    box = Toolbox(ORDERS, namespace="toolshop")
    texts, dicts = Shop(box, lambda *_: "text"), Shop(box, lambda *_: {"error": ""})
    for _ in range(2):
        assert await texts.call("get_order", {"order_id": "1"}) == "text"
        assert await dicts.call("get_order", {"order_id": "1"}, failed=is_error) == {"error": ""}
    await texts.call("cancel_order", {"order_id": "1"})
    await dicts.call("get_order", {"order_id": "1"}, failed=is_error)
    assert dicts.runs == ["get_order", "get_order"]


async def test_they_share_none_in_a_tier_either(server: MemoryServer):
    boxes = [Toolbox(ORDERS, namespace="toolshop") for _ in range(3)]
    for box, options in zip(boxes, ({"failed": is_error}, {}, {"failed": is_error}), strict=True):
        one = Shop(box, lambda *_: {"error": ""})
        with configure(remote=MemoryTier(server)):
            await one.call("get_order", {"order_id": "1"}, **options)
        assert len(one.runs) == (box is not boxes[2]), "what one process has stored in its form another one finds"


@pytest.mark.parametrize("refused", [None, lambda loop: {"stopped": loop.kind}])
async def test_a_notice_in_place_of_an_answer_has_the_callers_form(refused: Any):
    one = shop(**ORDERS)
    async with AgentCacheSession(on_loop="notice"):
        answers = [await one.call("get_order", {"order_id": "1"}, refused=refused) for _ in range(30)]
        written = [await one.call("cancel_order", {"order_id": "1"}, refused=refused) for _ in range(30)]
    for answer in (answers[-1], written[-1]):
        assert isinstance(answer, str) if refused is None else answer == {"stopped": "repeat"}


async def test_answers_that_are_json_as_text_give_tags():
    rules: dict[str, Any] = {
        "find": Read("order:{result[orders][][id]}", parse="json"),
        "cancel": Write("order:{order_id}"),
    }
    text = json.dumps({"orders": [{"id": 1}, {"id": 2}]})
    mcp = {"content": [{"type": "text", "text": text}]}
    for answer in (text, text.encode(), mcp):
        one = Shop(Toolbox(rules, namespace="toolshop_json"), lambda *_, answer=answer: answer)
        await one.call("find")
        await one.call("cancel", {"order_id": "3"})
        await one.call("find")
        assert one.runs == ["find", "cancel"]
        await one.call("cancel", {"order_id": "2"})
        await one.call("find")
        assert one.runs == ["find", "cancel", "cancel", "find"]


async def test_functions_of_ones_own_get_the_rule_of_their_name():
    box = Toolbox({"find_*": Read("thing:{id}"), "put_thing": Write("thing:{id}"), "clock": Watch()}, namespace="own")
    runs: list[str] = []

    def tool(name: str) -> Any:
        async def function(id: str = "") -> None:
            runs.append(name)

        function.__name__ = name
        return box.tool(function)

    find, put, clock, unknown = map(tool, ("find_thing", "put_thing", "clock", "unknown_thing"))
    for call in (find("1"), clock(), find("1"), clock(), put(id="1"), find("1"), unknown(), find("1")):
        await call
    assert runs == ["find_thing", "clock", "clock", "put_thing", "find_thing", "unknown_thing", "find_thing"]
    assert find.__agent_cache__.name == "own:find_thing"


# Synchronous code


def test_synchronous_calls_are_cached_and_invalidated():
    box, runs = Toolbox(ORDERS, namespace="toolshop"), list[str]()
    calls = ["get_order", "get_order", "cancel_order", "get_order", "now", "handoff"]
    with AgentCacheSession() as session:
        answers = [
            box.call_sync(tool, {"order_id": "1"}, lambda tool=tool: runs.append(tool) or tool) for tool in calls
        ]
    assert answers == calls
    assert runs == ["get_order", "cancel_order", "get_order", "now", "handoff"]
    assert [record.source for record in session.get_execution_trace()] == ["miss", "hit", "write", "miss", "miss"]


# Bad input


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Toolbox(namespace=""), "namespace"),
        (lambda: Toolbox(namespace="a:b"), "colon"),
        (lambda: Toolbox({"x": "read"}, namespace="a"), "'x' must be Read"),  # type: ignore[dict-item]  # wrong on purpose
        (lambda: Toolbox(namespace="a", unknown="cache"), "unknown must be one of"),  # type: ignore[arg-type]  # likewise
        (lambda: Toolbox(namespace="a", hints="all"), "hints must be one of"),  # type: ignore[arg-type]  # likewise
        (lambda: Read(""), "resource"),
        (lambda: Read("order:{x", ttl=1), "fixed root"),
        (lambda: Read("order", ttl=-1), "ttl"),
        (lambda: Read("order", parse="xml"), "parse"),  # type: ignore[arg-type]  # likewise
        (lambda: Read("order", skip_args=1), "'skip_args' is an option of functions"),
        (lambda: Write("order", key_fn=print), "'key_fn' is an option of functions"),
        (lambda: Read("order:{result[]}-{result[a][]}"), r"several fields with \[\]"),
        (lambda: Watch(loop=3), "loop must be"),  # type: ignore[arg-type]  # likewise
    ],
)
def test_a_rule_that_cannot_work_is_refused_where_it_is_written(make: Callable[[], object], match: str):
    with pytest.raises(ConfigurationError, match=match):
        make()
