"""How a reader waits for a load of another process, in a tier that looks again and again."""

from __future__ import annotations

from agent_cache.remote.protocol import LoaderWait


async def test_who_has_seen_two_loads_end_does_not_wait_for_a_third():
    """The second may replace a process that has died. A tool that fails is not run by one process after the other."""
    wait = LoaderWait()
    for loader in ("a", "a", None, "b", "a", None, "b"):
        assert await wait.pause(loader)
    assert not await wait.pause("c")


async def test_who_may_not_wait_does_not():
    """It is asked each time."""
    answers = iter([True, False])
    wait = LoaderWait(lambda: next(answers))
    assert [await wait.pause("a"), await wait.pause("a")] == [True, False]
