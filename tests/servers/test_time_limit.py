"""A test that hangs fails, wherever it hangs and whatever it catches, and the run goes on to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

HANGING = """
import time
import pytest

@pytest.fixture
def slow_to_come():
    time.sleep(60)

@pytest.fixture
def slow_to_go():
    yield
    time.sleep(60)

def test_in_its_setup(slow_to_come): ...

def test_in_its_body():
    time.sleep(60)

def test_in_its_teardown(slow_to_go): ...

@pytest.mark.timeout(30)
def test_with_a_limit_of_its_own():
    time.sleep(0.5)

def test_that_is_quick(): ...

class Late:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self):
        time.sleep(0.5)  # pytest's own work for a test has no limit
        return (yield)

def test_that_adds_a_slow_plugin(request):
    request.config.pluginmanager.register(Late())

def test_at_the_end(): ...
"""


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["one process", "a worker"])
def test_what_hangs_fails_and_the_rest_runs(options: tuple[str, ...], pytester: pytest.Pytester, monkeypatch):
    pytest.importorskip("pytest_timeout")
    if options:
        pytest.importorskip("xdist")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makepyfile(HANGING)
    run = pytester.runpytest_subprocess("-p", "tests.harness.time_limit", "--timeout=0.3", *options)
    run.assert_outcomes(passed=5, failed=1, errors=2)
    run.stdout.fnmatch_lines(["*Timeout (>0.3s)*"])
    assert "INTERNALERROR" not in run.stdout.str() + run.stderr.str()
