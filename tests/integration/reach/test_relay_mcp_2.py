"""`agent-cache mcp` and protocol 2026-07-28, which has no handshake, but an envelope in each request."""

from __future__ import annotations

import pytest

pytest.importorskip("mcp.server.mcpserver", reason="needs mcp>=2, which speaks that protocol")

from tests.harness.mcp_host import ENVELOPE, RELAY, relayed, run_of, started, text_of

RULES = """
namespace = "modern"
tools.get_value = { kind = "read", tags = ["value:{key}"] }
tools.set_value = { kind = "write", tags = ["value:{key}"] }
tools.read_by_question = { kind = "read", tags = ["value:{key}"] }
tools.write_by_question = { kind = "write", tags = ["value:{key}"] }
"""


async def test_the_relay_asks_for_the_tools_with_the_envelope_of_the_host(rules):
    async with relayed("--config", rules, greets=False) as host:
        host.meta = ENVELOPE
        await host.request("server/discover")
        assert await host.call("get_value", key="a") == "nothing (1)"
        assert await host.call("get_value", key="a", form="long") == "nothing (1)"  # its schema is known
        assert "not known" not in host.errors
        host.meta = {}
        with pytest.raises(RuntimeError):  # without the envelope this server refuses
            await host.request("tools/list")


async def test_a_question_as_a_result_is_not_stored_nor_is_the_answer_to_it(rules):
    async def ask_and_answer(tool, color):
        params = {"name": tool, "arguments": {"key": "a"}}
        asked = await host.request("tools/call", params)
        assert asked["resultType"] == "input_required"
        answers = {"q": {"action": "accept", "content": {"color": color}}}
        more = {"inputResponses": answers, "requestState": asked["requestState"]}
        return text_of(await host.request("tools/call", {**params, **more}))

    async with relayed("--config", rules, greets=False) as host:
        host.meta = ENVELOPE
        await host.request("server/discover")
        assert await ask_and_answer("read_by_question", "red") == "red (2)"
        assert await ask_and_answer("read_by_question", "red") == "red (4)"
        assert await host.call("get_value", key="a") == "nothing (1)"
        assert await ask_and_answer("write_by_question", "blue") == "set"
        assert await host.call("get_value", key="a") == "blue (2)"


async def test_a_run_of_protocol_2026_replays_with_its_questions(rules, tape):
    async def run(host, name, token):
        host.meta = {**ENVELOPE, "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"}}
        found = []
        for tool in ("read_by_question", "write_by_question"):
            params = {"name": tool, "arguments": {"key": "a"}}
            found.append(await host.request("tools/call", params))
            answers = {"q": {"action": "accept", "content": {"color": "red"}}}
            more = {"inputResponses": answers, "requestState": found[-1]["requestState"]}
            found.append(await host.request("tools/call", {**params, **more}))
        host.meta |= {"io.modelcontextprotocol/clientCapabilities": {}}
        return [*found, await host.start("server/discover"), *await run_of(host, token=token)]

    async with relayed("--config", rules, "--record", tape, greets=False) as host:
        recorded = await run(host, "one", 1)
    async with started((*RELAY, "--config", rules, "--replay", tape, "--strict"), greets=False) as host:
        assert await run(host, "another", 2) == recorded
        assert await host.end() == 0
