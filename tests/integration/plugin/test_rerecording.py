"""Recording an unchanged suite again changes no file, in whatever order its tests run."""

import hashlib
import importlib.util

import pytest

pytest_plugins = ["pytester"]

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
