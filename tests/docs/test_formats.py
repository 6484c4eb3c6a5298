"""Pages and code say the same: the references of cassettes and journals name every field and every kind of line that is
written, and no other; the configurations for MCP hosts are ones that the command, and the file of rules, take.
"""

import argparse
import inspect
import json
import re
from pathlib import Path

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, ConfigurationError, Toolbox
from agent_cache.cli import mcp_relay
from agent_cache.cli.cassettes import _FORMS
from agent_cache.recording import Redaction
from agent_cache.recording.file import Header, Intent, OpenCall, OtherLine, RecordedCall, Trailer
from agent_cache.recording.outcomes import Failure, Stream, _Parts
from agent_cache.relay.relay_settings import load
from agent_cache.resume.journal import JournalHeader

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
CASSETTE, JOURNAL = ((FOLDER / f"{name}-format.md").read_text("utf-8") for name in ("cassette", "journal"))


def named(page: str, after: str) -> set[str]:
    """Names in the first cells of the table that follows this text, as ``name`` or as the key of what is shown."""
    rows = []
    for line in page[page.index(after) + len(after) :].splitlines():
        if line.startswith("|"):
            rows.append(line.split("|")[1])
        elif rows:
            break
    return set(re.findall(r'`(?:\{?")?(\w+)', " ".join(rows[2:])))


def test_every_line_and_outcome_of_a_cassette_has_the_fields_of_its_table():
    assert named(CASSETTE, "## Header") == set(Header.__struct_fields__)
    assert named(CASSETTE, "## A call") == set(RecordedCall.__struct_fields__) - {"place", "hidden"}  # of journals
    assert named(CASSETTE, "## Trailer") == set(Trailer.__struct_fields__)
    assert named(CASSETTE, "in this order, with") < set(RecordedCall.__struct_fields__)
    assert named(CASSETTE, "An exception has") == set(Failure.__struct_fields__)
    assert named(CASSETTE, "and a stream") == set(Stream.__struct_fields__)
    assert named(CASSETTE, "### Outcomes") == _FORMS
    assert named(CASSETTE, "It may also have these fields:") > set(_Parts.__struct_fields__) - _FORMS


def test_what_a_redaction_is_described_by_is_named():
    described = Redaction(["a"], [re.compile("b")], lambda data: data, defaults=False).describe()
    row = next(line for line in CASSETTE.splitlines() if line.startswith("| `redact`"))
    assert set(described) <= set(re.findall(r"`(\w+)`", row))


def in_sentence(start: str) -> set[str]:
    [sentence] = re.findall(rf"{re.escape(start)}[^.|]*", JOURNAL)
    return set(re.findall(r"`(\w+)`", sentence.removeprefix(start)))


def test_every_line_of_a_journal_has_the_fields_that_are_named():
    assert named(JOURNAL, "## Header") == set(JournalHeader.__struct_fields__)
    assert named(JOURNAL, "## Lines") == {"id", *OtherLine.__struct_fields__} - {"times"}
    assert named(JOURNAL, "A call has in addition") == {"place", "hidden"} < set(RecordedCall.__struct_fields__)
    assert in_sentence("`open` has") == set(OpenCall.__struct_fields__)
    own = named(JOURNAL, "An intent has")
    assert in_sentence("An intent has") | own == set(Intent.__struct_fields__)


# Configurations for MCP hosts

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


@pytest.mark.parametrize("kind", ["read", "write"])
def test_the_page_of_toolboxes_has_every_option_that_a_file_of_rules_knows(kind: str, tmp_path: Path):
    page = (FOLDER / "toolbox.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| `{kind}` \| (.*) \|$", page, re.MULTILINE)
    decorator = {"read": AgentCache, "write": AgentCacheInvalidator}[kind]
    known = set[str]()
    for name in inspect.signature(decorator).parameters:
        file = tmp_path / "rules.toml"
        file.write_text(f'namespace = "shop"\n[tools.get]\nkind = "{kind}"\ntags = ["order"]\n{name} = [1]\n')
        with pytest.raises(ConfigurationError) as refused:
            Toolbox.from_file(file)
        known |= set() if "is not known here" in str(refused.value) else {name}
    assert known | {"tags", "parse"} == set(re.findall(r"`(\w+)`", row))
