"""The pytest plugin of a run of `tests.mutants`: notes what is run, and tells coverage which test is running.

What runs while a file is collected, such as the decoration of its tools, is counted under the name of that file.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

import coverage
import pytest

NOTES = os.open(os.environ["MUTANTS_NOTES"], os.O_WRONLY | os.O_APPEND)
PACKAGE, _, DATA = os.environ.get("MUTANTS_MEASURED", "").partition("\n")  # in a recording run
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

if PACKAGE:  # before anything imports it
    COVERAGE = coverage.Coverage(DATA, data_suffix=True, source=[PACKAGE], config_file=False)
    COVERAGE.start()
else:
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))  # a loop without end may fill a list
TRACE = sys.gettrace()


def note(*fact: object) -> None:
    os.write(NOTES, f"{json.dumps(fact)}\n".encode())  # in one piece: several processes write


def begin_context(name: str) -> None:
    if PACKAGE:
        if sys.gettrace() is not TRACE:  # a test traced, and did not put back what was there
            sys.settrace(TRACE)
        COVERAGE.switch_context(name)


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    begin_context(collector.nodeid.partition("::")[0])


def pytest_collection_finish(session: pytest.Session) -> None:
    begin_context("")
    note("collected", *(item.nodeid for item in session.items))


def pytest_runtest_logstart(nodeid: str) -> None:
    begin_context(nodeid)
    if not IS_WORKER:
        note("started", nodeid, time.monotonic())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not IS_WORKER:
        note(report.when, report.nodeid, report.outcome, report.duration)


def pytest_runtest_logfinish() -> None:
    begin_context("")


def pytest_sessionfinish() -> None:
    if PACKAGE:
        COVERAGE.stop()
        COVERAGE.save()
