"""A marked test is recorded when it is told to be, and replayed ever after."""

from __future__ import annotations

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

    @pytest.mark.agent_cassette
    async def test_cancel():
        assert await get_order("W1") == "pending"
        await cancel_order("W1")
        assert await get_order("W1") == "pending"
"""
CASSETTE = "cassettes/test_order/test_cancel.jsonl"


def test_the_plugin_is_light(tmp_path: Path):
    """Loading it loads nothing of the library, and no event loop."""
    script = "import pytest, sys; before = set(sys.modules); import agent_cache.pytest_plugin.plugin\n"
    script += "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    environment = os.environ | {"PYTHONPATH": str(Path(agent_cache.__file__).parent.parent)}
    run = subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, check=True)
    loaded = set(json.loads(run.stdout))
    own = {"agent_cache", "agent_cache.pytest_plugin"}
    own |= {f"agent_cache.pytest_plugin.{name}" for name in ("markers", "plugin")}
    assert "agent_cache.pytest_plugin.plugin" in loaded
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == own
    assert not {"asyncio", "sqlite3", "msgspec", "ssl"} & loaded


@pytest.mark.slow
def test_a_suite_that_does_not_use_it_does_not_load_the_library(suite):
    suite.write(
        "test_plain.py",
        """
        import sys

        def test_it():
            assert not {"agent_cache.tools", "agent_cache.recording", "msgspec"} & set(sys.modules)
        """,
    )
    suite.run("-p", "no:asyncio", "-o", "addopts=", "-W", "ignore", apart=True, passed=1)


def test_what_was_recorded_once_is_replayed_without_running(suite):
    suite.write("test_order.py", ORDER)
    suite.run("--agent-record-mode=once", apart=True, passed=1)
    assert (suite.cassettes, suite.live) == ([CASSETTE], ["get_order", "cancel_order", "get_order"])
    suite.environment.setenv("ANSWER", "changed")
    suite.run(passed=1)
    assert suite.live == []


def test_without_a_recording_nothing_runs_and_the_error_says_how_to_record(suite):
    suite.write("test_order.py", ORDER)
    result = suite.run(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*MissingFixture: *test_cancel.jsonl: there is no cassette. Record it:",
            "*pytest --agent-record-mode=once test_order.py::test_cancel",
        ]
    )
    assert "pytest_plugin" not in result.stdout.str()  # no frames of ours in between
    assert (suite.live, suite.cassettes) == ([], [])


def test_a_call_that_was_not_recorded_fails_and_does_not_run(suite):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-record-mode=once", passed=1)
    suite.write("test_order.py", ORDER.replace('await cancel_order("W1")', 'await cancel_order("W2")'))
    result = suite.run(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*DivergenceError: *cancel_order(order_id='W2') was not recorded*",
            "*arguments.order_id: W1 -> W2",
            "*played: 1 of 3*",
        ]
    )
    assert suite.live == []


def test_a_swallowed_divergence_fails_the_test_and_names_the_place(suite):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-record-mode=once", passed=1)
    suite.write(
        "test_order.py",
        """
        import pytest
        from shop import get_order

        @pytest.mark.agent_cassette(allow_unplayed=True)
        async def test_cancel():
            try:
                await get_order("W9")
            except Exception:
                pass
        """,
    )
    result = suite.run(failed=1)
    result.stdout.fnmatch_lines(
        ["*DivergenceError: *W9*", "This was raised at *test_order.py:8, in test_cancel, and something has caught it."]
    )


def test_calls_that_are_left_over_fail_the_test_itself(suite):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-record-mode=once", passed=1)
    suite.write("test_order.py", ORDER.partition("        await cancel")[0])
    result = suite.run(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*DivergenceError: *test_cancel.jsonl: 2 of 3 recorded calls were not made:",
            "*call 2: shop:cancel_order(order_id='W1')",
            "*call 3: shop:get_order(order_id='W1')",
            "*pytest --agent-record-mode=rewrite test_order.py::test_cancel",
        ]
    )
    assert "pytest_plugin" not in result.stdout.str()


def test_calls_of_a_strict_test_come_in_their_order(suite):
    text = """
        import pytest
        from shop import ask

        @pytest.mark.agent_cassette(strict={})
        def test_it():
            ask("{}")
            ask("{}")
    """
    suite.write("test_order.py", text.format(True, "a", "b"))
    suite.run("--agent-record-mode=once", passed=1)
    suite.run(passed=1)
    suite.write("test_order.py", text.format(False, "b", "a"))
    suite.run(passed=1)
    suite.write("test_order.py", text.format(True, "b", "a"))
    suite.run(failed=1).stdout.fnmatch_lines(["*ask(question='b') was called too early*"])


@pytest.mark.parametrize(
    ("mode", "outcome", "live", "steps"),
    [
        ("once", "failed", 0, 3),
        ("new_episodes", "passed", 1, 4),
        ("rewrite", "passed", 4, 4),
        *slow_rows(("none", "failed", 0, 3), ("all", "passed", 4, 4)),
    ],
)
def test_the_modes_with_a_cassette_that_lacks_a_call(suite, mode, outcome, live, steps):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-record-mode=once", passed=1)
    suite.write("test_order.py", ORDER + '        await get_order("W2")\n')
    suite.run(f"--agent-record-mode={mode}", **{outcome: 1})
    assert len(suite.live) == live
    assert len(Cassette.load(suite.path / CASSETTE)) == steps


def test_a_skipped_test_leaves_its_recording_alone(suite):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-record-mode=once", passed=1)
    before = (suite.path / CASSETTE).read_bytes()
    suite.write(
        "test_order.py",
        """
        import pytest

        @pytest.mark.agent_cassette
        def test_cancel():
            pytest.skip("not today")
        """,
    )
    suite.run("--agent-record-mode=rewrite", skipped=1)
    assert (suite.path / CASSETTE).read_bytes() == before
    assert list(suite.path.rglob("*.partial")) == []


def test_the_fixture_is_the_recorder(suite):
    suite.write(
        "test_order.py",
        """
        from shop import ask

        def test_it(agent_cassette):
            assert ask("?") == "pending?"
            if agent_cassette.answers is None:
                assert [call.name for call in agent_cassette.steps] == ["shop:ask"]
            else:
                assert agent_cassette.cursor == 1
                assert agent_cassette.remaining == 0
            assert agent_cassette.path.name == "test_it.jsonl"
        """,
    )
    suite.run("--agent-record-mode=rewrite", passed=1)
    suite.run(passed=1)
    assert suite.live == []


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
        def greeting():
            yield ask("hello")
            ask("goodbye")

        @pytest.mark.agent_cassette
        async def test_it(order, greeting):
            assert (order, greeting) == ("pending", "pendinghello")
        """,
    )
    suite.run("--agent-record-mode=rewrite", passed=1)
    assert suite.live == ["get_order", "ask", "ask"]
    result = suite.run(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_it*", "*ask(question='goodbye') was not recorded*"])
    assert suite.live == []


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

    def test_plain():
        pass
"""


@pytest.mark.parametrize("workers", [(), *slow(("-n2",))], ids=["one process", "workers"])
def test_the_end_of_a_run_says_which_model_calls_were_not_made(suite, workers):
    if workers:
        pytest.importorskip("xdist")
    suite.write("test_models.py", MODELS)
    recorded = suite.run("--agent-record-mode=once", passed=4)
    recorded.stdout.no_fnmatch_line("*model call*")
    money = (
        "$0.0090" if importlib.util.find_spec("genai_prices") else 'pip install "agent-cache[[]prices]" to see money'
    )
    suite.run(*workers, apart=bool(workers), passed=4).stdout.fnmatch_lines(
        [f"agent-cache: saved 0.0 s and 3 model calls, 3000+150 tokens, {money}"]
    )
    suite.run("-k", "plain", passed=1).stdout.no_fnmatch_line("*model call*")
