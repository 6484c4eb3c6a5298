"""Relays that share answers through a file or a Valkey, and a server that needs no library."""

from __future__ import annotations

import sys
import tomllib

import pytest

from tests.harness.mcp_host import RELAY, relayed, started, text_of
from tests.harness.processes import python
from tests.harness.servers import free_port

PLAIN = """
import json, sys

key = {"type": "object", "properties": {"key": {"type": "string"}}}
tools = [{"name": name, "inputSchema": key} for name in ("get_value", "set_value")]
tools.append({"name": "odd_number", "inputSchema": {"type": "object", "properties": {}}})
for line in sys.stdin:
    message = json.loads(line)
    result = {"tools": tools, "serverInfo": {"name": "plain", "version": "1"}}
    if message["method"] == "tools/call":
        with open(sys.argv[1], "a") as counter:
            counter.write("x")
            text = f"{message['params']['name']} ({counter.tell()})"
        result = {"content": [{"type": "text", "text": text}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""

RULES = """
namespace = "shared"
tools.get_value = { kind = "read", tags = ["value:{key}"] }
tools.set_value = { kind = "write", tags = ["value:{key}"] }
tools.odd_number = { kind = "read", tags = ["odd"] }
"""


@pytest.fixture
def server(tmp_path):
    """The command of a server that counts its runs together with others."""
    counter = tmp_path / "counter"
    counter.touch()
    return sys.executable, "-c", PLAIN, counter


async def test_relays_share_a_file_that_lies_beside_their_rules(rules, server, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    rules.write_text(f'remote = "sqlite:///answers.db"\n{RULES}')
    monkeypatch.chdir(tmp_path / "elsewhere")  # hosts start their servers anywhere
    async with relayed("--config", rules, server=server) as one, relayed("--config", rules, server=server) as two:
        assert await one.call("get_value", key="a") == "get_value (1)"
        assert await two.call("get_value", key="a") == "get_value (1)"
        assert await one.call("get_value", key="a") == "get_value (1)"
        await two.call("set_value", key="a")
        assert await one.call("get_value", key="a") == "get_value (3)"  # at once: no message is awaited
        latest = await two.call("get_value", key="a")
        assert await one.end() == await two.end() == 0
    assert list((tmp_path / "elsewhere").iterdir()) == []
    async with relayed("--config", rules, server=server) as later:  # what is in the file survives the relays
        assert await later.call("get_value", key="a") == latest


async def test_a_cache_that_cannot_be_reached_lets_calls_pass(rules, server):
    pytest.importorskip("redis", reason="a server that is not there has a client")
    rules.write_text(f'remote = "redis://127.0.0.1:{free_port()}"\n{RULES}')
    async with relayed("--config", rules, server=server) as host:
        assert await host.call("get_value", key="a") == "get_value (1)"
        assert await host.call("set_value", key="a") == "set_value (2)"
        assert "get_value" in await host.call("get_value", key="a")


async def test_a_read_whose_rule_does_not_fit_passes(rules, server):
    rules.write_text(RULES.replace('["odd"]', '["odd:{number}"]'))
    async with relayed("--config", rules, server=server) as host:
        assert await host.call("get_value", key="a") == "get_value (1)"
        assert await host.call("odd_number") == "odd_number (2)"
        assert await host.call("odd_number") == "odd_number (3)"
        assert await host.call("get_value", key="a") == "get_value (1)"
    assert "was not cached" in host.errors
    assert "'number'" in host.errors


@pytest.mark.parametrize("shared", ["", 'remote = "sqlite:///{folder}/cache.db"\n'])
async def test_a_write_whose_rule_does_not_fit_touches_every_root_of_the_file(rules, server, tmp_path, shared):
    rules.write_text(shared.format(folder=tmp_path) + RULES.replace('["value:{key}"]', '["value:{id}"]'))
    read = 'tools.get_value = { kind = "read", tags = ["value:{%s}"] }'
    rules.write_text(rules.read_text().replace(read % "id", read % "key"))
    async with relayed("--config", rules, server=server) as host:
        assert await host.call("get_value", key="a") == "get_value (1)"
        assert await host.call("set_value", key="a") == "set_value (2)"
        assert await host.call("get_value", key="a") == "get_value (3)"
        assert await host.call("get_value", key="a") == "get_value (3)"
    assert "set_value was not cached" in host.errors


# --explain


async def test_explain_prints_the_table_and_rules_to_begin_with_and_ends(tmp_path, server):
    found = await explained(server=server)
    assert found.returncode == 0
    assert "# get_value" in found.stdout
    path = tmp_path / "starter.toml"
    path.write_text(found.stdout)
    async with relayed("--config", path, server=server) as host:
        assert await host.call("get_value", key="a") == "get_value (1)"
        assert await host.call("get_value", key="a") == "get_value (2)"
    path.write_text(with_every_rule(found.stdout))
    assert tomllib.loads(path.read_text())["tools"]["set_value"]["kind"] == "write"
    async with relayed("--config", path, server=server) as host:
        await host.call("set_value", key="a")


def with_every_rule(printed: str) -> str:
    """The file with all that is proposed in it."""
    return printed.replace("# tools.", "tools.")


async def explained(*options, server):
    return python(*RELAY[1:], "--explain", *options, "--", *server)


def saying(lists: str, calls: str = "'result': {}"):
    """The command of a server that answers to `tools/list` and to everything else with these members."""
    script = "import sys, json\nfor line in sys.stdin:\n    m = json.loads(line)\n"
    script += f"    r = {{{lists}}} if m['method'] == 'tools/list' else {{{calls}}}\n"
    script += "    'id' in m and print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], **r}), flush=True)\n"
    return sys.executable, "-c", script


async def test_explain_escapes_what_a_terminal_would_interpret_of_the_names_of_tools():
    names = ['evil"]\n[x]\n\x1b[31m', "c1\x9b31m\u202e", "half\ud83d", "gr\u00f6\u00dfe"]
    tools = [{"name": name, "inputSchema": {}, "annotations": {"readOnlyHint": True}} for name in names]
    found = await explained(server=saying(f"'result': {{'tools': {tools!a}}}"))
    assert found.returncode == 0, found.stderr
    assert all(character.isprintable() or character == "\n" for character in found.stdout)
    assert '# evil"]\\n[x]\\n\\x1b[31m' in found.stdout
    assert set(tomllib.loads(with_every_rule(found.stdout))["tools"]) == {names[-1]}  # the others have no proposal


ODD = (None, 5, 1.5, True, "text", [], [1], {}, {"a": {"b": []}})
PARTS = ("title", "description", "inputSchema", "annotations")
GOOD = {"name": "good", "inputSchema": {"properties": {"id": {}}}}
LISTED = [
    *({"name": f"{part}{at}", part: odd} for part in PARTS for at, odd in enumerate(ODD)),
    *({"name": f"{part}{at}", "inputSchema": {part: odd}} for part in ("properties", "required")
      for at, odd in enumerate(ODD)),
]  # fmt: skip
ODD_LISTS = {
    "parts": ({"tools": [*ODD, *({**GOOD, "name": odd} for odd in ODD if odd != "text"), *LISTED, GOOD, GOOD]}, LISTED),
    **{f"tools {odd!r}": ({"tools": odd}, []) for odd in ODD},
    **{f"result {odd!r}": (odd, []) for odd in ODD},
}


@pytest.mark.parametrize("odd", ODD_LISTS)
async def test_explain_takes_what_it_can_of_an_odd_list(odd):
    lists, tools = ODD_LISTS[odd]
    found = await explained(server=saying(f"'result': {lists!r}", f"'result': {{'serverInfo': {lists!r}}}"))
    assert found.returncode == 0, found.stderr
    rules = tomllib.loads(with_every_rule(found.stdout)).get("tools", {})
    assert [*rules] == [*(tool["name"] for tool in tools), *(["good"] if tools else [])]


async def test_explain_escapes_what_a_server_refuses_with():
    found = await explained(server=saying("'error': {'code': -32601, 'message': 'no\\x1b[31m'}"))
    assert found.returncode == 2
    assert "\x1b" not in found.stderr
    assert "no\\x1b[31m" in found.stderr


async def test_a_server_that_lists_no_tools_is_no_mistake():
    server = saying("'error': {'code': -32601, 'message': 'no'}", "'result': {'content': []}")
    async with started((*RELAY, "--", *server), greets=False) as host:
        assert text_of(await host.request("tools/call", {"name": "x", "arguments": {}})) == ""
        assert "not known" in host.errors
