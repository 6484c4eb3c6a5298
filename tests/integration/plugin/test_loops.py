"""Wherever the coroutine of a test runs, it runs in the test's recording."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

UNITTEST = """
    import unittest
    import pytest
    from shop import ask, get_order

    @pytest.mark.agent_cassette
    class TestPlain(unittest.TestCase):
        def test_it(self):
            self.assertEqual(ask("?"), "pending?")

    @pytest.mark.agent_cassette
    class TestLoop(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self):
            self.order = await get_order("W1")

        async def test_it(self):
            self.assertEqual([self.order, await get_order("W2")], ["pending", "pending"])
"""
STRICT = """
    import pytest
    from shop import get_order

    @pytest.mark.asyncio
    @pytest.mark.agent_cassette
    async def test_it():
        assert await get_order("W1") == "pending"

    @pytest.mark.asyncio(loop_scope="module")
    @pytest.mark.agent_cassette
    async def test_wide():
        assert await get_order("W2") == "pending"
"""
ANYIO = """
    import pytest
    from shop import get_order

    pytestmark = [pytest.mark.anyio, pytest.mark.agent_cassette]

    @pytest.fixture(scope="module")
    def anyio_backend():
        return "asyncio"

    @pytest.fixture(scope="module")
    async def runner_of_the_module():
        yield

    @pytest.fixture
    async def order():
        return await get_order("W1")

    @pytest.fixture
    async def other_order():
        yield await get_order("W2")

    async def test_first(runner_of_the_module):
        assert await get_order("W0") == "pending"

    async def test_second(runner_of_the_module, order, other_order):
        assert [order, other_order, await get_order("W3")] == ["pending"] * 3
"""
GATHERED = """
    import asyncio
    import threading
    import pytest
    from shop import ask, get_order

    @pytest.mark.agent_cassette
    async def test_it():
        answers = await asyncio.gather(get_order("W1"), get_order("W2"), asyncio.to_thread(ask, "?"))
        assert answers == ["pending", "pending", "pending?"]
"""


@pytest.mark.parametrize(
    ("text", "arguments", "count", "calls"),
    [
        (UNITTEST, (), 2, 3),
        (STRICT, ("-o", "asyncio_mode=strict"), 2, 2),
        (ANYIO, ("-o", "asyncio_mode=strict"), 2, 4),
        (GATHERED, (), 1, 3),
    ],
    ids=["unittest", "asyncio strict", "anyio", "gather and threads"],
)
def test_it_is_recorded_and_replayed_there(suite, text, arguments, count, calls):
    if "anyio" in text:
        pytest.importorskip("anyio")
    suite.write("test_loop.py", text)
    suite.twice(*arguments, calls=calls, passed=count)


@pytest.mark.slow
@pytest.mark.parametrize("text", [UNITTEST, STRICT, ANYIO], ids=["unittest", "asyncio strict", "anyio"])
def test_what_is_blocked_is_blocked_there(suite, text):
    if "anyio" in text:
        pytest.importorskip("anyio")
    text = text.replace("@pytest.mark.agent_cassette", "").replace(", pytest.mark.agent_cassette", "")
    suite.write("test_loop.py", text)
    outcome = suite.run("--agent-block-live", "-o", "asyncio_mode=strict").parseoutcomes()
    assert outcome.get("failed", 0) + outcome.get("errors", 0) == 2
    assert "passed" not in outcome
    assert suite.live == []
