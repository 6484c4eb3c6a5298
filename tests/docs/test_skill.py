"""The skill in the package is one that agents find, and what it shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agent_cache
from agent_cache.__main__ import main

SKILL = Path(agent_cache.__file__).parent / ".agents" / "skills" / "tag-my-tools" / "SKILL.md"


def test_its_head_names_it_as_its_folder_and_says_what_it_is_for():
    head = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", SKILL.read_text("utf-8"))
    assert head is not None
    assert head[1] == SKILL.parent.name
    assert len(head[2]) <= 1024


async def test_its_tools_can_be_decorated_as_they_stand():
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", SKILL.read_text("utf-8"), re.DOTALL):
        exec(block, names)
    assert await names["find_orders"]("a") is None  # type: ignore[operator]


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`agent-cache (\w+)", SKILL.read_text("utf-8")))))
def test_its_commands_are_ones(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    options = re.findall(rf"`agent-cache {command}[^`]*?(--[\w-]+)", SKILL.read_text("utf-8"))
    assert all(option in shown for option in options)
