"""`agent-cache mcp` in front of servers of other people, which need version 1 of the MCP SDK."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp.server.fastmcp", reason="needs mcp<2")

from agent_cache import Toolbox
from tests.harness.mcp_host import relayed

# Servers of other people


def git(folder, *arguments):
    environment = {"GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    names = ["-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *names, "-C", str(folder), *arguments], check=True, capture_output=True, env=environment)


def block_of_readme(language, text):
    readme = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
    [found] = [
        block for block in re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL) if text in block
    ]
    return found


async def test_what_readme_shows_of_the_relay_is_true(tmp_path):
    """The proposed file is one, and of five logs four are hits whatever is read between, until there is a commit."""
    pytest.importorskip("mcp_server_git")
    explain, start = block_of_readme("sh", "--explain").splitlines()
    tools = Path(sys.executable).parent
    if shutil.which("agent-cache", path=tools) is None:
        pytest.skip("the command is not installed beside this Python")
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", explain], check=True, cwd=tmp_path, env=environment)
    assert Toolbox.from_file(tmp_path / "git.toml").namespace == "mcp-git"

    rules, folder = tmp_path / "git.toml", tmp_path / "repo"
    rules.write_text(block_of_readme("toml", "git_log"))
    folder.mkdir()
    git(folder, "init")
    git(folder, "commit", "--allow-empty", "-m", "the first")
    git(folder, "config", "user.name", "tests")
    git(folder, "config", "user.email", "tests@example.org")
    _, _, *options = shlex.split(start.replace("git.toml", str(rules)))
    cut = options.index("--")
    repo = str(folder)
    async with relayed(*options[:cut], "--stats", server=(tools / options[cut + 1],)) as host:
        logs = [await host.call("git_log", repo_path=repo)]
        shown, local = {"revision": "HEAD"}, {"branch_type": "local"}
        for tool, more in {"git_status": {}, "git_diff_unstaged": {}, "git_show": shown, "git_branch": local}.items():
            await host.call(tool, repo_path=repo, **more)
            logs.append(await host.call("git_log", repo_path=repo))
        assert len(set(logs)) == 1
        (folder / "two").write_text("two")
        await host.call("git_add", repo_path=repo, files=["two"])
        await host.call("git_commit", repo_path=f"{repo}/", message="the second")
        assert "the second" in await host.call("git_log", repo_path=repo)
    assert "calls 12, hits 4" in host.errors


async def test_the_clock_of_the_time_server_does_not_stand_still():
    pytest.importorskip("mcp_server_time")
    async with relayed("--stats", server=(sys.executable, "-m", "mcp_server_time")) as host:
        for _ in range(2):
            await host.call("get_current_time", timezone="Europe/Paris")
    assert "calls 2, hits 0, misses 2" in host.errors
