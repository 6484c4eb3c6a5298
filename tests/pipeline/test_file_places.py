"""Where a file tier can be: what is refused is refused when the tier is made, and left as it is."""

from __future__ import annotations

import hashlib
import os
import pickle
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest

from agent_cache.errors import ConfigurationError
from agent_cache.remote import file as open_files
from agent_cache.remote.file import FileTier, filesystem_of
from tests.contract.workbench import load, read, value_of
from tests.harness.processes import run_python

MOUNTS = r"""
/dev/sda2 / ext4 rw,relatime 0 0
files:/home /home nfs4 rw,vers=4.2,addr=10.0.0.1 0 0
/dev/sdb1 /home/me/local xfs rw,relatime 0 0
me@host: /mnt/by\040ssh fuse.sshfs rw,nosuid 0 0
systemd-1 /auto autofs rw,fd=51 0 0
files:/auto /auto nfs rw 0 0
""".lstrip()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/homestead", "ext4"),
        ("/home/me", "nfs4"),
        ("/home/me/local/cache", "xfs"),
        ("/mnt/by ssh/a", "fuse.sshfs"),
        ("/auto/mine", "nfs"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_innermost_mount(
    monkeypatch: pytest.MonkeyPatch, folder: str, kind: str
):
    monkeypatch.setattr(Path, "read_text", lambda *_: MOUNTS)
    assert filesystem_of(Path(folder)) == kind


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(open_files, "filesystem_of", lambda _: kind)
    with pytest.raises(ConfigurationError, match=rf"network file system \({kind}\).*RedisTier"):
        FileTier(tmp_path / "cache")
    assert not list(tmp_path.iterdir())


# What is there already


def _directory(path: Path) -> None:
    path.mkdir()


def _text(path: Path) -> None:
    path.write_text("Dear diary, a text that is longer than the header of a database. " * 20)


def _socket(path: Path) -> None:
    os.mkfifo(path)


def _another_database(mode: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE diary (text)")
        connection.execute("INSERT INTO diary VALUES ('dear')")
        connection.commit()
        connection.close()

    return make


def _marked_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 42")
    connection.close()


def _newer_version(path: Path) -> None:
    FileTier(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1000")
    connection.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_directory, "is no file"),
        (_text, "is not a database of SQLite.*name another file"),
        (_socket, "is no file"),
        (_another_database("delete"), "is a database of another program.*name another file"),
        (_another_database("wal"), "is a database of another program.*name another file"),
        (_marked_database, "is a database of another program"),
        (_newer_version, "is a database of.* another version.*name another file"),
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


def test_a_database_that_another_program_is_writing_is_left_as_it_is(tmp_path: Path):
    path = tmp_path / "cache"
    _another_database("wal")(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("INSERT INTO diary VALUES ('in the log')")
    before = _digest(path), _digest(tmp_path / "cache-wal")
    with pytest.raises(ConfigurationError, match="another program"):
        FileTier(path)
    assert (_digest(path), _digest(tmp_path / "cache-wal")) == before
    assert len(connection.execute("SELECT text FROM diary").fetchall()) == 2
    connection.close()


async def test_an_empty_file_is_taken(tmp_path: Path):
    (tmp_path / "cache").touch(0o600)
    async with FileTier(tmp_path / "cache") as tier:
        await load(tier, read("order:7"), "new")
        assert await value_of(tier, read("order:7")) == "new"


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("missing", "No such file or directory"),
        ("file", "is no file"),
        ("open", r"everybody may write into.*mkdir -m 700"),
        ("sticky", r"everybody may write into.*mkdir -m 700"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, folder: str, says: str):
    (tmp_path / "file").touch()
    for name, mode in (("open", 0o777), ("sticky", 0o1777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    with pytest.raises(ConfigurationError, match=says):
        FileTier(tmp_path / folder / "cache")


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


@pytest.mark.parametrize(
    ("path", "says"),
    [
        *[(path, "must be the path of a file") for path in ("", None, 7, b"cache")],
        (":memory:", "must be the path of a file"),
        ("~nobody-of-this-name/cache", "home directory"),
        ("no\0file", "null"),
        ("lone \ud800", "surrogates"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_is_no_path_of_a_file_is_refused(path: object, says: str):
    with pytest.raises(ConfigurationError, match=f"FileTier: .*{says}"):
        FileTier(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("take", [copy, pickle.dumps])
async def test_a_tier_is_not_copied_nor_sent_to_another_process(tmp_path: Path, take: Callable[[object], object]):
    async with FileTier(tmp_path / "cache") as tier:
        with pytest.raises(TypeError, match="make one in each process"):
            take(tier)


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
    assert files == dict.fromkeys(["cache", "cache-wal", "cache-shm", "cache.page", "cache.lock"], 0o600)


async def test_a_path_through_a_link_is_the_same_file(tmp_path: Path):
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with FileTier(tmp_path / "real" / "cache") as one, FileTier(tmp_path / "link" / "cache") as other:
        await load(one, read("order:7"), "new")
        assert await value_of(other, read("order:7")) == "new"
        assert one.path == other.path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
