"""A test suite of somebody's who has agent_cache installed."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import textwrap
from pathlib import Path

import pytest

import agent_cache

SHOP = """
    import os
    from agent_cache import AgentCache, AgentCacheInvalidator
    from agent_cache.recording import cached_llm_call, intercept, now

    def live(what):
        with open(os.environ["LIVE_LOG"], "a") as log:
            log.write(f"{what}\\n")
        return os.environ.get("ANSWER", "pending")

    @AgentCache("order:{order_id}")
    async def get_order(order_id: str) -> str:
        return live("get_order")

    @AgentCacheInvalidator("order:{order_id}")
    async def cancel_order(order_id: str) -> None:
        live("cancel_order")

    @intercept
    def ask(question: str) -> str:
        return live("ask") + question

    @cached_llm_call()
    def think(prompt: str) -> str:
        return live("think")

    @intercept
    async def chunks(count: int):
        for one in range(count):
            yield live("chunks") + str(one)
"""


# Runs in this process leave no module behind that they import: each would import, and rewrite, these anew.
importlib.import_module("agent_cache.pytest_plugin.cassette_run")
# To find these by their entry points, and others with them, takes more than half of the time of a run.
PLUGINS = [
    importlib.import_module(name)
    for name in ("agent_cache.pytest_plugin.plugin", "pytest_asyncio.plugin", "anyio.pytest_plugin")
    if importlib.util.find_spec(name.partition(".")[0])
]
# What suites do without: parts of pytest that are set up for each run here, and plugins that take long to import.
UNUSED = ["doctest", "faulthandler", "junitxml", "legacypath", "pastebin", "setuponly", "setupplan", "stepwise"]
HERE = [part for name in UNUSED for part in ("-p", f"no:{name}")]
APART = [part for name in ("anyio", "hypothesispytest", "pytest_cov", "valkey") for part in ("-p", f"no:{name}")]
RECORDED: dict[tuple[object, ...], dict[str, bytes]] = {}


class Suite:
    """Files of a suite, and runs of it.

    Attributes:
        options_apart: arguments of each run in a process of its own.
    """

    options_apart = APART

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.environment = monkeypatch
        self.log = self.path / "live.log"

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
        return path

    def run(self, *arguments: str, apart: bool = False, **outcomes: int) -> pytest.RunResult:
        """Run it; what was called live is in `live` afterwards.

        Args:
            arguments: those of pytest.
            apart: run it in a process of its own, where plugins are found by their entry points.
            outcomes: how many tests have which outcome.
        """
        self.log.unlink(missing_ok=True)
        if apart:
            result = self.pytester.runpytest_subprocess(*self.options_apart, *arguments)
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
                result = self.pytester.runpytest_inprocess(*HERE, *arguments, plugins=PLUGINS.copy())
        if outcomes:
            result.assert_outcomes(**outcomes)
        return result

    def twice(self, *arguments: str, calls: int, passed: int = 1) -> None:
        """Record it, with this number of live calls, and replay it, where nothing runs."""
        self.run("--agent-record-mode=once", *arguments, passed=passed)
        assert len(self.live) == calls
        self.environment.setenv("ANSWER", "changed")
        self.run(*arguments, passed=passed)
        assert self.live == []
        self.environment.delenv("ANSWER")

    def record(self, *arguments: str, **outcomes: int) -> None:
        """Have what a run of these files records: of the same files it runs once, and its cassettes are copied."""
        files = {str(path.relative_to(self.path)): path.read_bytes() for path in self.path.rglob("*.py")}
        answer = os.environ.get("ANSWER")
        run = (arguments, answer, (self.path / "pytest.ini").read_bytes(), *sorted(files.items()))
        if run not in RECORDED:
            self.run(*arguments, **outcomes)
            RECORDED[run] = {name: (self.path / name).read_bytes() for name in self.cassettes}
        for name, recorded in RECORDED[run].items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(recorded)

    @property
    def live(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    @property
    def cassettes(self) -> list[str]:
        return sorted(path.relative_to(self.path).as_posix() for path in self.path.rglob("*.jsonl"))


@functools.cache
def is_installed() -> bool:
    """Whether pytest finds the plugin, as it does where the package is installed."""
    return any(one.name == "agent_cache" for one in importlib.metadata.entry_points(group="pytest11"))


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Strict as can be: warnings are errors, unknown markers too."""
    root = str(Path(agent_cache.__file__).parent.parent)
    search = [root]
    if not is_installed():
        site = pytester.mkdir("site")  # as an installation would have it
        info = site / "agent_cache-0.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agent-cache\nVersion: 0.0\n")
        (info / "RECORD").write_text("agent_cache/__init__.py,,\nagent_cache/pytest_plugin/plugin.py,,\n")
        (info / "entry_points.txt").write_text("[pytest11]\nagent_cache = agent_cache.pytest_plugin.plugin\n")
        search.append(str(site))
    for folder in search[1:]:
        monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(pytester.path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*search, str(pytester.path)]))
    monkeypatch.setenv("LIVE_LOG", str(pytester.path / "live.log"))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    made = Suite(pytester, monkeypatch)
    made.write(
        "pytest.ini",
        """
        [pytest]
        addopts = --strict-markers --strict-config -p no:randomly
        asyncio_mode = auto
        asyncio_default_fixture_loop_scope = function
        filterwarnings = error
        norecursedirs = site
        """,
    )
    made.write("shop.py", SHOP)
    return made
