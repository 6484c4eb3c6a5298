"""The agents in `examples/` run offline, each from its own recording: a hit, a write, and a loop that is stopped."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"

PRINTED = """\
Order W1 is cancelled.
get_order miss ok
get_order hit ok
cancel_order write ok
get_order miss ok
get_order hit ok
get_order blocked notice
"""


@pytest.mark.parametrize("name", ["plain", "langchain", "openai_agents", "pydantic_ai", "mcp"])
def test_an_example_runs_offline_from_its_recording(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    if name != "plain":
        pytest.importorskip({"openai_agents": "agents"}.get(name, name))
    path = EXAMPLES / f"{name}_agent.py"
    recording = (EXAMPLES / f"recordings/{name}_agent.jsonl").read_bytes()
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out == PRINTED
    assert (EXAMPLES / f"recordings/{name}_agent.jsonl").read_bytes() == recording
    assert len(path.read_text().splitlines()) < 80
