"""`agent-cache tier stats`, `keys`, `clear` and `doctor`, on a server and on a file."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("redis")

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator, configure, testing
from agent_cache.__main__ import main
from agent_cache.remote import from_url
from tests.harness import rights
from tests.harness.servers import Server, free_port
from tests.harness.slow import slow_rows
from tests.harness.tiers import PATIENT

GOOD = {"maxmemory": "200mb", "maxmemory_policy": "volatile-ttl"}
SECRET = "K9-very-secret-argument"
COMMANDS = ("stats", "keys", "clear order:7", "doctor")


@AgentCache("order:{order_id}", ttl=60)
async def get_order(order_id: str) -> dict[str, str]:
    return {"id": order_id, "at": str(time.monotonic_ns())}


@AgentCache("order", ttl=60)
async def list_orders() -> list[str]:
    return [str(time.monotonic_ns())]


@AgentCache(("user:{result[user]}", "cart"), ttl=600)
async def get_cart(user: str) -> dict[str, str]:
    return {"user": user}


@AgentCacheInvalidator("order:{order_id}")
async def cancel_order(order_id: str) -> None: ...


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    """The library, and its counts, as at the start of a process."""
    testing.reset()
    yield
    testing.reset()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tools.db"


@pytest.fixture(params=["server", "file"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """Of a server, and of a file."""
    return request.getfixturevalue("valkey").url if request.param == "server" else f"sqlite:///{path}"


@pytest.fixture
def fit(start_server: Callable[..., Server]) -> Server:
    """A server that the doctor has nothing to say about."""
    return start_server(**GOOD)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        patience = () if "--timeout" in arguments else ("--timeout", "60")
        code = main(("tier", *command.split(), *arguments, *patience))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def tier(url: str, **options: Any) -> Any:
    return from_url(url, **({} if "sqlite" in url else PATIENT), **options)


def with_entries(url: str, *, orders: int = 3, carts: int = 2, **options: object) -> None:
    async def fill() -> None:
        async with tier(url, **options) as made:
            with configure(remote=made):
                for number in range(orders):
                    await get_order(f"{SECRET}-{number}")
                for number in range(carts):
                    await get_cart(f"{SECRET}-{number}")
                if orders:
                    await list_orders()

    asyncio.run(fill())


def facts(run, command: str, *arguments: str) -> dict:
    code, out, err = run(command, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def verdicts(run, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    code, out, _ = run("doctor", *arguments, "--json")
    checks = json.loads(out)["checks"]
    return code, {each["name"]: (each["verdict"], f"{each['says']} {each['do'] or ''}") for each in checks}


# stats


def test_stats_counts_entries_and_bytes_of_each_root(url, run):
    with_entries(url)
    found = facts(run, "stats", "--url", url)
    roots = found["roots"]
    assert {root: roots[root]["entries"] for root in roots} == {"order": 4, "user": 2, "cart": 2}
    assert found["entries"] == 6
    assert found["bytes"] == roots["order"]["bytes"] + roots["user"]["bytes"] > 0
    assert roots["order"]["current"] == 4
    assert run(f"clear order:{SECRET}-1", "--url", url)[0] == 0
    counted = facts(run, "stats", "--url", url)["roots"]["order"]
    assert (counted["entries"], counted["current"]) == (4, 2)  # the entity, and the list of all


def test_what_is_damaged_or_of_others_stops_nothing_and_controls_no_terminal(valkey, run):
    with_entries(valkey.url, carts=0)
    key = valkey.command("KEYS", "{agent_cache}:v:*")[0]
    valkey.command("SET", key, "\x1b[2Jnonsense")
    valkey.command("HSET", "{agent_cache}:v:@a-hash", "a", "b")
    valkey.command("SET", "{agent_cache}:v:@evil", '[{"\\u001b[2J:D":1},1,null,0,0,"\\u001b[31m",""]\n')
    valkey.command("SET", "order:7", "of another program")
    assert facts(run, "stats", "--url", valkey.url)["unreadable"] == 1
    for command in ("stats", "keys"):
        code, out, err = run(command, "--url", valkey.url)
        assert (code, err) == (0, "")
        assert all(char.isprintable() or char == "\n" for char in out)
    assert facts(run, "clear", "--url", valkey.url, "--all", "--yes")["deleted"] == 6
    assert valkey.command("GET", "order:7")


# keys


def test_keys_shows_no_argument_and_no_value(url, run):
    with_entries(url)
    code, out, _ = run("keys", "--url", url)
    assert code == 0
    assert SECRET not in out
    assert "6 entries" in out
    for entry in facts(run, "keys", "--url", url)["entries"]:
        assert SECRET not in json.dumps(entry)
        assert entry["tool"].startswith("tests.integration.test_tier_commands:")
        assert entry["is_current"]
        assert 0 < entry["expires_in"] <= 600


def test_keys_are_limited_and_with_a_tag_those_that_clear_would_drop(url, run):
    with_entries(url)
    found = facts(run, "keys", "--url", url, "--tag", f"order:{SECRET}-1")["entries"]
    assert sorted(tag for entry in found for tag in entry["tags"]) == ["order", f"order:{SECRET}-1"]
    assert len(facts(run, "keys", "--url", url, "--tag", "cart")["entries"]) == 2
    assert facts(run, "keys", "--url", url, "--tag", "nothing")["entries"] == []
    found = facts(run, "keys", "--url", url, "--limit", "2")
    assert (len(found["entries"]), found["is_cut"]) == (2, True)
    assert "2 entries, and more: --limit 2" in run("keys", "--url", url, "--limit", "2")[1]


# clear


async def test_clear_reaches_the_local_copies_of_other_processes_at_once(url, run):
    async with tier(url) as made:
        with configure(remote=made):
            for command in ("clear order:7", "clear order", "clear --all --yes"):
                former, other = await get_order("7"), await get_order("8")
                code, _, err = await asyncio.to_thread(run, command, "--url", url)
                assert (code, err) == (0, "")
                await made.caught_up()
                assert await get_order("7") != former
                assert (await get_order("8") == other) is (command == "clear order:7")


def test_clear_everything_needs_a_yes_and_leaves_the_entries_of_other_namespaces_on_a_server(valkey, run):
    with_entries(valkey.url, namespace="a")
    with_entries(valkey.url, namespace="b")
    code, _, err = run("clear --all", "--url", valkey.url, "--namespace", "a")
    assert code == 2
    assert "Add --yes" in err
    assert facts(run, "clear --all --yes", "--url", valkey.url, "--namespace", "a")["deleted"] == 6
    left = [facts(run, "stats", "--url", valkey.url, "--namespace", name)["entries"] for name in "ab"]
    assert left == [0, 6]


def test_an_id_may_have_colons_in_it_and_even_be_a_url(url, run):
    with_entries(url)
    code, out, _ = run("clear", "page:https%3A//example.com/", "--url", url)
    assert (code, out) == (0, "cleared page:https%3A//example.com/\n")


# doctor, of a server


@pytest.mark.parametrize(
    ("options", "name", "says"),
    [
        ({"maxmemory": "200mb", "maxmemory_policy": "allkeys-lru"}, "memory", "volatile-ttl"),
        ({"maxmemory_policy": "volatile-ttl"}, "memory", "without a limit"),
        ({**GOOD, "min-replicas-to-write": "1"}, "replication", "refused now"),
    ],
)
def test_the_doctor_finds_what_is_set_wrong(start_server, run, options, name, says):
    code, checks = verdicts(run, "--url", start_server(**options).url)
    assert (code, checks[name][0]) == (1, "finding")
    assert says in checks[name][1]


def test_the_doctor_finds_a_full_server_that_evicts_nothing(start_server, run):
    server = start_server(maxmemory="3mb", maxmemory_policy="noeviction")
    assert verdicts(run, "--url", server.url)[1]["memory"][0] == "fine"
    server.config_set(maxmemory="1mb")  # less than it has
    code, checks = verdicts(run, "--url", server.url)
    assert code == 1
    assert "raise maxmemory" in checks["memory"][1]
    assert checks["rights"][0] == "finding"
    assert "INCR, HSET, ZADD, XADD ~{agent_cache}:*: " in checks["rights"][1]


def test_a_full_server_is_emptied(start_server, run):
    server = start_server(maxmemory_policy="noeviction")
    for number in range(8):
        server.command("SET", f"{{agent_cache}}:v:@{number}", "x" * 500_000)
    server.config_set(maxmemory=server.info("memory")["used_memory"] - 1_000_000)
    code, _, err = run("clear order:7", "--url", server.url)
    assert code == 2
    assert "not allowed" in err
    assert "see agent-cache tier doctor" in err
    assert run("clear --all --yes", "--url", server.url)[0] == 0
    assert run("clear order:7", "--url", server.url)[0] == 0


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ("-evalsha", "EVALSHA ~{agent_cache}:*"),
        ("-info", "INFO: "),
        *slow_rows(("-time", "TIME")),
        *slow_rows(("-xread", "XREAD ~{agent_cache}:*")),
    ],
)
def test_the_doctor_names_the_rights_that_are_missing(fit, run, lacking, says):
    fit.command("ACL", "SETUSER", "agent", "on", ">secret", "~*", "&*", "+@all", lacking)
    code, checks = verdicts(run, "--url", f"redis://agent:secret@127.0.0.1:{fit.port}")
    assert (code, checks["rights"][0]) == (1, "finding")
    assert says in checks["rights"][1]


def test_the_rights_of_the_pages_are_enough_and_the_doctor_leaves_nothing_behind(fit, run):
    fit.command("ACL", "SETUSER", "agent", *rights.least())
    code, out, _ = run("doctor", "--url", f"redis://agent:secret@127.0.0.1:{fit.port}")
    assert (code, out.splitlines()[-1]) == (0, "nothing is wrong")
    assert fit.command("KEYS", "*") == []
    fit.command("ACL", "SETUSER", "operator", *rights.least(), *rights.of_an_operator())
    url = f"redis://operator:secret@127.0.0.1:{fit.port}"
    with_entries(url)
    assert facts(run, "stats", "--url", url)["entries"] == 6
    assert len(facts(run, "keys", "--url", url)["entries"]) == 6
    assert facts(run, "clear --all --yes", "--url", url)["deleted"] == 6


@pytest.mark.parametrize(("command", "lacking"), [("stats", "-strlen"), ("keys", "-scan")])
def test_a_right_that_is_missing_is_said_and_no_count_of_nothing_shown(fit, run, command, lacking):
    with_entries(fit.url, carts=0)
    fit.command("ACL", "SETUSER", "agent", "on", ">secret", "~*", "&*", "+@all", lacking)
    code, out, err = run(command, "--url", f"redis://agent:secret@127.0.0.1:{fit.port}")
    assert (code, out) == (2, "")
    assert "permissions" in err


def test_the_doctor_finds_replicas_without_a_fence_and_that_a_replica_is_none(fit, start_server, run):
    replica = start_server(replicaof=f"127.0.0.1 {fit.port}", **GOOD)
    assert verdicts(run, "--url", replica.url)[1]["role"][0] == "finding"
    deadline = time.monotonic() + 60
    while replica.info("replication")["master_link_status"] != "up" and time.monotonic() < deadline:
        time.sleep(0.05)  # until then it is loading
    assert "min-replicas-to-write 1" in verdicts(run, "--url", fit.url)[1]["replication"][1]
    code, _, err = run("stats", "--url", replica.url)
    assert code == 2
    assert "replica" in err


@pytest.mark.slow
def test_the_doctor_knows_a_sentinel(own_sentinel, run):
    code, checks = verdicts(run, "--url", "redis://{}:{}".format(*own_sentinel.address))
    assert (code, checks["role"][0]) == (1, "finding")
    assert "a Sentinel give the URL of the primary" in checks["role"][1]


@pytest.mark.slow
def test_the_commands_work_on_all_of_a_cluster(cluster, run):
    for node in cluster.primaries:
        node.command("ACL", "SETUSER", "agent", *rights.in_cluster(rights.least()), *rights.of_an_operator())
    url = f"redis://agent:secret@127.0.0.1:{cluster.primaries[0].port}"
    with_entries(url, orders=20, carts=20, cluster=True)
    assert facts(run, "stats", "--url", url)["entries"] == 41
    assert len(facts(run, "keys", "--url", url, "--tag", "cart")["entries"]) == 20
    checks = verdicts(run, "--url", url)[1]
    assert checks["rights"][0] == checks["version"][0] == "fine"
    assert facts(run, "clear --all --yes", "--url", url)["deleted"] == 41


# doctor, of a file


def test_the_doctor_finds_nothing_wrong_with_a_file_but_a_full_disk_and_changes_nothing(path, run, monkeypatch):
    with_entries(f"sqlite:///{path}")
    before = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.suffix == ".db"}
    for command in ("stats", "keys", "doctor"):
        assert run(command, "--url", str(path))[0] == 0
    with monkeypatch.context() as patched:
        left = SimpleNamespace(f_bavail=99, f_frsize=4096, f_files=0, f_favail=0)
        patched.setattr(os, "statvfs", lambda _: left)
        code, checks = verdicts(run, "--url", str(path))
        assert (code, checks["space"][0]) == (1, "finding")
    assert {one.name: one.read_bytes() for one in path.parent.iterdir() if one.suffix == ".db"} == before


def test_the_doctor_finds_files_that_others_may_use_or_that_are_damaged(path, run):
    with_entries(f"sqlite:///{path}", orders=50)
    path.chmod(0o644)
    code, checks = verdicts(run, "--url", str(path))
    assert (code, checks["permissions"][0]) == (1, "finding")
    data = bytearray(path.read_bytes())
    data[4096 : len(data) - 2048] = b"\xff" * (len(data) - 6144)
    path.write_bytes(data)
    code, checks = verdicts(run, "--url", str(path))
    assert code == 1
    assert checks["integrity"][0] == "finding"
    assert "it is set aside" in run("keys", "--url", str(path))[2]


# All of them


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_used_is_said_and_no_password_with_it(command, run, monkeypatch, tmp_path):
    code, out, err = run(command, "--url", f"redis://someone:hunter2@127.0.0.1:{free_port()}")
    assert (code, out) == (2, "")
    assert "cannot be used" in err
    assert "hunter2" not in err
    code, out, err = run(command, "--url", f"sqlite:///{tmp_path}/none.db")
    assert (code, out) == (2, "")
    assert "there is no file" in err
    assert list(tmp_path.iterdir()) == []
    assert "there is no file" in run(command, "--url", "~nobody-of-this-name/tools.db")[2]
    (tmp_path / "other.db").touch()
    assert run(command, "--url", f"{tmp_path}/other.db")[0] == 2
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [0], "an empty file is left empty"
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("create table a (b)")
    code, out, err = run(command, "--url", f"{tmp_path}/other.db")
    assert (code, out) == (2, "")
    assert "of another program" in err
    monkeypatch.delenv("AGENT_CACHE_URL", raising=False)
    code, out, err = run(command)
    assert (code, out) == (2, "")
    assert "AGENT_CACHE_URL" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_hangs_costs_the_timeout(command, own_valkey, run):
    own_valkey.pause()
    code, _, err = run(command, "--url", own_valkey.url, "--timeout", "0.3")
    assert code == 2
    assert "cannot be used" in err


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--url", "http://x", "the URL cannot be read"),
        ("--url", "redis://x?pasword=y", "redis-py refuses a setting: "),
        ("--url", "redis://x/shop", "the URL cannot be read"),
        ("--namespace", "a b", "--namespace: namespace must be a short text"),
        ("--timeout", "inf", "--timeout must be more than 0 seconds"),
    ],
)
def test_usage_is_checked_first_and_names_nothing_that_was_not_typed(option, value, says, valkey, run):
    code, out, err = run("stats", "--url", valkey.url, option, value)
    assert (code, out) == (2, "")
    assert err.startswith(says)


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "redis://:hunter2@h:6379/0"),
        ("stats", "--uri=redis://:hunter2@h:6379/0"),
        ("stats", "more", "redis://:hun ter2@h:6379/0"),
        ("keys", "--timeout", "redis://:hunter2@h:6379/0"),
        ("redis://:hunter2@h:6379/0",),
    ],
)
def test_a_url_in_the_wrong_place_is_not_repeated(arguments, capsys):
    with pytest.raises(SystemExit) as raised:
        main(("tier", *arguments))
    assert raised.value.code == 2
    said = capsys.readouterr()
    assert "the URL of a server belongs to --url" in said.err
    assert "ter2" not in said.err + said.out


@pytest.mark.parametrize(
    ("tag", "says"),
    [
        ("redis://:hunter2@h", "did you mean --url"),
        ("order:*", "'order:*' is not a tag"),
        ("order:", "'order:' is not a tag"),
    ],
)
@pytest.mark.parametrize("command", [("clear",), ("keys", "--tag")])
def test_what_is_no_tag_is_refused_and_a_url_not_repeated(path, run, command, tag, says):
    with_entries(f"sqlite:///{path}")
    code, out, err = run(*command, tag, "--url", str(path))
    assert (code, out) == (2, "")
    assert says in err
    assert "hunter2" not in err


def test_a_file_needs_no_redis_py_and_a_server_names_the_extra(path, tmp_path):
    with_entries(f"sqlite:///{path}")
    (tmp_path / "redis.py").write_text("raise ModuleNotFoundError(name='redis')")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(agent_cache.__file__).parents[1]}"}

    def tier_command(*words: str, then: str = "") -> subprocess.CompletedProcess[str]:
        line = f"{sys.executable} -m agent_cache tier {' '.join(words)} {then}"
        return subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False)

    for command in ("stats", "doctor"):
        assert tier_command(command, "--url", str(path)).returncode == 0
        assert tier_command(command, "--url", str(path), then="| head -c 0").stderr == ""
        made = tier_command(command, "--url", "redis://h")
        assert made.returncode == 2
        assert "agent-cache[redis]" in made.stderr
