"""What a page shows of a terminal is what happens there.

A block under ``<!-- file: NAME -->`` is a file of the reader's project. A ```console block holds commands, each after
``$ ``, with what they print; ``...`` stands for anything. Here the project is made and they are run, from the top of a
page to its end.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent_cache
from tests.harness.slow import slow

pytest.importorskip("pytest_asyncio")

ROOT = Path(__file__).parents[2]
TUTORIALS = ["docs/tutorial.md", "docs/tutorial-advise.md", "docs/tutorial-recording.md"]
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if "```console\n" in page.read_text("utf-8")
]

_BLOCK = re.compile(
    r"(?:^<!-- file: (?P<file>\S+) -->\n)?^```(?P<opening>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_SETTINGS = """\
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
addopts = --strict-markers -p agent_cache.pytest_plugin.plugin -p pytest_asyncio.plugin -p no:cacheprovider
"""
PROGRAMS = {"pytest": ["-m", "pytest"], "agent-cache": ["-m", "agent_cache"], "python": []}
"""What Python is started with, for each of these commands."""


def commands(body: str) -> Iterator[tuple[str, str]]:
    """Each command of a block, and what is shown below it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def trimmed(text: str) -> str:
    """A text without what nobody sees in a terminal: blanks at the end of lines, empty lines before the first."""
    return "".join(f"{line.rstrip()}\n" for line in text.lstrip("\n").splitlines())


@pytest.fixture
def environment() -> dict[str, str]:
    """That of a reader's terminal, whose pytest loads the plugins that are needed and does not look for others."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "AGENT_CACHE_"))}
    package = str(Path(agent_cache.__file__).parents[1])
    alone = {"PYTHONPATH": package, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**bare, **alone, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}


def run(command: str, project: Path, environment: dict[str, str]) -> str:
    """What a command prints."""
    program = command.split()[0]
    begin = PROGRAMS.get(program)
    line = command if begin is None else shlex.join([sys.executable, *begin]) + command.removeprefix(program)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(line, shell=True, cwd=project, env=environment, text=True, timeout=200, **streams).stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", [*TUTORIALS, *slow(*(page for page in PAGES if page not in TUTORIALS))])
def test_a_terminal_shows_what_the_page_shows(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """Every command prints what stands below it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pytest.ini").write_text(_SETTINGS, "utf-8")
    checker = doctest.OutputChecker()
    ran = 0
    for block in _BLOCK.finditer((ROOT / page).read_text("utf-8")):
        if block["file"]:
            target = project / block["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block["body"], "utf-8")
        if block["opening"] != "console":
            continue
        for command, shown in commands(block["body"]):
            expected, printed = trimmed(shown), trimmed(run(command, project, environment))
            if not checker.check_output(expected, printed, doctest.ELLIPSIS):
                pytest.fail(f"{page}: $ {command}\n--- shown\n{expected}--- printed\n{printed}", pytrace=False)
            ran += 1
    assert ran, f"{page} has no command in its console blocks"


def test_the_tutorials_are_among_these_pages() -> None:
    """Were none found, none would fail."""
    assert set(TUTORIALS) <= set(PAGES)
