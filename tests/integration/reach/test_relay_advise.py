"""`agent-cache mcp --advise`: a day is recorded through the relay, and the relay's own rules are made of it."""

from __future__ import annotations

import asyncio
import random
import re
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the server of these tests is made by its SDK")

from tests.harness.mcp_host import Host, relayed

SERVER = (sys.executable, str(Path(__file__).parents[2] / "harness" / "mcp_notes_server.py"))


async def work(host: Host, seed: int, steps: int = 60) -> list[tuple[str, dict[str, str], str]]:
    """Call the tools of the server in some order. Returns the calls, and what they answered."""
    chance, found = random.Random(seed), []
    await host.request("tools/list", {})
    for step in range(steps):
        note_id = f"note-{chance.randrange(9)}"
        calls = [
            ("read_note", {"note_id": note_id}),
            ("read_author", {"author_id": f"author-{chance.randrange(3)}"}),
        ]
        if step % 5 == 4:
            calls.append(("share_note", {"note_id": note_id}))
        if step % 5 == 2:
            calls.append(("change_note", {"note_id": note_id, "text": f"text {step}"}))
        for tool, arguments in calls:
            found.append((tool, arguments, await host.call(tool, **arguments)))
    return found


async def agent_cache(*arguments: object) -> tuple[int, str, str]:
    """Run the command. Returns its exit code, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agent_cache",
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def tape(tmp_path: Path) -> Path:
    """The recording of a day, without any rules."""
    path = tmp_path / "day.jsonl"
    async with relayed("--record", path, server=SERVER) as host:
        await work(host, 1, steps=150)
        assert await host.end() == 0
    return path


async def test_the_relay_runs_by_the_rules_that_its_recording_shows(tape: Path, tmp_path: Path) -> None:
    code, text, errors = await agent_cache("mcp", "--advise", tape, "--", *SERVER)
    assert code == 0, errors
    rules = tmp_path / "rules.toml"
    rules.write_text(text, "utf-8")
    found = tomllib.loads(text)
    assert found["hints"] == "kind"
    assert found["tools"]["read_note"]["kind"] == "read"
    assert found["tools"]["share_note"]["parse"] == "json"
    assert any("{result[author_id]}" in tag for tag in found["tools"]["share_note"]["tags"])
    assert "# tools.shred = {" in text, "it was never called, so its rule is a proposal"
    assert "replayed on this log" in errors
    async with relayed(server=SERVER) as host:
        expected = await work(host, 2)
        assert await host.end() == 0
    async with relayed("--config", rules, "--stats", server=SERVER) as host:
        assert await work(host, 2) == expected, "no answer is stale"
        assert await host.end() == 0
    [hits] = re.findall(r" hits (\d+),", host.errors)
    assert int(hits) > 30
    code, text, errors = await agent_cache("advise", "--check", rules, tape)
    assert code == 0, text


async def test_without_the_server_the_log_alone_makes_the_rules(tape: Path, tmp_path: Path) -> None:
    code, text, _ = await agent_cache("mcp", "--advise", tape)
    assert code == 0
    assert set(tomllib.loads(text)["tools"]) == {"read_note", "read_author", "change_note", "share_note"}
    written = tmp_path / "some.toml"
    written.write_text('namespace = "mcp"\n[tools."read_*"]\nkind = "watch"\n')
    code, text, _ = await agent_cache("mcp", "--advise", tape, "--config", written)
    assert code == 0
    assert set(tomllib.loads(text)["tools"]) == {"change_note", "share_note"}, "the others have a rule"
    assert "namespace" not in tomllib.loads(text), "it is to be appended"
    both = tomllib.loads(written.read_text() + text)
    assert both["namespace"] == "mcp"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--advise", "nothing.jsonl"], "nothing.jsonl"),
        (["--advise", "empty.jsonl"], "no call of a tool"),
        (["--advise", "empty.jsonl", "--record", "x"], "--record is not for it"),
        (["--advise", "empty.jsonl", "--explain"], "--explain is not for it"),
        (["--advise", "empty.jsonl", "--config", "nothing.toml"], "nothing.toml"),
    ],
)
async def test_mistakes_are_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    code, out, errors = await agent_cache("mcp", *arguments)
    assert (code, out) == (2, "")
    [line] = [line for line in errors.splitlines() if line.startswith("agent-cache")]
    assert message in line
