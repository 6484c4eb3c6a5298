"""`agent-cache tier stats`, `keys`, `clear` and `doctor` on a file, and on processes that have it open."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import agent_cache
from agent_cache.cli.main import main
from tests.harness.forks import forks

SECRET = "K9-very-secret-argument"
COMMANDS = ["stats", "keys", "clear", "doctor"]

PROGRAM = """
import asyncio, itertools, sys
from agent_cache import AgentCache, AgentCacheInvalidator, configure
from agent_cache.remote import FileTier

loads = itertools.count(1)
ends = asyncio.Event()

@AgentCache("order:{order_id}", name="get_order", ttl=60)
async def get_order(order_id: str) -> str:
    return f"load {next(loads)}"

@AgentCache("order", name="list_orders", ttl=60)
async def list_orders() -> list[str]:
    return [f"load {next(loads)}"]

@AgentCache(("user:{result[user]}", "cart"), name="get_cart")
async def get_cart(user: str) -> dict[str, str]:
    return {"user": user}

@AgentCacheInvalidator("order:{order_id}", name="cancel_order")
async def cancel_order(order_id: str, waits: bool = False) -> str:
    if waits:
        print("running", flush=True)
        await asyncio.Event().wait()
    return "done"

async def answer(line: str) -> object:
    match line.split():
        case ["read", order_id]: return await get_order(order_id)
        case ["list"]: return await list_orders()
        case ["cart", user]: return await get_cart(user)
        case ["write", order_id]: return await cancel_order(order_id)
        case ["write-for-ever", order_id]: return await cancel_order(order_id, True)

async def main():
    async with FileTier(sys.argv[1], namespace=sys.argv[2], timeout=float(sys.argv[3]), max_bytes=1_000_000) as tier:
        with configure(remote=tier):
            print("ready", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                print(await answer(line), flush=True)

asyncio.run(main())
"""


class Worker:
    """A process that has the file open and makes a call for each line."""

    def __init__(self, path: Path, namespace: str, timeout: float) -> None:
        (reads, writes), (hears, prints) = os.pipe(), os.pipe()
        self._stdin, self._stdout = os.fdopen(writes, "w"), os.fdopen(hears)
        with os.fdopen(reads) as stdin, os.fdopen(prints, "w") as stdout:
            self.process = forks().start(
                "-c",
                PROGRAM,
                path,
                namespace,
                timeout,
                streams=(stdin, stdout, sys.__stderr__),
                imports=["asyncio", "agent_cache.remote.file"],
            )
        assert self._stdout.readline() == "ready\n"

    def ask(self, line: str) -> str:
        self._stdin.write(f"{line}\n")
        self._stdin.flush()
        return self._stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        self._stdin.close()
        self.process.wait()
        self._stdout.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    return folder / "cache.db"


@pytest.fixture
def start(path: Path) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(namespace: str = "agent_cache", timeout: float = 30.0) -> Worker:
        started.append(Worker(path, namespace, timeout))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


@pytest.fixture
def worker(start: Callable[..., Worker]) -> Worker:
    """One that has read three orders, their list, and two carts."""
    worker = start()
    for line in (f"read {SECRET}-0", f"read {SECRET}-1", f"read {SECRET}-2", "list", "cart a", "cart b"):
        worker.ask(line)
    return worker


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch, path: Path) -> Callable[..., tuple[int, str, str]]:
    """Run a command on the file."""
    monkeypatch.setenv("AGENT_CACHE_URL", f"sqlite:///{path}")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(("tier", *arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def facts(run, *arguments: str) -> dict:
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process is about to do."""
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline


def given(command: str) -> tuple[str, ...]:
    return (command, "order:7") if command == "clear" else (command,)


# stats


def test_stats_counts_values_of_each_root_and_tool(worker, run):
    found = facts(run, "stats")
    tools = {tool: counts["entries"] for tool, counts in found["tools"].items()}
    assert tools == {"get_order": 3, "list_orders": 1, "get_cart": 2}
    until(lambda: "user" in facts(run, "stats")["roots"])  # its root is not in the file, but in a report
    found = facts(run, "stats")
    assert {root: counts["entries"] for root, counts in found["roots"].items()} == {"order": 4, "cart": 2, "user": 2}
    assert found["entries"] == 6
    assert found["bytes"] == found["used_bytes"] == sum(counts["bytes"] for counts in found["tools"].values())
    _, out, _ = run("stats")
    assert "6 entries in 'agent_cache'" in out
    assert SECRET not in out


def test_stats_tells_which_processes_have_it_open(start, run):
    one, two = start(), start()
    found = facts(run, "stats")
    assert sorted(found["pids"]) == sorted((one.process.pid, two.process.pid))
    one.kill()
    found = facts(run, "stats")
    assert (found["processes"], found["pids"]) == (1, [two.process.pid])
    assert f"1 process has it open: {two.process.pid}" in run("stats")[1]
    two.end()
    assert facts(run, "stats")["pids"] == []


def test_stats_adds_up_the_hit_rates_of_the_processes_that_live(start, run):
    one, two = start(), start()
    for worker in (one, two):
        for line in ("read a", "read a", "read b"):
            worker.ask(line)

    def order() -> dict:
        return facts(run, "stats")["roots"]["order"]

    until(lambda: (order()["hits"], order()["misses"]) == (4, 2))  # two of these were found in the file
    assert order()["hit_rate"] == pytest.approx(2 / 3)
    assert facts(run, "stats")["max_bytes"] == 1_000_000
    assert "66.7%" in run("stats")[1]
    two.kill()
    assert (order()["hits"], order()["misses"]) == (1, 2)
    one.kill()
    start()  # it has the number of a dead one, and has counted nothing yet
    assert (order()["entries"], order()["misses"], order()["hit_rate"]) == (2, None, None)


def test_stats_counts_writes_that_run_and_those_of_the_dead(worker, run):
    assert worker.ask("write-for-ever 7") == "running"
    found = facts(run, "stats")
    assert (found["writes"]["running"], found["roots"]["order"]["writers"]) == (1, 1)
    assert "1 write running" in run("stats")[1]
    worker.kill()
    writes = facts(run, "stats")["writes"]
    assert writes["running"] + writes["late"] == 1  # until its lease has passed
    assert run("doctor")[0] == 0


def test_stats_tells_entries_that_only_wait_to_expire(worker, run):
    assert facts(run, "stats")["tools"]["get_order"]["current"] == 3
    assert worker.ask(f"write {SECRET}-1") == "done"
    found = facts(run, "stats")
    assert (found["tools"]["get_order"]["entries"], found["tools"]["get_order"]["current"]) == (3, 2)
    assert (found["tools"]["list_orders"]["current"], found["roots"]["order"]["current"]) == (0, 2)


def test_invalidations_that_could_not_be_written_are_told(start, run, path):
    worker = start(timeout=0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert worker.ask("write 7") == "done"
        found = facts(run, "stats")
        assert (found["pending"] > 0, found["is_usable"]) == (True, False)
        assert "nobody uses the file" in run("stats")[1]
        code, out, _ = run("doctor")
        assert code == 1
        assert "finding  pending" in out
        worker.kill()
        found = facts(run, "stats")
        assert (found["pending"], found["pending_of_the_dead"]) == (0, 1)
        assert "the next one drops all values" in run("stats")[1]


def test_other_namespaces_are_counted_apart(start, run):
    start("mine").ask("read 7")
    start().ask("read 7")
    for namespace in ("mine", "agent_cache"):
        found = facts(run, "stats", "--namespace", namespace)
        assert (found["entries"], found["others"], found["tools"]["get_order"]["entries"]) == (1, 1, 1)
    assert "1 in other namespaces" in run("stats")[1]


# keys


def test_keys_shows_no_argument_and_no_value(worker, run):
    for arguments in ((), ("--json",)):
        code, out, _ = run("keys", *arguments)
        assert code == 0
        assert SECRET not in out
        assert "load 1" not in out
        assert "order:#" in out
    assert {entry["tool"] for entry in facts(run, "keys")["entries"]} == {"get_order", "list_orders", "get_cart"}


def test_keys_with_a_tag_are_those_that_clear_would_drop(worker, run):
    assert len(facts(run, "keys", "--tag", "order")["entries"]) == 4
    named = facts(run, "keys", "--tag", f"order:{SECRET}-1")["entries"]
    assert sorted(entry["tags"] for entry in named) == [["order"], [f"order:{SECRET}-1"]]
    assert len(facts(run, "keys", "--tag", "user:a")["entries"]) == 1  # named by the result alone
    assert run("clear", f"order:{SECRET}-1")[0] == 0
    dropped = {entry["digest"] for entry in facts(run, "keys")["entries"] if not entry["is_current"]}
    assert dropped == {entry["digest"] for entry in named}
    assert facts(run, "keys", "--tag", "nothing")["entries"] == []


def test_keys_stops_at_its_limit_and_says_so(worker, run):
    found = facts(run, "keys", "--limit", "2")
    assert (len(found["entries"]), found["is_cut"]) == (2, True)
    assert "and more" in run("keys", "--limit", "2")[1]
    assert facts(run, "keys", "--limit", "6")["is_cut"] is False


def test_what_cannot_be_read_is_counted_and_does_not_stop_it(worker, run, path):
    worker.end()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE value SET head = x'ff', tool = ? WHERE tool = 'list_orders'", ("\x1b[2J",))
    assert facts(run, "stats")["unreadable"] == 1
    for command in ("stats", "keys"):
        code, out, err = run(command)
        assert (code, err) == (0, "")
        assert all(char.isprintable() or char == "\n" for char in out)


# clear


def test_clear_reaches_the_local_copies_of_other_processes_at_once(start, run):
    one, two = start(), start()
    first, other = one.ask("read 7"), one.ask("read 8")
    assert [two.ask("read 7"), two.ask("read 8"), two.ask("read 7")] == [first, other, first]
    code, out, _ = run("clear", "order:7")
    assert (code, out) == (0, "cleared order:7\n")
    assert [one.ask("read 7") != first, one.ask("read 8")] == [True, other]
    assert two.ask("read 8") == other


def test_clear_takes_an_entity_whose_id_has_a_colon(start, run):
    worker = start()
    first, other = worker.ask("read a:b"), worker.ask("read a")
    assert run("clear", "--entity", "order", "a:b")[1] == "cleared order:a%3Ab\n"
    assert [worker.ask("read a:b") != first, worker.ask("read a")] == [True, other]


def test_clear_everything_needs_a_yes_and_is_all_of_the_file(start, run):
    mine, worker = start("mine"), start()
    before = mine.ask("read 7"), worker.ask("read 7"), worker.ask("list")
    code, out, err = run("clear", "--all")
    assert (code, out) == (2, "")
    assert "--yes" in err
    assert (mine.ask("read 7"), worker.ask("read 7"), worker.ask("list")) == before
    assert facts(run, "clear", "--all", "--yes")["deleted"] == 3
    after = mine.ask("read 7"), worker.ask("read 7"), worker.ask("list")
    assert all(now != then for now, then in zip(after, before, strict=True))
    assert run("clear")[0] == run("clear", "order", "--all", "--yes")[0] == 2


def test_a_locked_file_is_not_cleared_and_that_is_said(worker, run, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for arguments in (("order:7",), ("--all", "--yes")):
            code, out, err = run("clear", *arguments, "--timeout", "0.1")
            assert (code, out) == (2, "")
            assert "locked" in err


# doctor


def verdicts(run) -> tuple[int, dict[str, tuple[str, str]]]:
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert found["findings"] == sum(check["verdict"] == "finding" for check in found["checks"])
    return code, {check["name"]: (check["verdict"], f"{check['says']} {check['do']}") for check in found["checks"]}


def test_nothing_is_wrong_with_a_file_in_use(worker, run):
    code, checks = verdicts(run)
    assert code == 0
    assert {verdict for verdict, _ in checks.values()} == {"fine"}
    assert list(checks) == [
        "files", "permissions", "file system", "version", "log", "integrity", "page", "processes", "writers", "space",
    ]  # fmt: skip
    assert str(worker.process.pid) in checks["processes"][1]
    assert "nothing is wrong" in run("doctor")[1]


def test_nothing_is_wrong_with_a_file_that_nobody_uses(worker, run):
    worker.end()
    code, checks = verdicts(run)
    assert code == 0
    assert "0 have" in checks["processes"][1]


def test_the_doctor_finds_files_that_others_may_use(worker, run, path):
    path.with_name("cache.db.page").chmod(0o644)
    code, checks = verdicts(run)
    assert (code, checks["permissions"][0]) == (1, "finding")
    assert "cache.db.page" in checks["permissions"][1]
    path.parent.chmod(0o777)
    assert "everybody may write into" in verdicts(run)[1]["permissions"][1]


def test_the_doctor_finds_a_page_of_another_database(worker, run, path):
    worker.process.send_signal(signal.SIGSTOP)  # or it would notice, and make its own
    page = path.with_name("cache.db.page")
    size = page.stat().st_size
    page.unlink()
    code, checks = verdicts(run)
    assert (code, checks["page"][0]) == (1, "finding")
    assert "is not there" in checks["page"][1]
    worker.process.send_signal(signal.SIGCONT)
    worker.end()
    page.touch(0o600)
    page.write_bytes(bytes(size))
    code, checks = verdicts(run)
    assert (code, checks["page"][0]) == (0, "note")  # nobody has copies
    assert "is that of another database" in checks["page"][1]


def test_the_doctor_finds_a_damaged_page_and_leaves_it_as_it_is(worker, run, path):
    worker.end()
    whole = path.read_bytes()
    size = int.from_bytes(whole[16:18])  # https://sqlite.org/fileformat.html
    found = set()
    for start in range(0, len(whole), size):
        damaged = whole[:start] + b"\xff" * size + whole[start + size :]
        path.write_bytes(damaged)
        code, checks = verdicts(run)
        assert code == 1
        (name,) = {"integrity", "database"} & {name for name, (verdict, _) in checks.items() if verdict == "finding"}
        assert "PATH.corrupt" in checks[name][1]
        found.add(name)
        assert path.read_bytes() == damaged
    assert found == {"integrity", "database"}


@pytest.mark.parametrize("command", ["stats", "keys", "clear"])
def test_a_command_leaves_a_damaged_file_as_it_is(command, worker, run, path):
    worker.end()
    damaged = b"\xff" * path.stat().st_size
    path.write_bytes(damaged)
    code, out, err = run(*given(command))
    assert (code, out) == (2, "")
    assert "cannot be used" in err
    assert path.read_bytes() == damaged


def test_the_doctor_finds_another_journal(worker, run, path):
    worker.end()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
    code, checks = verdicts(run)
    assert (code, checks["log"][0]) == (1, "finding")


def test_the_doctor_tells_of_a_file_that_was_set_aside(worker, run, path):
    path.with_name("cache.db.corrupt").touch()
    code, checks = verdicts(run)
    assert (code, checks["files"][0]) == (0, "note")


# All of them


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_makes_a_file(command, run, path):
    code, out, err = run(*given(command))
    assert (code, out) == (2, "")
    assert "there is no file" in err
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("./", "is a directory; name a file in it"),
        ("~nobody-of-this-name/x", "cannot be the path of a file"),
        ("sqlite:///no\0file", "cannot be the path of a file"),
        ("./" + "x" * 300, "File name too long"),
        ("tools.db", "must begin with .*; and there is no file 'tools.db' here"),
    ],
)
def test_a_path_that_cannot_be_is_said_in_a_line(command, url, says, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*given(command), "--url", url)
    assert (code, out) == (2, "")
    assert re.search(says, err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_database_is_no_file_of_a_tier(command, run, path):
    path.write_text("a text of somebody else, which is longer than the header of a database: " + "x" * 1000)
    code, out, err = run(*given(command))
    assert (code, out) == (2, "")
    assert "is no file of a tier" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_of_a_tier_is_left_as_it_is(command, run, path):
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    code, out, err = run(*given(command))
    assert (code, out) == (2, "")
    assert "is no file of a tier" in err
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA application_id = {0x61676361}")
        other.execute("PRAGMA user_version = 99")
        assert "of another version" in run(*given(command))[2]
    assert path.read_bytes()[100:] == before[100:]
    assert not path.with_name("cache.db.page").exists()


@pytest.mark.parametrize("command", ["stats", "keys", "doctor"])
def test_to_look_at_a_file_changes_nothing(command, worker, run, path):
    worker.kill()  # so that a part is in the log, which whoever may write moves into the database
    names = ("cache.db", "cache.db-wal", "cache.db.page", "cache.db.lock")
    before = {name: (path.with_name(name).read_bytes(), path.with_name(name).stat().st_mtime_ns) for name in names}
    assert run(command)[0] == 0
    after = {name: (path.with_name(name).read_bytes(), path.with_name(name).stat().st_mtime_ns) for name in names}
    assert after == before


def test_a_file_is_named_by_a_url_or_by_a_path(worker, run, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOME", str(path.parent))
    for url in (f"sqlite:///{path}", "sqlite:///cache.db", str(path), "./cache.db", "~/cache.db", "cache.db"):
        assert facts(run, "stats", "--url", url)["entries"] == 6
    code, _, err = run("stats", "--url", "other.db")  # it may as well be a host
    assert code == 2
    assert err.startswith("the URL cannot be read: it must begin with redis://")
    assert "sqlite:///" in err


def test_a_file_needs_no_redis_py(worker, path, tmp_path):
    (tmp_path / "redis.py").write_text("raise ModuleNotFoundError(name='redis')")
    search = f"{tmp_path}{os.pathsep}{Path(agent_cache.__file__).parents[1]}"
    each = [("tier", *given(command)) for command in COMMANDS]
    run_all = f"from agent_cache.cli.main import main\nassert [main(one) for one in {each}] == {[0] * len(each)}"
    made = subprocess.run(
        [sys.executable, "-c", run_all],
        env=os.environ | {"PYTHONPATH": search, "AGENT_CACHE_URL": f"sqlite:///{path}"},
        capture_output=True,
        text=True,
    )
    assert (made.returncode, made.stderr) == (0, "")
