"""A marked test is recorded when it is told to be, and replayed ever after."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_cache
from agent_cache.recording import Cassette
from tests.harness.slow import slow, slow_rows

pytest_plugins = ["pytester"]

ORDER = """
    import pytest
    from shop import cancel_order, get_order

    @pytest.mark.agent_cassette{options}
    async def test_cancel():
        assert await get_order("W1") == "pending"
        await cancel_order("W1")
        assert await get_order("W1") == "pending"
"""
READ, WRITE = ORDER.splitlines(keepends=True)[-3:-1]
CASSETTE = "cassettes/test_order/test_cancel.jsonl"


def order(*changes: tuple[str, str], options: str = "", more: str = "") -> str:
    text = ORDER.replace("{options}", options) + more
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture
def recorded(suite):
    """A suite with a recorded test."""
    suite.write("test_order.py", order())
    suite.record("--agent-record-mode=once", passed=1)
    return suite


def test_the_plugin_is_light(tmp_path: Path):
    """Loading it loads nothing of the library but its lock, and no event loop."""
    script = "import pytest, sys; before = set(sys.modules); import agent_cache.pytest_plugin.plugin\n"
    script += "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    environment = os.environ | {"PYTHONPATH": str(Path(agent_cache.__file__).parent.parent)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, check=True)
    loaded = set(json.loads(run.stdout))
    own = "", ".at_fork", ".pytest_plugin", ".pytest_plugin.markers", ".pytest_plugin.plugin"
    others = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert others == {f"agent_cache{name}" for name in own}
    assert not {"asyncio", "sqlite3", "msgspec", "ssl"} & loaded


def test_without_a_recording_nothing_runs_and_what_was_recorded_once_is_replayed(suite):
    suite.write("tests/test_order.py", order())
    suite.environment.chdir(suite.path / "tests")  # the command is for who is there
    result = suite.run(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*MissingFixture: *test_cancel.jsonl: there is no cassette. Record it:",
            "*pytest --agent-record-mode=once test_order.py::test_cancel",
        ]
    )
    assert "pytest_plugin" not in result.stdout.str()  # no frames of ours in between
    assert (suite.live, suite.cassettes) == ([], [])
    suite.run("--agent-record-mode=once", apart=True, passed=1)
    assert (suite.cassettes, suite.live) == ([f"tests/{CASSETTE}"], ["get_order", "cancel_order", "get_order"])
    suite.environment.setenv("ANSWER", "changed")
    suite.run(passed=1)
    assert suite.live == []


CATCHES = """
        try:
            await get_order("W9")
        except Exception:
            pass
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            order(('await cancel_order("W1")', 'await cancel_order("W2")')),
            ["*cancel_order(order_id='W2') was not recorded*", "*arguments.order_id: W1 -> W2", "*played: 1 of 3*"],
        ),
        (
            order(options="(allow_unplayed=True)", more=CATCHES),
            [
                "*DivergenceError: *W9*",
                "This was raised at *test_order.py:*, in test_cancel, and something has caught it.",
            ],
        ),
        (
            order().partition("        await cancel")[0],
            [
                "*DivergenceError: *test_cancel.jsonl: 2 of 3 recorded calls were not made:",
                "*call 2: shop:cancel_order(order_id='W1')",
                "*call 3: shop:get_order(order_id='W1')",
                "*pytest --agent-record-mode=rewrite test_order.py::test_cancel",
            ],
        ),
        (
            order((f"{READ}{WRITE}", f"{WRITE}{READ}"), options="(strict=True)"),
            ["*cancel_order(order_id='W1') was called too early*"],
        ),
    ],
    ids=["another call", "swallowed", "left over", "strict"],
)
def test_a_run_that_differs_fails_and_nothing_runs(text, lines, recorded):
    recorded.write("test_order.py", text)
    recorded.run(failed=1).stdout.fnmatch_lines(lines)
    assert recorded.live == []


@pytest.mark.parametrize(
    ("mode", "outcome", "live", "steps"),
    [
        ("once", "failed", 0, 3),
        ("new_episodes", "passed", 1, 4),
        ("rewrite", "passed", 4, 4),
        *slow_rows(("none", "failed", 0, 3), ("all", "passed", 4, 4)),
    ],
)
def test_the_modes_with_a_cassette_that_lacks_a_call(recorded, mode, outcome, live, steps):
    recorded.write("test_order.py", order(more='        await get_order("W2")\n'))
    recorded.run(f"--agent-record-mode={mode}", **{outcome: 1})
    assert len(recorded.live) == live
    assert len(Cassette.load(recorded.path / CASSETTE)) == steps


@pytest.mark.parametrize("end", ['pytest.skip("not today")', 'pytest.exit("stop")'])
def test_a_test_that_is_skipped_or_stopped_leaves_its_recording_alone(end, recorded):
    before = (recorded.path / CASSETTE).read_bytes()
    recorded.write("test_order.py", order((WRITE, f"{WRITE}        {end}\n")))
    recorded.run("--agent-record-mode=rewrite")
    assert (recorded.path / CASSETTE).read_bytes() == before
    assert list(recorded.path.rglob("*.partial")) == []


SKIPPED = """
    import pytest, unittest

    @pytest.mark.agent_cassette
    class TestOrder(unittest.TestCase):
        @unittest.skip("not today")
        def test_it(self):
            pass

    @pytest.mark.agent_cassette
    @pytest.mark.skip
    def test_it():
        pass
"""


def test_a_test_that_is_always_skipped_needs_no_recording(suite):
    suite.write("test_order.py", SKIPPED)
    suite.run(skipped=2)


def test_fixtures_of_the_test_are_part_of_its_recording_and_their_teardown_never_runs_live(suite):
    suite.write(
        "test_order.py",
        """
        import pytest
        from shop import ask, get_order

        @pytest.fixture
        async def order():
            yield await get_order("W1")

        @pytest.fixture
        def greeting(agent_cassette):
            assert agent_cassette.path.name == "test_it.jsonl"
            yield ask("hello")
            ask("goodbye")

        async def test_it(order, greeting):
            assert (order, greeting) == ("pending", "pendinghello")
        """,
    )
    suite.run("--agent-record-mode=rewrite", passed=1)
    assert suite.live == ["get_order", "ask", "ask"]
    result = suite.run(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_it*", "*ask(question='goodbye') was not recorded*"])
    assert suite.live == ["get_order"]  # before the recording began


MODELS = """
    import pytest
    from agent_cache.recording import cached_llm_call

    @cached_llm_call(name="ask")
    def ask(prompt):
        return {"model": "gpt-4o", "usage": {"prompt_tokens": 1000, "completion_tokens": 50}}

    @pytest.mark.agent_cassette
    @pytest.mark.parametrize("prompt", ["one", "two", "three"])
    def test_model(prompt):
        assert ask(prompt)
"""


@pytest.mark.parametrize("workers", [(), *slow(("-n2",))], ids=["one process", "workers"])
def test_the_end_of_a_run_says_which_model_calls_were_not_made(suite, workers):
    if workers:
        pytest.importorskip("xdist")
    suite.write("test_models.py", MODELS)
    suite.run("--agent-record-mode=once", passed=3).stdout.no_fnmatch_line("*model call*")
    has_prices = importlib.util.find_spec("genai_prices")
    money = "$0.0090" if has_prices else 'pip install "agent-cache[[]prices]" to see money'
    suite.run(*workers, apart=bool(workers), passed=3).stdout.fnmatch_lines(
        [f"agent-cache: saved *.? s and 3 model calls, 3000+150 tokens, {money}"]
    )


AGAIN = """
    from _pytest.runner import runtestprotocol

    def pytest_runtest_protocol(item, nextitem):
        for _ in range(2):
            for report in runtestprotocol(item, nextitem=nextitem, log=False):
                item.ihook.pytest_runtest_logreport(report=report)
        return True
"""


def test_a_test_that_is_run_again_is_counted_once_for_each_run(suite):
    suite.write("test_models.py", MODELS)
    suite.run("--agent-record-mode=once", passed=3)
    suite.write("conftest.py", AGAIN)
    suite.run(passed=6).stdout.fnmatch_lines(["agent-cache: saved *.? s and 6 model calls, 6000+300 tokens, *"])


def test_a_test_that_failed_while_it_was_recorded_is_recorded_anew_when_it_is_run_again(suite):
    suite.write("conftest.py", AGAIN)
    first = ("import pytest\n", "import pytest\n    attempts = []\n")
    suite.write("test_order.py", order(first, (WRITE, f"        assert attempts or attempts.append(1)\n{WRITE}")))
    for live in (4, 0):
        suite.run("--agent-record-mode=once", failed=1, passed=1)
        assert len(suite.live) == live


# Recording an unchanged suite again changes no file, in whatever order its tests run


TESTS = """
    import asyncio
    import pytest
    from shop import ask, cancel_order, chunks, get_order, think

    pytestmark = pytest.mark.agent_cassette

    async def test_reads():
        assert await get_order("7") == await get_order("7")

    async def test_reads_the_same():
        await get_order("7")
        think("about it")

    async def test_cancels():
        await asyncio.gather(get_order("7"), get_order("8"))
        await cancel_order("7")
        assert [one async for one in chunks(2)]
"""


def files(suite) -> dict[str, tuple[str, int]]:
    return {
        name: (hashlib.sha256((suite.path / name).read_bytes()).hexdigest(), (suite.path / name).stat().st_mtime_ns)
        for name in suite.cassettes
    }


WORKERS = pytest.param(
    ("-n", "2", "-p", "xdist"),
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="needs pytest-xdist"),
    ],
    id="workers",
)
BACKWARDS = """
    def pytest_collection_modifyitems(items):
        items.reverse()
"""


@pytest.mark.parametrize("options", [pytest.param((), id="one process"), WORKERS])
def test_an_unchanged_suite_leaves_every_file_as_it_was(options, suite):
    suite.write("test_agents.py", TESTS)
    suite.run("--agent-record-mode=once", passed=3)
    before = files(suite)
    assert len(before) == 3
    suite.write("conftest.py", BACKWARDS)
    suite.run("--agent-record-mode=rewrite", *options, apart=True, passed=3)
    assert files(suite) == before
    suite.run("--agent-record-mode=rewrite", "-k", "test_reads_the_same", passed=1)
    assert files(suite) == before
    suite.run(passed=3)
