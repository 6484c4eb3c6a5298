"""What `agent_cache.testing` gives to other people's test suites, seen from such a suite."""

from __future__ import annotations

import asyncio
import os

import pytest

from agent_cache import AgentCache, testing
from tests.harness.processes import python, run_python

pytest_plugins = ["pytester"]

CONFTEST = 'pytest_plugins = ["agent_cache.testing.fixtures"]'
TOOL = """
    from agent_cache import AgentCache, configure, get_metrics

    configure(max_bytes=1_000_000)

    @AgentCache("order")
    async def get_orders():
        runs.append(1)

    runs = []
"""


def ran(suite: pytest.Pytester) -> pytest.RunResult:
    """A run of the suite in a process of its own, with the one plugin that it needs."""
    done = python(
        "-m",
        "pytest",
        *("-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider"),
        folder=suite.path,
        environment=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error"
    )
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(shop=TOOL)
    return pytester


def test_the_fixture_gives_each_test_an_empty_cache_and_empty_counters(suite: pytest.Pytester):
    suite.makepyfile("""
        import pytest
        from shop import get_metrics, get_orders, runs

        @pytest.mark.parametrize("nth", [1, 2])
        async def test_it(nth, clean_agent_cache):
            await get_orders()
            await get_orders()
            assert len(runs) == nth
            assert get_metrics()["calls"] == 2
    """)
    ran(suite).assert_outcomes(passed=2)


def test_the_fixture_puts_back_what_the_application_has_configured(suite: pytest.Pytester):
    suite.makepyfile("""
        from agent_cache import configure
        from agent_cache.config import CURRENT
        import shop

        def test_inside(clean_agent_cache):
            assert CURRENT.value.max_bytes is None
            configure(enabled=False)

        def test_afterwards():
            assert (CURRENT.value.max_bytes, CURRENT.value.enabled) == (1_000_000, True)
    """)
    ran(suite).assert_outcomes(passed=2)


def test_the_clock_of_a_test_stands_still(suite: pytest.Pytester):
    suite.makepyfile("""
        from agent_cache import AgentCache

        async def test_it(agent_cache_clock):
            runs = []

            @AgentCache("order", ttl=60)
            async def get_orders():
                runs.append(1)

            for seconds in (0, 59, 2):
                agent_cache_clock.advance(seconds)
                await get_orders()
            assert len(runs) == 2
    """)
    ran(suite).assert_outcomes(passed=1)


def test_importing_the_helpers_does_not_load_pytest():
    script = "import sys, agent_cache.testing; print('pytest' in sys.modules)"
    assert run_python(script) == "False\n"


async def test_a_load_that_runs_while_the_cache_is_emptied_is_neither_stored_nor_joined():
    gate, runs = asyncio.Event(), []

    @AgentCache("order")
    async def get_orders() -> int:
        runs.append(1)
        await gate.wait()
        return len(runs)

    early = asyncio.create_task(get_orders())
    await asyncio.sleep(0)
    testing.reset()
    late = asyncio.create_task(get_orders())
    await asyncio.sleep(0)
    gate.set()
    assert (await early, await late, len(runs)) == (2, 2, 2)
    assert await get_orders() == 2
    testing.reset()
    assert await get_orders() == 3
