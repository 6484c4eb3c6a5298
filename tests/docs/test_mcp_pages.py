"""The configurations on the page for MCP hosts are ones that the command, and the file of rules, take."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from agent_cache.cli import mcp_relay
from agent_cache.relay.relay_settings import load

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cache-an-mcp-server.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def parsed(arguments):
    parser = argparse.ArgumentParser()
    mcp_relay.add_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("block", blocks("json"))
def test_each_configuration_of_a_host_starts_the_relay(block):
    data = json.loads(block)
    [servers] = data.values()
    [server] = servers.values()
    assert server["command"] == "agent-cache"
    command, *arguments = server["args"]
    assert command == "mcp"
    options = parsed(arguments)
    assert options.config
    assert options.server[-1] == "mcp-server-git"


@pytest.mark.parametrize("block", blocks("toml"))
def test_each_file_of_rules_is_one(block, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "x")
    path = tmp_path / "rules.toml"
    path.write_text(block)
    load(path)


def test_the_commands_on_the_page_are_ones():
    lines = [line for block in blocks("sh") for line in block.splitlines() if "agent-cache mcp" in line]
    assert len(lines) >= 4
    for line in lines:
        words = line.partition("agent-cache mcp ")[2].partition(" > ")[0].split()
        assert parsed(words).server[:2] == ["uvx", "mcp-server-git"]
