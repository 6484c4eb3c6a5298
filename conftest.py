"""What every test run of this checkout shares: how Hypothesis searches, and the documents' examples as tests.

In README.md and docs/ a block that opens with ```python is run. Blocks of one document run from top to bottom in one
namespace, as one script; `await` stands inside a coroutine that `asyncio.run` drives, so that a reader can paste them
into a file. A ```output block holds what the ```python block above it printed, `...` in it stands for anything.
No other opening is run: ```text, ```sh, or ```python no-run for a fragment that is shown and not executed.
"""

from __future__ import annotations

import contextlib
import doctest
import gc
import io
import os
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil import Example

pytest_plugins = [
    "tests.harness.collecting",
    "tests.harness.fixtures",
    "tests.harness.time_limit",
]

# A shared two-core machine stalls for longer than any deadline that is worth setting; `timeout` bounds what hangs.
settings.register_profile("agent-cache", deadline=None)
# CI searches the same examples each time, so that a red run is red again on the next machine.
settings.register_profile("agent-cache-ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("agent-cache-ci" if os.environ.get("CI") else "agent-cache")

# Else each worker rewrites all assertions, and each of the hundreds of processes that tests start compiles the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# No test talks to the world: to read the certificates of its authorities is most of the work of making a client.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "tests" / "harness" / "authority.pem")

# Of a function with more cases than these, those between run with `-m slow`, unless tests are asked for by a name.
# Not of the rules of the project, `tests/test_*.py`: a sample of budgets, or of modules, is no rule.
CASES = 5
RULES = Path(__file__).parent / "tests"

MODULE = pytest.StashKey["Path"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle-files", type=int, metavar="SEED", help="run files in an order that this seed decides")


def pytest_configure(config: pytest.Config) -> None:
    # By xdist's default the files with the fewest tests come last, among them the longest: those of `properties`.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores, for what waits. With more, tests of servers wait for each other's processor time."""
    return (os.cpu_count() or 1) + 1


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("shuffle_files")
    return None if seed is None else f"order of files: --shuffle-files {seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cases as slow, and shuffle files, but leave the tests of one in their order: fixtures of modules last."""
    if not config.option.keyword and not any("::" in argument for argument in config.args):
        cases = defaultdict(list)
        for item in items:
            if item.get_closest_marker("slow") is None and item.path.parent != RULES:
                cases[item.nodeid.partition("[")[0]].append(item)
        for of_one in cases.values():
            by_default = {round(i * (len(of_one) - 1) / (CASES - 1)) for i in range(CASES)}
            for number, item in enumerate(of_one):
                if len(of_one) > CASES and number not in by_default:
                    item.add_marker(pytest.mark.slow)
    seed = config.getoption("shuffle_files")
    if seed is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        place = {path: number for number, path in enumerate(files)}
        items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Begin a module without what the tests before it have stored, or left in doubt for half a minute.

    What is there then is taken out of the collector's sight: hundreds of tests collect garbage to see what is left of
    them, and would look each time at all that was imported, collected and reported before.
    """
    stash = item.session.stash
    if stash.get(MODULE, None) != item.path:
        from agent_cache import testing

        stash[MODULE] = item.path
        gc.collect()
        testing.reset()  # and the counters of the tools that are gone
        gc.freeze()


try:
    from sybil import Sybil
    from sybil.evaluators.python import PythonEvaluator
    from sybil.parsers.markdown import CodeBlockParser
except ImportError:

    class Unread(pytest.File):
        """A document whose examples cannot be run here."""

        def collect(self) -> Iterator[pytest.Item]:
            if "```python\n" in self.path.read_text("utf-8"):
                yield NeedsSybil.from_parent(self, name="examples")

    class NeedsSybil(pytest.Item):
        """Says what is missing, so that a bare run shows what it left out."""

        def runtest(self) -> None:
            pytest.skip('running the examples of a document needs pip install "agent-cache[test]"')

    def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
        is_document = file_path.suffix == ".md" and "_build" not in file_path.parts
        return Unread.from_parent(parent, path=file_path) if is_document else None

else:
    run_python = PythonEvaluator()

    def evaluate(example: Example) -> None:
        """Run a block as part of its document, and keep what it prints for an ```output block below it."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_python(example)
        example.namespace["__printed__"] = printed.getvalue()

    def compare(example: Example) -> str | None:
        """Say how the last block's output differs from what the document shows."""
        checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.REPORT_UDIFF
        expected, printed = doctest.Example("", example.parsed), example.namespace.pop("__printed__", "")
        if checker.check_output(expected.want, printed, flags):
            return None
        return checker.output_difference(expected, printed, flags)

    def begin_document(namespace: dict[str, Any]) -> None:
        """Give each document the process that its reader starts from, and a place for the files that it leaves."""
        from agent_cache import testing

        testing.reset()
        namespace["__name__"] = "__main__"
        namespace["__folder__"] = folder = tempfile.TemporaryDirectory(prefix="document-")
        tempfile.tempdir = folder.name

    def end_document(namespace: dict[str, Any]) -> None:
        """Remove its files."""
        tempfile.tempdir = None
        namespace.pop("__folder__").cleanup()

    pytest_collect_file = Sybil(
        parsers=[CodeBlockParser("python", evaluate), CodeBlockParser("output", compare)],
        patterns=["*.md"],
        excludes=["docs/_build/**"],
        setup=begin_document,
        teardown=end_document,
    ).pytest()
