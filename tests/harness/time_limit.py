"""A test that takes longer than its `timeout` fails, and the run goes on.

pytest-timeout reads the limits. By itself it raises wherever the process is when the time is over, also between tests,
where pytest takes what is raised for an error of its own and ends the whole run. Here the time runs only while a test
is set up, called and torn down, each of which may take as long as the limit.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

LIMIT = pytest.StashKey[float]()
AGAIN = 30.0  # seconds after which it is raised once more, if what was raised has been caught


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Note the limit; `bounded` is what sets the timer."""
    item.stash[LIMIT] = settings.timeout
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer() -> bool:
    """Say that it is done: `bounded` cancels what it has set."""
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with bounded(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with bounded(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with bounded(item):
        return (yield)


@contextmanager
def bounded(item: pytest.Item) -> Iterator[None]:
    """Raise in this thread, the main one, when the time of the test is over, and show what all threads were doing."""
    limit = item.stash.get(LIMIT, None)
    if limit is None or not hasattr(signal, "setitimer"):
        yield
        return

    def over(_signal: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.__stderr__)
        pytest.fail(f"Timeout (>{limit:g}s)")

    former = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


@pytest.hookimpl
def pytest_enter_pdb() -> None:
    """Whoever looks at a test in a debugger has all the time."""
    signal.setitimer(signal.ITIMER_REAL, 0)
