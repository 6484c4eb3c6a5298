"""Fixtures of all tests: an empty library, and real servers. A test that asks for one of these is skipped, with the
reason, where there is none.

`valkey`, `any_server` and `cluster` are started once a module and emptied before each test, for tests that leave them
whole. Those called `own_...` belong to one test, which may break them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.harness import library
from tests.harness.binaries import KINDS, Kind, ServerUnavailableError
from tests.harness.clusters import Cluster
from tests.harness.proxies import Proxy
from tests.harness.sentinels import Sentinel
from tests.harness.servers import Server
from tests.harness.slow import slow

T = TypeVar("T")
LOG_LINES = 40
_running: list[Server] = []


def _or_skip(start: Callable[[], T]) -> T:
    try:
        return start()
    except ServerUnavailableError as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="session")
def servers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers have their folders: pytest keeps those of the last three runs, and the logs in them."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module", params=[KINDS[0], *slow(*KINDS[1:])])
def module_any_server(request: pytest.FixtureRequest, servers_folder: Path) -> Iterator[Server]:
    """One of each kind in turn. Ask for `any_server`, which empties it."""
    kind: Kind = request.param
    with _or_skip(lambda: Server.start(kind, folder=servers_folder)) as server, _shown_on_failure(server):
        yield server


@pytest.fixture
def any_server(module_any_server: Server) -> Server:
    """An empty Valkey, and then an empty Redis."""
    module_any_server.command("FLUSHALL")
    return module_any_server


@pytest.fixture(scope="module")
def module_valkey(servers_folder: Path) -> Iterator[Server]:
    """The Valkey of a module. Ask for `valkey`, which empties it."""
    with _or_skip(lambda: Server.start(folder=servers_folder)) as server, _shown_on_failure(server):
        yield server


@pytest.fixture
def valkey(module_valkey: Server) -> Server:
    """A Valkey that is empty."""
    module_valkey.command("FLUSHALL")
    return module_valkey


@pytest.fixture
def own_valkey(servers_folder: Path) -> Iterator[Server]:
    """A Valkey to kill, freeze and change the options of."""
    with _or_skip(lambda: Server.start(folder=servers_folder)) as server, _shown_on_failure(server):
        yield server


@pytest.fixture
def start_server(servers_folder: Path) -> Iterator[Callable[..., Server]]:
    """Start servers of the test's own, with options: the arguments are those of `Server.start`."""
    with ExitStack() as exits:

        def start(kind: Kind = "valkey", **options: object) -> Server:
            server = _or_skip(lambda: exits.enter_context(Server.start(kind, folder=servers_folder, **options)))
            exits.enter_context(_shown_on_failure(server))
            return server

        yield start


@pytest.fixture(scope="module")
def module_cluster(servers_folder: Path) -> Iterator[Cluster]:
    """The cluster of a module. Ask for `cluster`, which empties it."""
    with _or_skip(lambda: Cluster.start(folder=servers_folder)) as cluster, _shown_on_failure(*cluster.servers):
        yield cluster


@pytest.fixture
def cluster(module_cluster: Cluster) -> Cluster:
    """Three primaries with a replica each, all empty."""
    for node in module_cluster.primaries:
        node.command("FLUSHALL")
    return module_cluster


@pytest.fixture
def own_cluster(servers_folder: Path) -> Iterator[Cluster]:
    """A cluster to fail over and to kill nodes of. It takes three seconds to form."""
    with _or_skip(lambda: Cluster.start(folder=servers_folder)) as cluster, _shown_on_failure(*cluster.servers):
        yield cluster


@pytest.fixture
def own_sentinel(servers_folder: Path) -> Iterator[Sentinel]:
    """A primary with a replica and a sentinel that watches them."""
    with _or_skip(lambda: Sentinel.start(folder=servers_folder)) as sentinel, _shown_on_failure(*sentinel.servers):
        yield sentinel


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    """A proxy before `valkey`."""
    with Proxy.start(valkey.port) as proxy:
        yield proxy


@contextmanager
def _shown_on_failure(*servers: Server) -> Iterator[None]:
    _running.extend(servers)
    try:
        yield
    finally:
        for server in servers:
            _running.remove(server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the servers said last, and where the rest is."""
    report = yield
    if report.failed:
        for server in _running:
            tail = "\n".join(server.log.splitlines()[-LOG_LINES:])
            report.sections.append((f"log of {server.kind} on {server.port}: {server.folder / 'log'}", tail))
    return report


@pytest.fixture
def clock() -> Iterator[library.Clock]:
    """An empty library on a clock that stands still."""
    with library.fresh_library() as clock:
        yield clock


@pytest.fixture
def interruptible() -> Iterator[None]:
    """This process and those that it starts can be interrupted, also where a shell has started it in the background."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)
