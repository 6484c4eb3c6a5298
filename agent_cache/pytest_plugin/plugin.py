"""The pytest plugin: a test's agent is recorded once and replayed in every later run, and compared with a baseline.

Every test run of every project with this package installed imports this module. So the library is imported by the
first test that records, replays or blocks live calls (`cassette_run`), or has a baseline (`baseline_run`).
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_cache.pytest_plugin.markers import (
    BASELINE_MODES,
    MODES,
    OPTIONS,
    TESTS_BY_PATH,
    baseline_markers,
    baseline_path,
    cassette_markers,
    cassette_path,
    settings_of,
)

if TYPE_CHECKING:
    from agent_cache.pytest_plugin.baseline_run import BaselineRun
    from agent_cache.pytest_plugin.cassette_run import CassetteRun, FixtureRun
    from agent_cache.recording import Tape
    from agent_cache.recording.api import LiveCallBlocker
    from agent_cache.recording.litellm import LLMReplay

__all__: list[str] = []

_RUNS: pytest.StashKey[dict[str, CassetteRun | FixtureRun | BaselineRun]] = pytest.StashKey()
"""Runs of a test that are open, by the title of their section in its report."""
_GUARD: pytest.StashKey[LiveCallBlocker] = pytest.StashKey()
_FACTS: pytest.StashKey[list[tuple[str, Any]]] = pytest.StashKey()
"""What is told of a test at the end: ``"savings"`` or ``"accepted"``, and what was."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("agent-cache", "agent-cache: recording and replay of agents")
    group.addoption(
        "--agent-record-mode",
        choices=MODES,
        help="none: replay only (default). once: record where there is no cassette. new_episodes: also record calls "
        "that are not in it. all: run and record every call. rewrite: record anew.",
    )
    group.addoption(
        "--agent-baseline",
        choices=BASELINE_MODES,
        default="compare",
        help="compare: fail tests whose run has drifted from its baseline (default). once: accept the run where there "
        "is no baseline. add: accept it beside the accepted ones, and tolerate what varies. accept: accept it instead.",
    )
    group.addoption(
        "--agent-block-live",
        action="store_true",
        help="fail tests that call a recordable tool or function outside of a recording",
    )
    for name, kind, default, text in (
        ("agent_record_mode", "string", "none", "default of --agent-record-mode"),
        ("agent_cassette_dir", "string", "cassettes", "folder of cassettes, from that of the test file"),
        ("agent_baseline_dir", "string", "baselines", "folder of baselines, from that of the test file"),
        ("agent_cassette_redact", "args", [], "names of secrets beside the known ones"),
        ("agent_cassette_strict", "bool", False, "whether calls must come in their recorded order"),
        ("agent_allow_unplayed", "bool", False, "whether recorded calls may be left over"),
        ("agent_empty_cache", "bool", True, "whether tests with a cassette start with an empty cache"),
        ("agent_http", "bool", False, "whether requests are recorded, too"),
        ("agent_block_live", "bool", False, "as --agent-block-live"),
    ):
        parser.addini(name, text, type=kind, default=default)  # type: ignore[arg-type]  # of a few words


def pytest_configure(config: pytest.Config) -> None:
    if (given := config.getini("agent_record_mode")) not in MODES:
        raise pytest.UsageError(f"agent_record_mode must be one of {', '.join(MODES)}, got {given!r}")
    options = ", ".join(f"{name}=None" for name in OPTIONS)
    for marker, promise in (
        (f"agent_cassette(name=None, *, path=None, {options})", "record what the agent of this test calls, and replay"),
        (f"replay(path, *, {options})", "the same with the cassette, or the fixture of Reyn, at this path"),
        (
            "agent_baseline(path=None, tolerance=None, fail_on='warning', redact=None, http=None)",
            "compare the run of this test with the accepted runs at this path, or with the test's own",
        ),
        ("agent_live(reason)", "let this test call tools under --agent-block-live"),
    ):
        config.addinivalue_line("markers", f"{marker}: {promise}")
    config.stash[TESTS_BY_PATH] = {}


# Which cassette and which baseline belongs to which test


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    tests = config.stash[TESTS_BY_PATH]
    for item in items:
        paths: list[Path] = []
        markers = cassette_markers(item)
        if markers is not None or "agent_cassette" in getattr(item, "fixturenames", ()):
            paths.append(cassette_path(item, markers))
        if (baseline := baseline_markers(item)) is not None:
            paths.append(baseline_path(item, baseline))
        for path in paths:
            tests.setdefault(path, []).append(item.nodeid)
        for live in item.iter_markers("agent_live"):
            if len(live.args) != 1 or live.kwargs or not isinstance(live.args[0], str) or not live.args[0]:
                raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.agent_live needs a reason, as a text")
    return (yield)


# The run of one test


@pytest.fixture
def agent_cache_config() -> dict[str, Any]:
    """Options of cassettes, to be overridden: ``return {"redact": ["order_pin"]}``."""
    return {}


@pytest.fixture
def agent_cassette(request: pytest.FixtureRequest, agent_cache_config: dict[str, Any]) -> Iterator[Tape | LLMReplay]:
    """The `Tape` that records or replays what the agent of this test calls: `path`, `mode`, `remaining`, `cassette`.

    For a fixture of Reyn it is the `LLMReplay`. It ends with the test, before fixtures are torn down.
    """
    from agent_cache.pytest_plugin.cassette_run import CassetteRun, FixtureRun, plain_savings
    from agent_cache.recording.litellm import is_fixture

    item = request.node
    markers = cassette_markers(item)
    path = cassette_path(item, markers)
    with _own_errors():
        settings = settings_of(request.config, agent_cache_config, markers or {})
        run: CassetteRun | FixtureRun
        if is_fixture(path):
            run = FixtureRun(path, settings, item, item.stash.get(_GUARD, None))
        else:
            run = CassetteRun(path, settings, item)
        handle = run.begin()
    with _open(item, "agent cassette", run):
        yield handle
        item.stash.setdefault(_FACTS, []).append(("savings", plain_savings(handle)))


@pytest.fixture
def _agent_baseline(request: pytest.FixtureRequest) -> Iterator[None]:
    """Record what the agent of this test calls, inside of the cassette that may answer it, to compare it."""
    from agent_cache.pytest_plugin.baseline_run import BaselineRun

    item, config = request.node, request.config
    markers = baseline_markers(item) or {}
    with _own_errors():
        options = (cassette_markers(item) or {}) | {
            name: markers[name] for name in ("redact", "http") if name in markers
        }
        settings = settings_of(config, request.getfixturevalue("agent_cache_config"), options)
        folder = request.getfixturevalue("tmp_path_factory").mktemp("agent-baseline")
        run = BaselineRun(settings, item, markers, folder)
        run.begin()
    with _open(item, "agent baseline", run):
        yield
        item.stash.setdefault(_FACTS, []).extend(("accepted", one) for one in run.accepted)


@contextmanager
def _open(item: pytest.Item, title: str, run: CassetteRun | FixtureRun | BaselineRun) -> Iterator[None]:
    """While the run of a test is open."""
    runs = item.stash.setdefault(_RUNS, {})
    runs[title] = run
    try:
        yield
    finally:
        del runs[title]
        run.close()


@pytest.fixture(autouse=True)
def _agent_runs_of_marked(request: pytest.FixtureRequest) -> None:
    has_baseline = baseline_markers(request.node) is not None
    if cassette_markers(request.node) is not None or (has_baseline and "agent_cassette" in request.fixturenames):
        request.getfixturevalue("agent_cassette")
    if has_baseline:
        request.getfixturevalue("_agent_baseline")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    config = item.config
    if not (config.getoption("agent_block_live") or config.getini("agent_block_live")):
        return (yield)
    from agent_cache.pytest_plugin.cassette_run import LIVE_ADVICE
    from agent_cache.recording.api import block_live_calls

    with block_live_calls(LIVE_ADVICE) as guard:
        guard.is_lifted = item.get_closest_marker("agent_live") is not None
        item.stash[_GUARD] = guard
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    stash = request.node.stash
    if fixturedef.scope != "function" or not (stash.get(_RUNS, None) or _GUARD in stash):
        return (yield)
    from agent_cache.pytest_plugin.cassette_run import fixture_in_same_context

    with fixture_in_same_context(fixturedef):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _watched(item))


pytest_runtest_teardown = pytest_runtest_setup


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    runs = item.stash.setdefault(_RUNS, {})  # the test may open one itself, by `request.getfixturevalue`
    context: AbstractContextManager[None] = nullcontext()
    if runs or _GUARD in item.stash:
        from agent_cache.pytest_plugin.cassette_run import same_context

        context = same_context(item)
    error: BaseException | None = None
    try:
        with context:
            result = yield from _watched(item)
        if caught := getattr(item, "_excinfo", None):  # unittest catches the error of a test
            error = caught[0].value
    except BaseException as raised:
        error = raised
        raise
    finally:
        if error is not None:
            for title, run in runs.items():
                if text := run.end_failed(error):
                    item.add_report_section("call", title, text)
    if error is None:
        with _own_errors():
            for run in runs.values():
                run.end_passed()
    return result


def _watched(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run one phase of a test, and fail it for a call that was refused in it, even if something swallowed the error."""
    guard = item.stash.get(_GUARD, None)
    try:
        result = yield
    except BaseException:
        if guard is not None:
            guard.error = None  # the phase has failed already
        raise
    if guard is not None:
        from agent_cache.pytest_plugin.cassette_run import check_live_calls

        with _own_errors():
            check_live_calls(guard)
    return result


@contextmanager
def _own_errors() -> Iterator[None]:
    """Report an error of the plugin without a traceback, whose frames are the plugin's."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, it fails the test
        raise pytest.fail.Exception("".join(traceback.format_exception_only(error)).rstrip(), pytrace=False) from None


# The end of the test run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Put what is told at the end into the report, which workers of pytest-xdist send."""
    report = yield
    report.agent_cache, item.stash[_FACTS] = item.stash.get(_FACTS, []), []  # the test may be run again
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    facts = [fact for report in reports for fact in getattr(report, "agent_cache", ())]
    if savings := [fact for name, fact in facts if name == "savings"]:
        from agent_cache.pytest_plugin.cassette_run import summary_of

        if line := summary_of(savings):
            terminalreporter.line(line)
    if accepted := [fact for name, fact in facts if name == "accepted"]:
        terminalreporter.section("accepted baselines")
        terminalreporter.line("\n".join(sorted(accepted)))
