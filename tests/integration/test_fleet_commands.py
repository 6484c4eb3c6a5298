"""`agent-cache tier stats`, `keys`, `clear` and `doctor` on real servers."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("redis")

import agent_cache
from agent_cache import AgentCache, AgentCacheInvalidator, configure, testing
from agent_cache.cli.doctor import clock, version
from agent_cache.cli.main import main
from agent_cache.cli.output import progress
from agent_cache.remote import RedisTier
from agent_cache.remote.backend import Head, encode_head
from tests.harness import rights
from tests.harness.forks import forks
from tests.harness.servers import Server, free_port
from tests.harness.slow import crossed, slow_rows
from tests.harness.stopwatch import Stopwatch

IMPORTS = ["asyncio", "agent_cache.cli.fleet"]
GOOD = {"maxmemory": "200mb", "maxmemory_policy": "volatile-ttl"}
SECRET = "K9-very-secret-argument"


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


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor waits half a second between two looks at a clock, which these tests need not."""
    monkeypatch.setattr("agent_cache.cli.doctor.asyncio", SimpleNamespace(sleep=lambda _seconds: asyncio.sleep(0)))


@pytest.fixture
def fit(start_server: Callable[..., Server]) -> Server:
    """A server that the doctor has nothing to say about."""
    return start_server(**GOOD)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(("tier", *arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@asynccontextmanager
async def fleet(url: str, **options: object) -> AsyncIterator[RedisTier]:
    async with RedisTier.from_url(url, **{"timeout": 2.0, "max_staleness": 3.0, **options}) as tier:
        with configure(remote=tier):
            yield tier


def with_entries(url: str, *, orders: int = 3, carts: int = 2, **options: object) -> None:
    async def fill() -> None:
        async with fleet(url, **options):
            for number in range(orders):
                await get_order(f"{SECRET}-{number}")
            for number in range(carts):
                await get_cart(f"{SECRET}-{number}")
            if orders:
                await list_orders()

    asyncio.run(fill())


def facts(run, *arguments: str) -> dict:
    code, out, _ = run(*arguments, "--json")
    assert code == 0
    return json.loads(out)


# stats


def test_stats_counts_entries_and_bytes_of_each_root(valkey, run):
    with_entries(valkey.url)
    found = facts(run, "stats", "--url", valkey.url)
    roots = found["roots"]
    assert {root: roots[root]["entries"] for root in roots} == {"order": 4, "user": 2, "cart": 2}
    assert {root: roots[root]["entities"] for root in roots} == {"order": 3, "user": 2, "cart": 0}
    assert found["entries"] == found["inspected"] == 6
    lengths = [valkey.command("STRLEN", key) for key in valkey.command("KEYS", "{agent_cache}:v:*")]
    assert found["bytes"] == sum(lengths) == roots["order"]["bytes"] + roots["user"]["bytes"]


def test_stats_tells_entries_that_only_wait_to_expire(valkey, run):
    with_entries(valkey.url, carts=0)
    assert facts(run, "stats", "--url", valkey.url)["roots"]["order"]["current"] == 4
    assert run("clear", "--url", valkey.url, f"order:{SECRET}-1")[0] == 0
    counted = facts(run, "stats", "--url", valkey.url)["roots"]["order"]
    assert (counted["entries"], counted["current"]) == (4, 2)  # the entity, and the list of all


@pytest.mark.slow
async def test_stats_adds_up_the_hit_rates_of_the_processes_that_live(valkey, run):
    async with fleet(valkey.url):
        for order_id in "aab":
            await get_order(order_id)
        await asyncio.sleep(0)
        deadline = time.monotonic() + 100
        while True:
            found = await asyncio.to_thread(facts, run, "stats", "--url", valkey.url)
            order = found["roots"]["order"]
            if order["hits"] == 1:
                break
            assert time.monotonic() < deadline, order
        assert (order["misses"], order["shared"]) == (2, 0)
        assert order["hit_rate"] == pytest.approx(1 / 3)
        assert found["processes"] == 1
        _, out, _ = await asyncio.to_thread(run, "stats", "--url", valkey.url)
        assert "33.3%" in out


@pytest.mark.slow
def test_stats_looks_into_a_sample_and_counts_the_rest(valkey, run):
    with_entries(valkey.url, orders=150, carts=150)
    found = facts(run, "stats", "--url", valkey.url, "--sample", "60")
    assert (found["entries"], found["inspected"]) == (301, 60)
    assert found["roots"]["order"]["entities"] == 150
    assert 300 <= found["roots"]["order"]["entries"] + found["roots"]["cart"]["entries"] <= 302
    _, out, _ = run("stats", "--url", valkey.url, "--sample", "60")
    assert "301 entries" in out
    assert "60 of them looked into, ~" in out


def test_what_is_damaged_or_of_others_does_not_stop_it(valkey, run):
    with_entries(valkey.url, carts=0)
    valkey.command("SET", "{agent_cache}:v:@00ff", "damaged")
    valkey.command("SET", "{agent_cache}:v:@00fe", "")
    valkey.command("SET", "cache:agent_cache:not-ours", "x")
    valkey.command("SET", "{agent_cache}:p:old", "not json")
    valkey.command("SET", "{agent_cache}:p:odd", '{"order": {"a": 1}, "user": ["x", null]}')
    found = facts(run, "stats", "--url", valkey.url)
    assert (found["entries"], found["unreadable"]) == (6, 1)
    assert found["roots"]["order"]["entries"] == 4
    assert {entry["digest"] for entry in facts(run, "keys", "--url", valkey.url)["entries"]} >= {"00ff"}


# keys


@pytest.fixture
def stray(valkey: Server) -> Server:
    """One on which somebody else has written under the names of the tier."""
    with_entries(valkey.url, orders=1, carts=0)
    valkey.command("HSET", "{agent_cache}:v:@abc", "field", "1")
    head = encode_head(Head({"o\x9b::\x9b": "1", "\x1b[2J:D": "1"}, 1.0, 1.0, 0.0, 0.0, "\x1b[2J"))
    with valkey.client() as client:
        client.set("{agent_cache}:v:@abd", head + b"\nx")
    return valkey


REPORTS = ["[" * 200_000, '{"\\ud800":[1,2,3]}', '{"\\u001b[2J\\u009b2J":[1,2,3]}', '{"a":[1e400,2,3],"b":["x"],"c":4}']


@pytest.mark.parametrize(
    "numbers",
    ["[-5, 1, 1]", "[true, 1, 1]", "[1.0, 1, 1]", "[9223372036854775808, 1, 1]", "[1, 1]", '[1, 1, "1"]', "[]", "null"],
)
def test_what_a_process_cannot_have_counted_is_left_out_of_the_hit_rates(valkey, run, numbers):
    valkey.command("SET", "{agent_cache}:p:forged", f'{{"order": {numbers}, "user": [3, 1, 0]}}')
    found = facts(run, "stats", "--url", valkey.url)
    assert list(found["roots"]) == ["user"]
    assert found["roots"]["user"]["hit_rate"] == 0.75
    assert found["processes"] == 1


@pytest.mark.parametrize(("command", "as_json"), crossed(["stats", "keys"], [True, False]))
@pytest.mark.parametrize("report", REPORTS, ids=range(len(REPORTS)))
def test_what_others_have_written_is_neither_believed_nor_said_to_the_terminal(stray, run, command, report, as_json):
    stray.command("SET", "{agent_cache}:p:evil", report)
    code, out, err = run(command, "--url", stray.url, *(["--json"] if as_json else []))
    assert (code, err) == (0, "")
    assert all(char.isprintable() or char == "\n" for char in out)
    out.encode()
    if as_json:
        found = json.loads(out)
        assert len(found["entries"]) == 4 if command == "keys" else found["unreadable"] == 1


def test_everything_takes_along_what_others_have_written(stray, run):
    code, out, err = run("clear", "--url", stray.url, "--all", "--yes")
    assert (code, err) == (0, "")
    assert "deleted 4 entries" in out
    assert not stray.command("KEYS", "v:*")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--timeout", "0", "must be seconds, more than 0"),
        ("--timeout", "x", "must be seconds, more than 0"),
        ("--limit", "0", "must be a number, 1 or more"),
        ("--limit", "x", "must be a number, 1 or more"),
    ],
)
def test_a_number_that_will_not_do_is_answered_with_one_that_will(run, capsys, option, value, says):
    with pytest.raises(SystemExit):
        run("keys", "--url", "redis://a", option, value)
    assert says in capsys.readouterr().err


def test_keys_shows_no_argument_and_no_value(valkey, run):
    with_entries(valkey.url)
    for arguments in ((), ("--json",)):
        code, out, _ = run("keys", "--url", valkey.url, *arguments)
        assert code == 0
        assert SECRET not in out
        assert "order:#" in out
    digests = {entry["digest"] for entry in facts(run, "keys", "--url", valkey.url)["entries"]}
    assert digests == {key.rpartition("@")[2] for key in valkey.command("KEYS", "{agent_cache}:v:*")}


def test_keys_with_a_tag_are_those_that_clear_would_drop(valkey, run):
    with_entries(valkey.url)
    url = ("--url", valkey.url)
    assert len(facts(run, "keys", *url, "--tag", "order")["entries"]) == 4
    named = facts(run, "keys", *url, "--tag", f"order:{SECRET}-1")["entries"]
    assert sorted(entry["tags"] for entry in named) == [["order"], [f"order:{SECRET}-1"]]
    run("clear", *url, f"order:{SECRET}-1")
    dropped = {entry["digest"] for entry in facts(run, "keys", *url)["entries"] if not entry["is_current"]}
    assert dropped == {entry["digest"] for entry in named}
    assert facts(run, "keys", *url, "--tag", "nothing")["entries"] == []


def test_keys_stops_at_its_limit_and_says_so(valkey, run):
    with_entries(valkey.url)
    found = facts(run, "keys", "--url", valkey.url, "--limit", "2")
    assert (len(found["entries"]), found["is_cut"]) == (2, True)
    assert "and more" in run("keys", "--url", valkey.url, "--limit", "2")[1]
    assert facts(run, "keys", "--url", valkey.url, "--limit", "6")["is_cut"] is False


# clear


async def test_clear_reaches_the_local_copies_of_other_processes_at_once(valkey, run):
    async with fleet(valkey.url, max_staleness=30.0) as tier:
        first, other = await get_order("7"), await get_order("8")
        await tier.caught_up()
        assert await get_order("7") == first
        code, out, _ = await asyncio.to_thread(run, "clear", "--url", valkey.url, "order:7")
        assert (code, out) == (0, "cleared order:7\n")
        await tier.caught_up()  # long before max_staleness
        assert await get_order("7") != first
        assert await get_order("8") == other


async def test_clear_everything_needs_a_yes_and_leaves_other_namespaces_alone(valkey, run):
    url = ("--url", valkey.url)
    async with fleet(valkey.url, namespace="mine", max_staleness=30.0) as tier:
        first = await get_order("7")
        await asyncio.to_thread(with_entries, valkey.url, carts=0)
        code, _, err = await asyncio.to_thread(run, "clear", *url, "--namespace", "mine", "--all")
        assert code == 2
        assert "--yes" in err
        assert await get_order("7") == first
        theirs = set(valkey.command("KEYS", "{agent_cache}:v:*"))
        code, out, _ = await asyncio.to_thread(run, "clear", *url, "--namespace", "mine", "--all", "--yes", "--json")
        assert code == 0
        assert json.loads(out) == {"namespace": "mine", "tags": [], "deleted": 1}
        assert valkey.command("KEYS", "{mine}:v:*") == []
        assert set(valkey.command("KEYS", "{agent_cache}:v:*")) == theirs
        assert len(theirs) == 4
        await tier.caught_up()
        assert await get_order("7") != first


async def test_everything_includes_roots_that_only_a_process_remembers(valkey, run):
    async with fleet(valkey.url, max_staleness=30.0) as tier:
        first = await get_order("7")
        await tier.caught_up()
        for key in valkey.command("KEYS", "*"):
            valkey.command("DEL", key)
        assert await get_order("7") == first  # a copy, and no key of it anywhere
        assert (await asyncio.to_thread(run, "clear", "--url", valkey.url, "--all", "--yes"))[0] == 0
        await tier.caught_up()
        assert await get_order("7") != first


async def test_clear_takes_an_id_with_a_colon_in_it(valkey, run):
    async with fleet(valkey.url, max_staleness=30.0) as tier:
        first = await get_order("a:b")
        for arguments, is_dropped in ((("order:a:b",), False), (("--entity", "order", "a:b"), True)):
            assert (await asyncio.to_thread(run, "clear", "--url", valkey.url, *arguments))[0] == 0
            await tier.caught_up()
            assert (await get_order("a:b") != first) is is_dropped


@pytest.mark.parametrize("arguments", [(), ("order:7", "--all", "--yes"), ("order:",)])
def test_clear_says_what_is_wrong_with_its_arguments(valkey, run, arguments):
    code, out, err = run("clear", "--url", valkey.url, *arguments)
    assert (code, out) == (2, "")
    assert "order:7" in err or "tag" in err


@pytest.mark.parametrize("kind", ["full", "replica"])
def test_clear_says_once_that_nothing_could_be_cleared(start_server, kind):
    server = start_server(maxmemory="3mb", maxmemory_policy="noeviction")
    if kind == "full":
        server.config_set(maxmemory="1mb")  # less than it has
    else:
        server.command("REPLICAOF", "127.0.0.1", server.port)
    made = forks().run("-m", "agent_cache", "tier", "clear", "order:7", "--url", server.url, imports=IMPORTS)
    assert (made.returncode, made.stdout) == (2, "")
    (line,) = made.stderr.splitlines()
    assert line.startswith("the write was not begun")


# doctor


def verdicts(run, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """What the doctor finds. With a timeout of seconds it minds no trip that a busy machine delays."""
    code, out, _ = run("doctor", "--tier-timeout", "5", *arguments, "--json")
    (checks,) = json.loads(out)["servers"].values()
    return code, {check["name"]: (check["verdict"], f"{check['says']} {check['do'] or ''}") for check in checks}


def test_the_doctor_finds_nothing_wrong_with_a_fit_server_and_leaves_nothing_behind(fit, run):
    code, checks = verdicts(run, "--url", fit.url)
    assert code == 0
    assert {verdict for verdict, _ in checks.values()} == {"fine"}
    assert set(checks) == {
        "version", "memory", "persistence", "replication", "clients", "rights", "messages", "latency", "clock",
    }  # fmt: skip
    assert fit.command("KEYS", "*") == []
    code, out, _ = run("doctor", "--url", fit.url, "--tier-timeout", "5")
    assert code == 0
    assert "nothing is wrong" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "name", "says"),
    [
        ({"maxmemory": 0}, "memory", "set maxmemory"),
        ({"maxmemory_policy": "allkeys-lru"}, "memory", "volatile-ttl"),
        ({"appendonly": "yes", "appendfsync": "always"}, "persistence", "appendfsync"),
        ({"min_replicas_to_write": 1}, "writes", "NOREPLICAS"),
        *slow_rows(
            ({"maxmemory_policy": "volatile-lru"}, "memory", "volatile-ttl"),
            ({"min_replicas_to_write": 1}, "replication", "refused"),
        ),
    ],
)
def test_the_doctor_finds_what_is_set_wrong(start_server, run, options, name, says):
    code, checks = verdicts(run, "--url", start_server(**{**GOOD, **options}).url)
    assert code == 1
    assert checks[name][0] == "finding"
    assert says in checks[name][1]


def test_the_doctor_finds_a_full_server_that_evicts_nothing(start_server, run):
    server = start_server(maxmemory="3mb", maxmemory_policy="noeviction")
    assert verdicts(run, "--url", server.url)[1]["memory"][0] == "fine"
    server.config_set(maxmemory="1mb")  # less than it has
    code, checks = verdicts(run, "--url", server.url)
    assert code == 1
    assert "raise maxmemory" in checks["memory"][1]
    assert "OOM" in checks["writes"][1]


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ("-evalsha", "EVALSHA ~{agent_cache}:*"),
        ("-time", "TIME"),
        ("-xread", "XREAD ~{agent_cache}:*"),
        *slow_rows(("-zrem", "ZREM ~{agent_cache}:*"), ("-ping", "PING")),
    ],
)
def test_the_doctor_names_the_rights_that_are_missing(fit, run, lacking, says):
    fit.command("ACL", "SETUSER", "agent", "on", ">secret", "~*", "&*", "+@all", lacking)
    code, checks = verdicts(run, "--url", f"redis://agent:secret@127.0.0.1:{fit.port}")
    assert code == 1
    assert checks["rights"][0] == "finding"
    assert says in checks["rights"][1]


def test_the_reference_shows_as_many_commands_as_the_doctor_tries(fit, run):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "fleet-cli.md").read_text("utf-8")
    assert f"  fine     rights       {verdicts(run, '--url', fit.url)[1]['rights'][1].strip()}\n" in page


def test_the_rights_of_the_guide_are_enough_for_the_doctor(fit, run):
    fit.command("ACL", "SETUSER", "agent", *rights.least())
    code, checks = verdicts(run, "--url", f"redis://agent:secret@127.0.0.1:{fit.port}")
    assert code == 0
    assert checks["rights"][0] == "fine"


@pytest.mark.slow
def test_the_rights_of_the_guide_for_a_cluster_are_enough_for_the_doctor(cluster, run):
    for node in cluster.primaries:
        node.command("ACL", "SETUSER", "agent", *rights.in_cluster(rights.least()))
    url = f"redis://agent:secret@127.0.0.1:{cluster.primaries[0].port}"
    _, out, _ = run("doctor", "--url", url, "--tier-timeout", "5", "--json")
    for checks in json.loads(out)["servers"].values():
        verdict = {check["name"]: check["verdict"] for check in checks}
        assert verdict["rights"] == verdict["messages"] == verdict["latency"] == "fine"


def test_the_guide_and_the_reference_list_the_same_rights():
    assert sorted(rights.of_the_reference()) == sorted({*rights.least()} - {"reset", "on", ">secret"})


def test_the_rights_that_the_guide_calls_dispensable_are(fit, run):
    def refused() -> set[str]:
        return {entry[entry.index("object") + 1] for entry in fit.command("ACL", "LOG")} - {"config|get"}

    url = f"redis://agent:secret@127.0.0.1:{fit.port}"
    fit.command("ACL", "SETUSER", "agent", *rights.least())
    assert verdicts(run, "--url", f"{url}/1")[0] == 0
    assert refused() == set()
    fit.command("ACL", "SETUSER", "agent", "-select", "-client|setinfo")
    assert verdicts(run, "--url", url)[0] == 0
    assert refused() == {"client|setinfo"}
    code, _, err = run("doctor", "--url", f"{url}/1")
    assert code == 2
    assert "'select'" in err


def test_the_rights_of_an_operator_in_the_reference_are_enough_for_the_other_commands(fit, run):
    fit.command("ACL", "SETUSER", "operator", *rights.least(), *rights.of_an_operator())
    url = f"redis://operator:secret@127.0.0.1:{fit.port}"
    with_entries(url)
    assert facts(run, "stats", "--url", url)["entries"] == 6
    assert len(facts(run, "keys", "--url", url)["entries"]) == 6
    assert facts(run, "clear", "--url", url, "--all", "--yes")["deleted"] == 6


@pytest.mark.parametrize(
    ("command", "lacking"), [("stats", "-hvals"), ("stats", "-get"), ("stats", "-strlen"), ("keys", "-get")]
)
def test_a_right_that_is_missing_is_said_and_no_count_of_nothing_shown(fit, run, command, lacking):
    with_entries(fit.url, carts=0)
    fit.command("HSET", "{agent_cache}:r", "x", "[]")
    fit.command("ACL", "SETUSER", "operator", "on", ">secret", "~*", "&*", "+@all", lacking)
    code, out, err = run(command, "--url", f"redis://operator:secret@127.0.0.1:{fit.port}")
    assert (code, out) == (2, "")
    assert "the server has refused: NOPERM" in err
    assert f"'{lacking[1:]}'" in err


def test_a_value_that_names_what_may_not_be_read_is_not_current_and_stops_nothing(fit, run):
    with fit.client() as client:
        client.set("{agent_cache}:v:@ab", encode_head(Head({"}secret": "1"}, 1.0, 1.0, 0.0, 0.0, "")) + b"\nx")
    fit.command("ACL", "SETUSER", "operator", "on", ">secret", "~{agent_cache}:*", "&*", "+@all")
    url = f"redis://operator:secret@127.0.0.1:{fit.port}"
    (entry,) = facts(run, "keys", "--url", url)["entries"]
    assert entry["is_current"] is False
    assert facts(run, "stats", "--url", url)["entries"] == 1


def test_a_right_to_read_heartbeats_that_is_missing_is_said(fit, run):
    fit.command("SET", "{agent_cache}:p:one", "{}")
    fit.command("ACL", "SETUSER", "operator", "on", ">secret", "~t:*", "~v:*", "~w:*", "&*", "+@all")
    code, out, err = run("stats", "--url", f"redis://operator:secret@127.0.0.1:{fit.port}")
    assert (code, out) == (2, "")
    assert "the server has refused: NOPERM" in err


def test_a_registry_and_a_heartbeat_of_another_type_count_as_none(valkey, run):
    valkey.command("SET", "{agent_cache}:r", "x")
    valkey.command("HSET", "{agent_cache}:p:odd", "field", "1")
    found = facts(run, "stats", "--url", valkey.url)
    assert (found["roots"], found["processes"]) == ({}, 0)


@pytest.mark.slow
def test_the_doctor_finds_replicas_without_a_fence_and_that_a_replica_is_none(fit, start_server, run):
    fit.config_set(repl_diskless_sync_delay=0)  # five seconds, for more replicas to come
    replica = start_server(**GOOD, replicaof=f"127.0.0.1 {fit.port}")
    deadline = time.monotonic() + 100
    while replica.info("replication")["master_link_status"] != "up":
        assert time.monotonic() < deadline
    code, checks = verdicts(run, "--url", fit.url)
    assert code == 1
    assert "min-replicas-to-write 1" in checks["replication"][1]
    fit.config_set(min_replicas_to_write=1)
    code, checks = verdicts(run, "--url", fit.url)
    assert (code, checks["replication"][0]) == (0, "fine")
    code, checks = verdicts(run, "--url", replica.url)
    assert code == 1
    assert f"replica of 127.0.0.1:{fit.port}" in checks["role"][1]
    assert "rights" not in checks


@pytest.mark.parametrize(
    ("info", "is_cluster", "verdict"),
    [
        ({"redis_version": "6.2.0"}, False, "fine"),
        ({"redis_version": "6.0.16"}, False, "finding"),
        ({"redis_version": "6.2.14"}, True, "finding"),
        ({"redis_version": "10.1.0"}, True, "fine"),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "8.0.1"}, True, "fine"),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "7.1.9"}, False, "finding"),
        ({}, False, "finding"),
    ],
)
async def test_the_doctor_knows_which_versions_will_do(info, is_cluster, verdict):
    (result,) = await version(SimpleNamespace(info=info, is_cluster=is_cluster))
    assert result.verdict == verdict


@pytest.mark.parametrize(("jump", "verdict"), [(0.0, "fine"), (2.0, "finding"), (-2.0, "finding")])
@pytest.mark.parametrize("slow", [None, "there", "back"])
async def test_a_clock_jumps_only_if_the_trip_that_asked_for_it_does_not_explain_it(jump, verdict, slow, monkeypatch):
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("agent_cache.cli.doctor.asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr("agent_cache.cli.doctor.time", SimpleNamespace(monotonic=lambda: now, time=lambda: 1000 + now))
    asked = []

    async def ask(command: str) -> tuple[bytes, bytes]:
        asked.append(command)
        is_second = len(asked) == 2
        if is_second and slow == "there":
            await sleep(0.4)
        whole, rest = divmod(now + 1000 + jump * is_second, 1)
        if is_second and slow == "back":
            await sleep(0.4)
        return str(int(whole)).encode(), str(int(rest * 1e6)).encode()

    (result,) = await clock(SimpleNamespace(server=SimpleNamespace(ask=ask)))
    assert result.verdict == verdict
    assert asked == ["TIME", "TIME"]


def test_the_doctor_finds_a_server_that_is_too_far_away(fit, run):
    code, checks = verdicts(run, "--url", fit.url, "--tier-timeout", "0.0000001")
    assert code == 1
    assert "gives up after" in checks["latency"][1]


# All of them


@pytest.mark.parametrize("command", ["stats", "keys", "clear", "doctor"])
def test_what_cannot_be_reached_is_said_and_no_password_with_it(command, run, monkeypatch):
    arguments = ("order:7",) if command == "clear" else ()
    code, out, err = run(command, *arguments, "--url", f"redis://someone:hunter2@127.0.0.1:{free_port()}")
    assert (code, out) == (2, "")
    assert "cannot be used" in err
    assert "hunter2" not in err
    monkeypatch.delenv("AGENT_CACHE_URL", raising=False)
    code, out, err = run(command, *arguments)
    assert (code, out) == (2, "")
    assert "AGENT_CACHE_URL" in err


@pytest.mark.parametrize("command", ["stats", "keys", "clear", "doctor"])
def test_a_server_that_hangs_costs_the_timeout(command, own_valkey, run):
    own_valkey.pause()
    arguments = ("order:7",) if command == "clear" else ()
    with Stopwatch() as watch:
        code, _, err = run(command, *arguments, "--url", own_valkey.url, "--timeout", "0.3")
    assert code == 2
    assert "cannot be used" in err
    assert watch.running < 10


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--url", "http://x", "the URL cannot be read: it must begin with redis://"),
        ("--url", "redis://x/one", "redis://x cannot be read: the database must be a number"),
        ("--url", "redis://x?pasword=y", "'pasword' is in the URL and would have no effect; did you mean password?"),
        ("--url", "redis://x?ssl_ca_certs=y", "ssl_ca_certs without TLS"),
        ("--namespace", "a b", "namespace must be a short text"),
    ],
)
def test_usage_is_checked_first_and_names_nothing_that_was_not_typed(option, value, says, valkey, run):
    code, out, err = run("stats", "--url", valkey.url, option, value)
    assert (code, out) == (2, "")
    assert err.startswith(says)


def test_a_wrong_password_is_not_repeated(fit, run):
    code, _, err = run("stats", "--url", f"redis://nobody:hunter2@127.0.0.1:{fit.port}")
    assert code == 2
    assert "hunter2" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "redis://:hunter2@h:6379/0"),
        ("doctor", "--uri", "redis://:hunter2@h:6379/0"),
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
    assert said.out == ""
    assert "the URL of a server belongs to --url" in said.err
    assert "ter2" not in said.err
    assert "@" not in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("clear", "redis://:hunter2@h"),
        ("clear", "order:7", "--entity", "redis://:hunter2@h", "7"),
        ("keys", "--tag", "redis://:hunter2@h"),
    ],
)
def test_a_url_in_place_of_a_tag_is_refused_and_not_repeated(valkey, run, monkeypatch, arguments):
    monkeypatch.setenv("AGENT_CACHE_URL", valkey.url)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "did you mean --url" in err
    assert "hunter2" not in err


def test_an_id_may_be_a_url(valkey, run):
    code, out, _ = run("clear", "--url", valkey.url, "--entity", "page", "https://example.com/")
    assert (code, out) == (0, "cleared page:https%3A//example.com/\n")


@pytest.mark.slow
def test_the_commands_work_on_all_of_a_cluster(cluster, run):
    url = cluster.primaries[0].url
    with_entries(url, orders=20, carts=20, cluster=True)
    found = facts(run, "stats", "--url", url)
    assert len(found["servers"]) == 3
    assert found["entries"] == 41
    assert {root: found["roots"][root]["current"] for root in ("order", "cart")} == {"order": 21, "cart": 20}
    assert len(facts(run, "keys", "--url", url, "--tag", "cart")["entries"]) == 20
    code, out, _ = run("doctor", "--url", url, "--json")
    said = json.loads(out)["servers"]
    assert len(said) == 3
    for checks in said.values():
        by_name = {check["name"]: check["verdict"] for check in checks}
        assert by_name["rights"] == by_name["messages"] == by_name["cluster"] == by_name["version"] == "fine"
        assert by_name["replication"] == "note"
    assert code == 1  # memory has no limit
    assert facts(run, "clear", "--url", url, "--all", "--yes")["deleted"] == 41
    assert facts(run, "stats", "--url", url)["entries"] == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_scan_shows_how_far_it_is_to_somebody_who_looks_on(monkeypatch):
    for stream, total, is_shown in (
        (Terminal(), 100_000, True),
        (Terminal(), 100, False),
        (io.StringIO(), 100_000, False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("scanning", total, least=20_000) as tick:
            tick(total // 2)
        assert ("50%" in stream.getvalue()) is is_shown
        assert not is_shown or stream.getvalue().endswith("\033[K")


def test_the_url_may_come_from_the_environment(valkey):
    environment = os.environ | {"AGENT_CACHE_URL": valkey.url}
    made = forks().run("-m", "agent_cache", "tier", "stats", "--json", environment=environment, imports=IMPORTS)
    assert made.returncode == 0
    assert json.loads(made.stdout)["entries"] == 0


WITHOUT_REDIS = [
    ("tier stats --url redis://h", 2, "agent-cache[redis]"),
    ("tier doctor --url redis://h", 2, "agent-cache[redis]"),
    ("tier stats", 2, "use --url"),
    ("cassette", 2, "usage: "),
]
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from agent_cache.cli.main import main

found = {}
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(command.split())
        except SystemExit as ended:
            code = ended.code
    found[command] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def without_redis(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """How each of these commands ends and what it prints, all in one process that has no redis-py."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "redis.py").write_text("raise ModuleNotFoundError(name='redis')")
    made = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps([command for command, *_ in WITHOUT_REDIS])],
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{Path(agent_cache.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(made.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code", "says"), WITHOUT_REDIS)
def test_without_redis_py_a_command_names_the_extra_and_the_others_work(without_redis, command, code, says):
    *ended, printed = without_redis[command]
    assert ended == [code, ""]
    assert says in printed
