"""`agent-cache mcp --record`, and `--replay` without any server: over the pipes of real processes."""

from __future__ import annotations

import pytest

pytest.importorskip("mcp", reason="the servers of these tests are made by its SDK")

from agent_cache.advise.logs import read_log
from tests.harness.mcp_host import RELAY, relayed, run_of, started, text_of

RULES = """
namespace = "taped"
tools.get_value = { kind = "read", tags = ["value:{key}"] }
tools.set_value = { kind = "write", tags = ["value:{key}"] }
tools.ask_host = { kind = "read", tags = ["ask"] }
tools.fail = { kind = "read", tags = ["fail"] }
tools.run_count = { kind = "pass" }
tools.change_list = { kind = "pass" }
"""


def replayed(tape, *options, **more):
    """A host of a relay that has no server."""
    return started((*RELAY, "--replay", tape, *options, "--", "/nonexistent"), **more)


@pytest.mark.parametrize("strict", [[], ["--strict"]])
async def test_a_recorded_run_replays_without_any_server(rules, tape, strict):
    async with relayed("--config", rules, "--record", tape) as host:
        recorded = await run_of(host)
        assert await host.end() == 0
    async with replayed(tape, "--config", rules, *strict) as host:
        assert await run_of(host, token=2) == recorded
        assert not host.asked
        assert await host.end() == 0
    assert text_of(recorded[-3]["result"]) == "done (1)"


async def test_what_says_who_asks_is_not_recorded(rules, tape):
    async with relayed("--config", rules, "--record", tape, greets=False) as host:
        await host.request(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "marked-host", "version": "1"},
            },
        )
        await host.notify("notifications/initialized")
        for method, params in (
            ("tools/list", {}),
            ("tools/call", {"name": "get_value", "arguments": {"key": "a"}}),
            ("tools/call", {"name": "run_count", "arguments": {"name": "clock"}}),
        ):
            await host.request(method, {**params, "_meta": {"progressToken": "marked-token", "x": "marked-meta"}})
    assert "get_value" in tape.read_text()
    assert "marked" not in tape.read_text()


async def test_a_miss_names_the_nearest_call_and_the_exit_code_is_one(rules, tape):
    async with relayed("--config", rules, "--record", tape) as host:
        await host.call("get_value", key="abc")
    async with replayed(tape, "--config", rules) as host:
        response = await host.start("tools/call", {"name": "get_value", "arguments": {"key": "abd"}})
        assert response["error"]["code"] == -32603
        assert "key='abd'" in response["error"]["message"]
        assert "key='abc'" in response["error"]["message"]
        assert await host.call("get_value", key="abc") == "nothing (1)"
        other = await host.start("prompts/get", {"name": "greet"})
        assert "mcp:request" in other["error"]["message"]
        assert await host.end() == 1
    assert "was not recorded" in host.errors


async def test_a_strict_replay_wants_all_of_the_recording(rules, tape):
    async with relayed("--config", rules, "--record", tape) as host:
        await host.call("get_value", key="a")
        await host.call("get_value", key="b")
    async with replayed(tape, "--config", rules, "--strict") as host:
        assert await host.call("get_value", key="a") == "nothing (1)"
        assert await host.end() == 1
    assert "1 recorded calls were not made" in host.errors
    async with replayed(tape, "--config", rules) as host:
        assert await host.call("get_value", key="a") == "nothing (1)"
        assert await host.end() == 0


async def test_the_tools_are_those_of_the_recording_after_their_list_has_changed(rules, tape):
    async with relayed("--config", rules, "--record", tape) as host:
        await host.call("get_value", key="a")
        await host.call("change_list")
        await host.until(lambda: host.notifications)
        assert await host.call("get_value", key="a", form="long") == "nothing (2)"
    async with replayed(tape, "--config", rules, "--strict") as host:
        assert await host.call("get_value", key="a") == "nothing (1)"
        await host.call("change_list")
        assert await host.call("get_value", key="a") == "nothing (2)"
        assert await host.end() == 0


async def test_a_recording_is_a_log_of_the_tools_with_their_hints(tape):
    async with relayed("--record", tape) as host:
        await run_of(host)
        await host.request("tools/list")
        assert await host.end() == 0
    log = read_log(tape)
    calls = log.calls
    assert not log.problems
    assert {call.tool.rpartition(":")[2] for call in calls} >= {"get_value"}
    assert not any(call.tool.startswith("mcp:request") or call.tool == "mcp:tools" for call in calls)
    assert any(call.hints for call in calls)
