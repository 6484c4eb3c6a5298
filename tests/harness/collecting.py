"""Workers share the work of reading the tests.

Each collects all of them. After an installation nothing is compiled yet, and workers that begin with the same file and
go on at the same speed each compile everything. Here each begins at another file, and finds what the others have left.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import pytest


class Plain:
    """Imports the library as it is: since it brings a plugin, pytest would rewrite its assertions, as of tests."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("agent_cache") else None


sys.meta_path.insert(0, Plain)
pytest.register_assert_rewrite("tests.contract")  # its modules are no test files, and their asserts are to be explained


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the collector of garbage: what is read stays to the end."""
    gc.disable()
    try:
        worker = getattr(session.config, "workerinput", None)
        if worker is not None and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            read_tests(session.config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])
        return (yield)
    finally:
        gc.enable()


def read_tests(config: pytest.Config, worker: int, workers: int) -> None:
    """Import all tests, from the share of this worker on. What cannot be imported is told where it is collected."""
    root = config.rootpath
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(root.glob("tests/**/test_*.py"))]
    begin = len(names) * worker // workers
    for name in names[begin:] + names[:begin]:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)
