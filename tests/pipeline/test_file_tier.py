"""A file tier: where its file can be, what it holds, and how a process starts that cannot open it."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import pickle
import resource
import sqlite3
import stat
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, RemotePolicy
from agent_cache.errors import ConfigurationError, RemoteTierError
from agent_cache.remote.codecs import EncryptedCodec, MessagePackCodec
from agent_cache.remote.file import FileTier
from tests.contract.workbench import commit, load, read, value_of, write
from tests.harness.processes import run_python


@pytest.mark.parametrize(
    ("mounts", "says"),
    [
        ("/dev/sda2 / ext4", ""),
        ("files:/home {parent} nfs4", r"network file system \(nfs4\).*RedisTier"),
        ("files:/home {parent} nfs4\n/dev/sdb1 {folder} xfs", ""),
        ("/dev/sdb1 {folder} xfs\nfiles:/home {parent} nfs4", ""),
        ("ceph-fuse {folder} fuse.ceph-fuse", r"network file system \(fuse.ceph-fuse\).*RedisTier"),
        ("systemd-1 {folder} autofs\nfiles:/auto {folder} nfs", r"network file system \(nfs\).*RedisTier"),
        ("files:/home {folder}er nfs4", ""),
        ("/dev/sda2 {folder}/cache ext4", "mounted by itself.*mount its directory"),
    ],
)
def test_a_mount_that_machines_do_not_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str, says: str
):
    """That of a folder is the one that is mounted innermost."""
    folder = tmp_path / "by ssh"
    folder.mkdir(0o700)
    names = {"folder": str(folder).replace(" ", r"\040"), "parent": tmp_path}
    lines = [f"{line} rw,relatime 0 0\n" for line in mounts.format(**names).splitlines()]
    monkeypatch.setattr(Path, "read_text", lambda *_: "".join(lines))
    if says:
        with pytest.raises(ConfigurationError, match=says):
            FileTier(folder / "cache")
        assert not list(folder.iterdir())
    else:
        FileTier(folder / "cache")


# What is there already


def _database(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    return make


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Path.mkdir, "is no file"),
        (lambda path: path.write_text("Dear diary. " * 1_000), "is not a database of SQLite.*name another file"),
        (os.mkfifo, "is no file"),
        (_database("CREATE TABLE diary (text)"), "is a database of another program.*name another file"),
        (
            _database("PRAGMA journal_mode = wal", "CREATE TABLE diary (text)"),
            "is a database of another program.*name another file",
        ),
        (_database("PRAGMA application_id = 42"), "is a database of another program"),
        (_database("PRAGMA application_id = 0x61676361", "PRAGMA user_version = 99"), "another version.*name another"),
    ],
    ids=["directory", "text", "fifo", "database", "database with a log", "application", "newer"],
)
def test_what_is_not_a_tier_of_this_version_is_refused_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], says: str
):
    path = tmp_path / "cache"
    make(path)
    before, files = _digest(path), sorted(tmp_path.iterdir())
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=says):
            FileTier(path)
        assert _digest(path) == before
        assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing/cache", "No such file or directory"),
        ("file/cache", "is no file"),
        ("sticky/cache", r"everybody may write into.*mkdir -m 700"),
        ("", "must be the path of a file"),
        (None, "must be the path of a file"),
        (":memory:", "must be the path of a file"),
        ("~nobody-of-this-name/cache", "home directory"),
        ("no\0file", "null"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_path_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: object, says: str
):
    (tmp_path / "file").touch()
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"FileTier: .*{says}"):
        FileTier(path)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "mode", "says"),
    [("file", 0o400, "may not write"), ("folder", 0o555, "may not write"), ("folder", 0o644, "Permission denied")],
)
def test_what_this_user_may_not_use_is_refused(what: str, mode: int, says: str):
    with tempfile.TemporaryDirectory() as folder:  # that of a test run may not be entered by others
        path = Path(folder) / "cache"
        path.touch(0o600)
        Path(folder).chmod(0o755)
        (path if what == "file" else Path(folder)).chmod(mode)
        printed = run_python(f"""
import os
from agent_cache.errors import ConfigurationError
from agent_cache.remote.file import FileTier

if os.getuid() == 0:
    os.setuid(65_534)
try:
    FileTier({str(path)!r})
except ConfigurationError as error:
    print(error)
""")
        Path(folder).chmod(0o700)
    assert says in printed


async def test_a_folder_that_cannot_be_locked_has_a_file_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fcntl.flock", lambda *_: Path("/nowhere").stat())
    async with FileTier(tmp_path / "cache") as tier:
        assert await tier.caught_up()


FORKED_UNTOLD = """
    import ctypes, os, pathlib, sys
    from agent_cache import AgentCache, AgentCacheInvalidator, ConfigurationError, configure
    from agent_cache.remote import FileTier
    sys.modules["uwsgi"] = sys  # as there
    configure(remote=FileTier(sys.argv[1]))
    truth = pathlib.Path(sys.argv[1] + ".truth")
    @AgentCache("it", name="get")
    def get(): return truth.read_text()
    @AgentCacheInvalidator("it", name="put")
    def put(value): truth.write_text(value)
    (put if sys.argv[2] else truth.write_text)("old")
    reads, written = os.pipe()
    if (child := ctypes.PyDLL(None).fork()) == 0:
        try:
            print(get(), os.read(reads, 1), put("new"), get(), flush=True)
        except ConfigurationError as error:
            print(error, flush=True)
        os._exit(0)
    print(get(), flush=True)
    os.write(written, b".")
    os.waitpid(child, 0)
    print(get())
"""


@pytest.mark.parametrize("used", [False, True])
def test_a_fork_that_python_is_not_told_of_is_noticed(tmp_path: Path, used: bool):
    """As by uWSGI. The connections of SQLite must not be carried across one (https://sqlite.org/howtocorrupt.html)."""
    printed = run_python(textwrap.dedent(FORKED_UNTOLD), arguments=[str(tmp_path / "cache"), "used" * used])
    if used:
        assert "was used before a fork" in printed
        assert printed.endswith("old\n")
    else:
        assert sorted(printed.splitlines()) == ["new", "old", "old b'.' None new"]


async def test_a_tier_is_not_sent_to_another_process(tmp_path: Path):
    async with FileTier(tmp_path / "cache") as tier:
        with pytest.raises(TypeError, match="make one in each process"):
            pickle.dumps(tier)


@pytest.mark.parametrize("is_there", [False, True])
async def test_only_this_user_can_read_the_files(tmp_path: Path, is_there: bool):
    former = os.umask(0)
    if is_there:  # empty, as `touch` leaves it
        (tmp_path / "cache").touch(0o644)
    try:
        async with FileTier(tmp_path / "cache") as tier:
            await load(tier, read("order:7"), "secret")
            files = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    finally:
        os.umask(former)
    assert files == dict.fromkeys(["cache", "cache-wal", "cache-shm", "cache.page"], 0o600)


async def test_a_path_through_a_link_is_the_same_file(tmp_path: Path):
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with FileTier(tmp_path / "real" / "cache") as one, FileTier(tmp_path / "link" / "cache") as other:
        await load(one, read("order:7"), "new")
        assert await value_of(other, read("order:7")) == "new"
        assert one.path == other.path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _rows(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
        return connection.execute(statement).fetchall()


# Bytes and seconds


@pytest.mark.parametrize(("ttl", "lasts"), [(None, 3_600), (864_000, 864_000)])
async def test_a_value_lives_as_long_as_its_tool_says(tmp_path: Path, ttl: float | None, lasts: float):
    async with FileTier(tmp_path / "cache") as tier:
        await load(tier, read("order:7", ttl=ttl), "value")
        found, _ = await tier.lookup(read("order:7", ttl=ttl))
        assert lasts - 60 < found.ttl <= lasts


async def test_the_bytes_of_all_values_stay_below_the_bound(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path, max_bytes=100_000) as tier:
        for number in range(400):
            await load(tier, read(f"order:{number}", key=number), "x" * 1_000)
        ((size, counted),) = _rows(path, "SELECT sum(size), (SELECT value FROM meta WHERE name = 'bytes') FROM value")
        assert 50_000 < size <= 100_000
        assert size == counted
        assert await value_of(tier, read("order:399", key=399)) == "x" * 1_000


async def test_a_file_does_not_grow_with_the_loads_that_processes_share(tmp_path: Path):
    sizes = list[int]()
    for start in (0, 1_000):
        async with FileTier(tmp_path / "cache") as tier:
            for key in range(start, start + 1_000):
                _, ticket = await tier.lookup(read("order", key=key), lead=True)
                ticket.give_up()
        sizes.append((tmp_path / "cache").stat().st_size)
    assert sizes[1] < 1.2 * sizes[0]


async def test_what_has_ended_makes_room_first_and_then_what_was_stored_first(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path, max_bytes=100_000) as tier:
        for number in range(60):
            await load(tier, read(f"order:{number}", key=number), "x" * 1_000)
        _rows(path, "UPDATE value SET stored = stored - 1000")
        _rows(path, "UPDATE value SET ends = 1 WHERE address IN (SELECT address FROM value ORDER BY stored LIMIT 5)")
        for number in range(60, 90):
            await load(tier, read(f"order:{number}", key=number), "x" * 1_000)
        assert not _rows(path, "SELECT 1 FROM value WHERE ends = 1")
        assert await value_of(tier, read("order:89", key=89)) != "nothing"
        assert sum([await value_of(tier, read(f"order:{n}", key=n)) == "nothing" for n in range(60)]) > 10
        assert all([await value_of(tier, read(f"order:{n}", key=n)) != "nothing" for n in range(60, 90)])


@pytest.mark.parametrize("options", [
    {"max_bytes": 10}, {"max_bytes": None}, {"max_value_size": 10}, {"namespace": "with space"},
    {"codec": object()}, {"timeout": -1}, {"lease": 0}, {"remote_ttl": -1},
])  # fmt: skip
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        FileTier(tmp_path / "cache", **options)


# Codecs and namespaces


async def test_an_encrypted_file_shows_no_value_and_no_argument(tmp_path: Path):
    pytest.importorskip("cryptography")
    async with FileTier(tmp_path / "cache", codec=EncryptedCodec(MessagePackCodec(), bytes(32))) as tier:
        await load(tier, read("order:topsecret", key="topsecret"), "classified")
        await commit(tier, write("order:topsecret"))
    for path in tmp_path.iterdir():
        assert b"topsecret" not in path.read_bytes()
        assert b"classified" not in path.read_bytes()


async def test_namespaces_of_one_file_know_nothing_of_each_other(tmp_path: Path):
    path = tmp_path / "cache"
    async with FileTier(path, namespace="one") as one, FileTier(path, namespace="two") as two:
        await load(one, read("order:7"), "of one")
        assert await value_of(two, read("order:7")) == "nothing"
        await load(two, read("order:7"), "of two")
        await commit(two, write("order:7"))
        assert await value_of(one, read("order:7")) == "of one"
        assert await value_of(two, read("order:7")) == "nothing"


# Messages


@pytest.mark.slow  # how long the log gets depends on when its thread runs
async def test_the_log_is_bounded_while_values_are_stored_all_the_time(tmp_path: Path):
    """It cannot begin anew while some of it is not in the database yet."""
    log, longest = tmp_path / "cache-wal", 0
    values = ["".join(chr(33 + number * (number + seed) % 89) for number in range(30_000)) for seed in range(8)]
    async with FileTier(tmp_path / "cache", codec=MessagePackCodec(compress_above=None)) as tier:
        for number in range(1_200):
            await load(tier, read(f"order:{number % 50}", key=number % 50), values[number % 8])
            if number % 10 == 0:
                longest = max(longest, log.stat().st_size)
    assert longest < 40_000_000


@contextmanager
def limited(limit: str) -> Iterator[None]:
    """Let this process write no byte into files, or open no more of them."""
    kind = getattr(resource, limit)
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (0 if limit == "RLIMIT_FSIZE" else 3, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@pytest.mark.usefixtures("caplog")  # which hears what would go to stderr, a file
@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
@pytest.mark.parametrize("is_new", [False, True], ids=["the file is there", "there is none"])
async def test_a_process_that_starts_on_a_full_disk_runs_without_the_file_until_it_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, *, is_new: bool
):
    """What it writes meanwhile is made up for before anybody is given what was loaded before."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # an event loop that gets no socket is not closed
    path, state = tmp_path / "cache", ["before"]

    async def get(order_id: str) -> str:
        return state[0]

    async def put(order_id: str) -> None:
        state[0] = "written"

    async def asked() -> str:
        async with FileTier(path) as tier:
            tool = AgentCache("order:{order_id}", name="starts:get", remote_cache=tier)(get)
            return await tool("7")

    if not is_new:
        assert await asked() == "before"
    with limited(limit):
        tier = FileTier(path, timeout=0.01)
        here = AgentCache("order:{order_id}", name="starts:get", remote_cache=tier)(get)
        write = AgentCacheInvalidator("order:{order_id}", name="starts:put", remote_cache=tier)(put)
        assert await here("7") == "before"
        await write("7")
        assert await here("7") == "written"
        assert tier.stats() | {"pending": 1, "trusted": False} == tier.stats()
    while not await tier.caught_up():
        pass
    assert tier.stats() | {"pending": 0, "trusted": True} == tier.stats()
    assert await here("7") == "written"
    await tier.aclose()
    assert await asked() == "written"
    gc.collect()


async def test_a_file_that_another_process_has_locked_is_used_when_it_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "cache"
    async with FileTier(path) as tier:
        await load(tier, read("order:7"), "stored")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    tier = FileTier(path, timeout=0.01)
    refuses = RemotePolicy(on_unreachable="refuse")

    @AgentCacheInvalidator("user", remote_cache=tier, remote=refuses)
    async def put() -> None:
        raise AssertionError("it was to be refused")

    with caplog.at_level(logging.WARNING, "agent_cache"):
        assert [await value_of(tier, read("order:7")) for _ in range(2)] == ["nothing"] * 2
    assert len([one for one in caplog.records if "cannot be opened" in one.getMessage()]) == 1
    assert "lock" in caplog.text
    for refused in (tier.clear, put):
        with pytest.raises(RemoteTierError):
            await refused()
    other.close()
    while not await tier.caught_up():
        pass
    assert await value_of(tier, read("order:7")) == "stored"
    await tier.aclose()
