"""A test under `agent_baseline` fails if its run has drifted from the accepted ones."""

from __future__ import annotations

import shlex

import pytest

from agent_cache.__main__ import main
from agent_cache.recording import Cassette
from tests.harness.slow import slow_rows

pytest_plugins = ["pytester"]

ORDER = """
    import pytest
    from agent_cache.recording import Tolerance
    from shop import cancel_order, get_order

    @pytest.mark.agent_baseline
    async def test_cancel():
        await get_order("W1")
        await cancel_order("W1")
"""
BASELINE = "baselines/test_order/test_cancel"
OTHER_WRITE = ORDER.replace('cancel_order("W1")', 'cancel_order("W2")')
OTHER_READ = ORDER.replace('get_order("W1")', 'get_order("W2")')
FAILS = "        assert False, 'of itself'\n"


def with_marker(text: str, marker: str) -> str:
    return text.replace("@pytest.mark.agent_baseline\n", f"@pytest.mark.{marker}\n")


@pytest.fixture
def accepted(suite):
    """A suite with an accepted run."""
    suite.write("test_order.py", ORDER)
    suite.record("--agent-baseline=once", passed=1)
    return suite


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


def test_a_live_run_is_accepted_once_and_compared_ever_after(suite):
    suite.write("test_order.py", f"{ORDER[: ORDER.index('        await')]}        pass\n")
    result = suite.run("--agent-baseline=once", failed=1)
    result.stdout.fnmatch_lines(["*has no calls, so nothing can be compared with it"])
    assert suite.cassettes == []
    suite.write("test_order.py", ORDER)
    result = suite.run("--agent-baseline=once", passed=1)
    result.stdout.fnmatch_lines(["*accepted baselines*", f"{BASELINE}/1.jsonl"])
    suite.run(passed=1)
    assert suite.live == ["get_order", "cancel_order"]
    suite.write("test_order.py", OTHER_WRITE)
    result = suite.run(failed=1)
    result.stdout.fnmatch_lines(
        [
            f"The run has drifted from its baseline {BASELINE} (the test fails on warning):",
            "CRITICAL: *cancel_order*",
            "The run is in *.jsonl",
            f"*agent-cache drift accept *.jsonl --as {BASELINE} --replace",
            f"*agent-cache drift accept *.jsonl --as {BASELINE} --add",
        ]
    )
    suite.run("--agent-baseline=once", failed=1)  # there is one
    assert suite.cassettes == [f"{BASELINE}/1.jsonl"]
    assert main(shlex.split(next(line for line in result.outlines if line.strip().endswith("--replace")))[1:]) == 0
    suite.run(passed=1)


@pytest.mark.slow
def test_a_run_is_accepted_instead_of_the_old_ones_or_beside_them(accepted):
    for mode in ("accept", "add"):
        result = accepted.run(f"--agent-baseline={mode}", passed=1)
        assert "accepted baselines" not in result.stdout.str()  # it does the same
    accepted.write("test_order.py", OTHER_READ)
    result = accepted.run("--agent-baseline=add", passed=1)
    result.stdout.fnmatch_lines([f"{BASELINE}/2.jsonl; it differs by ? warning*"])
    accepted.write("test_order.py", OTHER_WRITE)
    result = accepted.run("--agent-baseline=accept", passed=1)
    result.stdout.fnmatch_lines([f"{BASELINE}/1.jsonl, instead of 2; it differs by ? critical*"])
    assert accepted.cassettes == [f"{BASELINE}/1.jsonl"]
    accepted.run(passed=1)


def test_a_replayed_run_is_compared_too(suite):
    suite.write("test_order.py", with_marker(ORDER, "agent_baseline\n    @pytest.mark.agent_cassette"))
    suite.run("--agent-record-mode=once", "--agent-baseline=once", passed=1)
    assert suite.cassettes == [f"{BASELINE}/1.jsonl", "cassettes/test_order/test_cancel.jsonl"]
    calls = [
        [(call.name, call.source, call.lane) for call in Cassette.load(suite.path / one)] for one in suite.cassettes
    ]
    assert calls[0] == calls[1] == [("shop:get_order", "miss", 0), ("shop:cancel_order", "write", 0)]
    suite.run("--agent-block-live", passed=1)
    suite.write("test_order.py", with_marker(OTHER_WRITE, "agent_baseline\n    @pytest.mark.agent_cassette"))
    suite.run("--agent-record-mode=rewrite", failed=1).stdout.fnmatch_lines(["CRITICAL: *"])
    result = suite.run(failed=1)  # the cassette was written, and the baseline has not changed
    result.stdout.fnmatch_lines(["CRITICAL: *cancel_order*"])
    assert suite.live == []


@pytest.mark.parametrize(
    ("text", "marker", "outcome"),
    [
        (OTHER_READ, 'agent_baseline(fail_on="critical")', "passed"),
        (OTHER_READ, 'agent_baseline(fail_on="warning")', "failed"),
        (ORDER, "agent_baseline(tolerance='drift.toml')", "passed"),
        *slow_rows(
            (OTHER_WRITE, 'agent_baseline(fail_on="critical")', "failed"),
            (ORDER, 'agent_baseline(tolerance=Tolerance(ignore=["*:result"]), fail_on="info")', "passed"),
            (ORDER, 'agent_baseline(fail_on="info")', "failed"),
        ),
    ],
)
def test_the_marker_says_what_is_tolerated(text: str, marker: str, outcome: str, accepted):
    accepted.environment.setenv("ANSWER", "late" if text is ORDER else "pending")
    accepted.write("drift.toml", 'ignore = ["shop:get_order:result"]')
    accepted.write("test_order.py", with_marker(text, marker))
    accepted.run(**{outcome: 1})


@pytest.mark.slow
def test_a_live_run_is_refused_where_live_calls_are(suite):
    suite.write("test_order.py", ORDER)
    result = suite.run("--agent-baseline=once", "--agent-block-live", failed=1)
    result.stdout.fnmatch_lines(["*get_order was called outside of a recording*"])
    suite.write("test_order.py", with_marker(ORDER, 'agent_baseline(http="no")'))
    suite.run("--agent-baseline=once", errors=1).stdout.fnmatch_lines(["*http*'no'"])
    assert (suite.live, suite.cassettes) == ([], [])
    suite.write("test_order.py", with_marker(ORDER, 'agent_baseline\n    @pytest.mark.agent_live("nightly")'))
    suite.run("--agent-baseline=once", "--agent-block-live", passed=1)


@pytest.mark.slow
def test_a_test_that_fails_or_is_skipped_accepts_nothing(suite):
    for text, mode, outcome in ((FAILS, "once", "failed"), (FAILS, "accept", "failed")):
        suite.write("test_order.py", ORDER + text)
        suite.run(f"--agent-baseline={mode}", **{outcome: 1})
    suite.write("test_order.py", f"{ORDER}        pytest.skip('not today')\n")
    suite.run("--agent-baseline=once", skipped=1)
    assert suite.cassettes == []


def test_a_shared_baseline_or_a_single_file_is_not_replaced_or_added_to(suite):
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
    result = suite.run("--agent-baseline=accept", errors=2)
    result.stdout.fnmatch_lines(["*shared is the baseline of test_order.py::test_read?2?, too*"])
    suite.run("--agent-baseline=add", passed=2)
    suite.run(passed=2)
    suite.write("test_order.py", with_marker(ORDER, 'agent_baseline("approved/cancel.jsonl")'))
    suite.run("--agent-baseline=once", passed=1)
    result = suite.run("--agent-baseline=add", errors=1)
    result.stdout.fnmatch_lines(["*approved/cancel.jsonl is the file of one run; to keep several, name a folder"])


def test_secrets_do_not_get_into_a_baseline_and_calls_are_the_same_without_them(suite):
    suite.write("test_order.py", with_marker(ORDER, 'agent_baseline(redact=["order_id"])'))
    suite.run("--agent-baseline=once", passed=1)
    assert "W1" not in (suite.path / BASELINE / "1.jsonl").read_text()
    suite.write("test_order.py", ORDER)
    suite.run(passed=1)  # the baseline knows its rules
    twice = ORDER.replace('get_order("W1")', 'get_order("W1"), await get_order("W1")')
    suite.write("test_order.py", with_marker(twice, 'agent_baseline(fail_on="info")'))
    result = suite.run("--basetemp=runs", failed=1)
    result.stdout.fnmatch_lines([f"The run is in {suite.path}/runs/*/run.jsonl"])
    (path,) = (suite.path / "runs").rglob("run.jsonl")
    assert "W1" not in path.read_text()
