"""Where a file tier can be: what is refused is refused when the tier is made, and left as it is."""

from __future__ import annotations

import hashlib
import os
import pickle
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from contextlib import closing
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


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_files, "filesystem_of", lambda _: "nfs4")
    with pytest.raises(ConfigurationError, match=r"network file system \(nfs4\).*RedisTier"):
        FileTier(tmp_path / "cache")
    assert not list(tmp_path.iterdir())


# What is there already


def _database(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    return make


def _newer_version(path: Path) -> None:
    FileTier(path)
    _database("PRAGMA user_version = 1000")(path)


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


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("missing", "No such file or directory"),
        ("file", "is no file"),
        ("sticky", r"everybody may write into.*mkdir -m 700"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, folder: str, says: str):
    (tmp_path / "file").touch()
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
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
        ("", "must be the path of a file"),
        (None, "must be the path of a file"),
        (":memory:", "must be the path of a file"),
        ("~nobody-of-this-name/cache", "home directory"),
        ("no\0file", "null"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_is_no_path_of_a_file_is_refused(path: object, says: str):
    with pytest.raises(ConfigurationError, match=f"FileTier: .*{says}"):
        FileTier(path)  # type: ignore[arg-type]


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
