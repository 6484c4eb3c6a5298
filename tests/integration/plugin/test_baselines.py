"""A test under `agent_baseline` fails if its run has drifted from the accepted ones."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest

from agent_cache.cli.main import main
from agent_cache.recording import Cassette, intercept, record
from tests.harness.slow import slow, slow_rows

pytest_plugins = ["pytester"]

ORDER = """
    import pytest
    from shop import cancel_order, get_order

    @pytest.mark.agent_baseline
    async def test_cancel():
        await get_order("W1")
        await cancel_order("W1")
"""
BASELINE = "baselines/test_order/test_cancel"
OTHER_WRITE = ORDER.replace('cancel_order("W1")', 'cancel_order("W2")')
OTHER_READ = ORDER.replace('get_order("W1")', 'get_order("W2")')


def with_marker(text: str, marker: str) -> str:
    return text.replace("@pytest.mark.agent_baseline\n", f"@pytest.mark.{marker}\n")


def test_without_a_baseline_nothing_runs_and_the_error_says_how_to_accept_one(suite):
    suite.write("test_order.py", ORDER)
    result = suite.run(errors=1)
    result.stdout.fnmatch_lines(
        [
            f"*MissingFixture: *{BASELINE}: there is no baseline. To accept the next run as its baseline:",
            "*pytest --agent-baseline=once test_order.py::test_cancel",
        ]
    )
    assert "pytest_plugin" not in result.stdout.str()  # no frames of ours in between
    assert (suite.live, suite.cassettes) == ([], [])


@pytest.mark.parametrize("apart", [False, *slow(True)], ids=["here", "apart"])
def test_a_live_run_is_accepted_once_and_compared_ever_after(suite, apart):
    suite.write("test_order.py", ORDER)
    result = suite.run("--agent-baseline=once", apart=apart, passed=1)
    result.stdout.fnmatch_lines(["agent-cache: baselines: once", "*accepted baselines*", f"{BASELINE}/1.jsonl"])
    assert (suite.cassettes, suite.live) == ([f"{BASELINE}/1.jsonl"], ["get_order", "cancel_order"])
    suite.run(apart=apart, passed=1)
    assert suite.live == ["get_order", "cancel_order"]
    suite.write("test_order.py", OTHER_WRITE)
    result = suite.run(apart=apart, failed=1)
    result.stdout.fnmatch_lines(
        [
            f"The run has drifted from its baseline {BASELINE} (the test fails on warning):",
            "CRITICAL: *cancel_order*",
            "The run is in *.jsonl",
            f"*agent-cache drift accept *.jsonl --as {BASELINE} --replace",
            f"*agent-cache drift accept *.jsonl --as {BASELINE} --add",
            "FAILED test_order.py::test_cancel*",
        ]
    )
    assert "pytest_plugin" not in result.stdout.str()
    suite.run("--agent-baseline=once", failed=1)  # there is one
    assert [one.name for one in (suite.path / BASELINE).iterdir()] == ["1.jsonl"]


def test_the_command_that_the_report_shows_accepts_the_run(suite):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-baseline=once", passed=1)
    suite.write("test_order.py", OTHER_WRITE)
    result = suite.run(failed=1)
    command = next(line for line in result.outlines if line.strip().endswith("--replace"))
    assert main(shlex.split(command)[1:]) == 0
    suite.run(passed=1)
    assert suite.cassettes == [f"{BASELINE}/1.jsonl"]


@pytest.mark.slow
def test_a_run_is_accepted_instead_of_the_old_ones_or_beside_them(suite):
    suite.write("test_order.py", ORDER)
    suite.run("--agent-baseline=accept", passed=1)
    before = (suite.path / BASELINE / "1.jsonl").read_bytes()
    for mode in ("accept", "add"):
        result = suite.run(f"--agent-baseline={mode}", passed=1)
        assert "accepted baselines" not in result.stdout.str()  # it does the same
    assert (suite.path / BASELINE / "1.jsonl").read_bytes() == before
    suite.write("test_order.py", OTHER_READ)
    suite.run("--agent-baseline=add", passed=1).stdout.fnmatch_lines([f"{BASELINE}/2.jsonl; it differs by ? warning*"])
    suite.write("test_order.py", OTHER_WRITE)
    result = suite.run("--agent-baseline=accept", passed=1)
    result.stdout.fnmatch_lines([f"{BASELINE}/1.jsonl, instead of 2; it differs by ? critical*"])
    assert suite.cassettes == [f"{BASELINE}/1.jsonl"]
    suite.run(passed=1)


def test_a_replayed_run_is_compared_too(suite):
    suite.write("test_order.py", with_marker(ORDER, "agent_baseline\n    @pytest.mark.agent_cassette"))
    suite.run("--agent-record-mode=once", "--agent-baseline=once", passed=1)
    cassette = "cassettes/test_order/test_cancel.jsonl"
    assert suite.cassettes == [f"{BASELINE}/1.jsonl", cassette]
    calls = [
        [(call.name, call.source, call.lane) for call in Cassette.load(suite.path / one)] for one in suite.cassettes
    ]
    assert calls[0] == calls[1] == [("shop:get_order", "miss", 0), ("shop:cancel_order", "write", 0)]
    suite.run(passed=1)
    assert suite.live == []
    suite.write("test_order.py", with_marker(OTHER_WRITE, "agent_baseline\n    @pytest.mark.agent_cassette"))
    suite.run("--agent-record-mode=rewrite", failed=1).stdout.fnmatch_lines(["CRITICAL: *"])
    result = suite.run(failed=1)  # the cassette was written, and the baseline has not changed
    result.stdout.fnmatch_lines(["CRITICAL: *cancel_order*"])
    assert suite.live == []


@pytest.mark.parametrize(("text", "fail_on", "outcome"), [
    (OTHER_READ, "critical", "passed"), (OTHER_READ, "warning", "failed"),
    *slow_rows((OTHER_WRITE, "critical", "failed")),
])  # fmt: skip
def test_the_test_says_how_severe_a_drift_must_be(text: str, fail_on: str, outcome: str, suite):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-baseline=once", passed=1)
    suite.write("test_order.py", with_marker(text, f'agent_baseline(fail_on="{fail_on}")'))
    suite.run(**{outcome: 1})


def test_a_tolerance_is_an_object_or_a_file_beside_the_test(suite):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-baseline=once", passed=1)
    suite.environment.setenv("ANSWER", "late")
    suite.run(failed=1)
    suite.write("drift.toml", 'ignore = ["shop:get_order:result"]')
    suite.write("test_order.py", with_marker(ORDER, 'agent_baseline(tolerance="drift.toml")'))
    suite.run(passed=1)
    tolerance = "from agent_cache.recording import Tolerance\n    import pytest"
    text = with_marker(ORDER, 'agent_baseline(tolerance=Tolerance(ignore=["*:result"]), fail_on="info")')
    suite.write("test_order.py", text.replace("import pytest", tolerance))
    suite.run(passed=1)


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("agent_baseline(7)", "path must be a text, got 7"),
        ('agent_baseline(fail_on="error")', "fail_on must be one of info, warning, critical, got 'error'"),
        *slow_rows(
            ('agent_baseline("")', "path must be a text, got ''"),
            ('agent_baseline(paths="x")', "does not know 'paths'*"),
            ("agent_baseline(tolerance=0.2)", "tolerance must be a Tolerance, or the path of a file, got 0.2"),
            ('agent_baseline(http="no")', "http*'no'*"),
        ),
    ],
)
def test_bad_arguments_of_the_marker_are_clear_errors(marker: str, text: str, suite):
    suite.write("test_order.py", with_marker(ORDER, marker))
    result = suite.run("--agent-baseline=once")
    assert result.ret != 0
    (result.stderr if result.ret == pytest.ExitCode.USAGE_ERROR else result.stdout).fnmatch_lines([f"*{text}"])
    assert suite.live == []


@pytest.mark.slow
def test_a_baseline_is_at_the_path_of_the_marker(suite):
    suite.write("sub/test_order.py", with_marker(ORDER, 'agent_baseline("approved/cancel.jsonl")'))
    suite.run("--agent-baseline=once", passed=1)
    assert suite.cassettes == ["sub/approved/cancel.jsonl"]
    suite.run(passed=1)
    result = suite.run("--agent-baseline=add", errors=1)
    result.stdout.fnmatch_lines(["*approved/cancel.jsonl is the file of one run; to keep several, name a folder"])
    suite.write("sub/test_order.py", with_marker(OTHER_WRITE, 'agent_baseline("approved/cancel.jsonl")'))
    assert "--add" not in suite.run(failed=1).stdout.str()
    suite.run("--agent-baseline=accept", passed=1).stdout.fnmatch_lines(
        ["*cancel.jsonl, instead of 1; it differs by ? critical"]
    )
    suite.run(passed=1)


@pytest.mark.slow
def test_a_live_run_is_refused_where_live_calls_are(suite):
    suite.write("test_order.py", ORDER)
    result = suite.run("--agent-baseline=once", "--agent-block-live", failed=1)
    result.stdout.fnmatch_lines(["*get_order was called outside of a recording*"])
    assert (suite.live, suite.cassettes) == ([], [])
    suite.write("test_order.py", with_marker(ORDER, 'agent_baseline\n    @pytest.mark.agent_live("nightly")'))
    suite.run("--agent-baseline=once", "--agent-block-live", passed=1)
    suite.write("test_order.py", with_marker(ORDER, "agent_baseline\n    @pytest.mark.agent_cassette"))
    suite.run("--agent-record-mode=once", "--agent-block-live", passed=1)
    suite.run("--agent-block-live", passed=1)


@pytest.mark.slow
def test_a_test_that_fails_or_is_skipped_accepts_nothing_and_says_what_has_drifted(suite):
    suite.write("test_order.py", f"{ORDER}        assert False, 'of itself'\n")
    for mode in ("once", "add", "accept"):
        suite.run(f"--agent-baseline={mode}", failed=1)
    suite.write("test_order.py", f"{ORDER}        pytest.skip('not today')\n")
    suite.run("--agent-baseline=once", skipped=1)
    assert suite.cassettes == []
    suite.write("test_order.py", ORDER)
    suite.record("--agent-baseline=once", passed=1)
    suite.write("test_order.py", f"{OTHER_WRITE}        assert False, 'of itself'\n")
    result = suite.run(failed=1)
    result.stdout.fnmatch_lines(["*of itself*", "*Captured agent baseline call*", "CRITICAL: *cancel_order*"])


def test_a_shared_baseline_is_compared_with_and_never_replaced(suite):
    text = """
        import pytest
        from shop import get_order

        @pytest.mark.agent_baseline("shared")
        @pytest.mark.parametrize("times", [1, 2])
        async def test_read(times):
            for _ in range(times):
                await get_order("W1")
    """
    suite.write("test_order.py", text)
    for mode in ("once", "accept"):
        result = suite.run(f"--agent-baseline={mode}", errors=2)
        result.stdout.fnmatch_lines(["*shared is the baseline of test_order.py::test_read?2?, too*"])
    suite.run("--agent-baseline=add", passed=2)
    suite.run(passed=2)


def record_another_agent(path: Path) -> None:
    @intercept(name="bank:balance")
    def balance() -> int:
        return 7

    with record(path):
        balance()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: path.write_text(path.read_text()[:-40]), "*1.jsonl*"),
        (record_another_agent, "*another agent*"),
        *slow_rows(
            (lambda path: path.write_text("<<<<<<< HEAD\n"), "*1.jsonl*"),
            (lambda path: path.rename(path.with_suffix(".txt")), "*has no accepted run*"),
        ),
    ],
    ids=["torn", "of another agent", "in conflict", "gone"],
)
def test_a_baseline_that_cannot_be_used_fails_the_test(damage, text: str, suite):
    suite.write("test_order.py", ORDER)
    suite.record("--agent-baseline=once", passed=1)
    damage(suite.path / BASELINE / "1.jsonl")
    result = suite.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([text])
    assert "pytest_plugin" not in result.stdout.str()


def test_secrets_do_not_get_into_a_baseline_and_calls_are_the_same_without_them(suite):
    suite.write("test_order.py", ORDER)
    suite.write(
        "conftest.py",
        """
        import pytest

        @pytest.fixture
        def agent_cache_config():
            return {"redact": ["order_id"]}
        """,
    )
    suite.run("--agent-baseline=once", passed=1)
    assert "W1" not in (suite.path / BASELINE / "1.jsonl").read_text()
    (suite.path / "conftest.py").unlink()
    suite.run(passed=1)  # the baseline knows its rules
    twice = ORDER.replace('get_order("W1")', 'get_order("W1"), await get_order("W1")')
    suite.write("test_order.py", with_marker(twice, 'agent_baseline(fail_on="info")'))
    result = suite.run("--basetemp=runs", failed=1)
    result.stdout.fnmatch_lines([f"The run is in {suite.path}/runs/*/run.jsonl"])
    (path,) = (suite.path / "runs").rglob("run.jsonl")
    assert "W1" not in path.read_text()
    suite.write("test_order.py", with_marker(ORDER, 'agent_baseline("other", redact=["order_id"])'))
    suite.run("--agent-baseline=once", passed=1)
    assert "W1" not in (suite.path / "other/1.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="needs pytest-xdist")
def test_workers_accept_and_compare(suite):
    text = "\n".join(ORDER.replace("test_cancel", f"test_{number}") for number in range(4))
    suite.write("test_order.py", text)
    result = suite.run("-n", "2", "-p", "xdist", "--agent-baseline=once", apart=True, passed=4)
    result.stdout.fnmatch_lines([f"baselines/test_order/test_{number}/1.jsonl" for number in range(4)])
    suite.run("-n", "2", "-p", "xdist", apart=True, passed=4)
    suite.write("test_order.py", text.replace('cancel_order("W1")', 'cancel_order("W2")', 1))
    suite.run("-n", "2", "-p", "xdist", apart=True, passed=3, failed=1)
