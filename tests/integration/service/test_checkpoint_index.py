"""The list of checkpoints follows the files of the directory, whatever has happened to them or to its own copy."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette")

from agent_cache.resume.journal import read_journal
from agent_cache.service import checkpoint_index
from agent_cache.service.checkpoint_index import INDEX, CheckpointIndex
from tests.harness.stored_journals import WrittenJournal


@pytest.fixture
def saves_always(monkeypatch):
    """The copy is written after each file that was read."""
    monkeypatch.setattr(checkpoint_index, "_FILES_BETWEEN_COPIES", 1)


@pytest.fixture
def reads(monkeypatch):
    """How many bytes of each journal were read."""
    found = []
    real = CheckpointIndex._read

    def counting(self, database, name, before):
        start = self._bytes_read
        real(self, database, name, before)
        found.append((name, self._bytes_read - start))

    monkeypatch.setattr(CheckpointIndex, "_read", counting)
    return found


def listed(index, **filters):
    return [row.entry.id for row in index.page(limit=1000, **filters)]


def test_a_journal_that_grows_is_read_from_where_it_was_read_to(store, journal, reads):
    run, index = journal(), CheckpointIndex(store)
    first = run.checkpoint()
    run.read("shop:get_order", "x" * 10_000)
    assert listed(index) == [first]
    run.read("shop:get_order")
    second = run.checkpoint()
    assert listed(index) == [second, first]
    assert listed(index) == [second, first]
    assert len(reads) == 2
    assert reads[1][1] < 1000


def test_a_torn_line_is_listed_when_it_is_whole(store, journal):
    run, index = journal(), CheckpointIndex(store)
    first = run.checkpoint()
    whole = run.path.read_bytes()
    second = run.checkpoint()
    line = run.path.read_bytes()[len(whole) :]
    run.path.write_bytes(whole + line[:40])
    assert listed(index) == [first]
    run.append(line[40:])
    assert listed(index) == [second, first]
    run.path.write_bytes(whole + line + b'{"checkpoint":{"id"')
    assert listed(index) == [second, first]
    os.truncate(run.path, len(whole + line))  # as a resume does
    third = run.checkpoint()
    assert listed(index) == [third, second, first]


def test_a_header_that_is_being_written_is_read_when_it_is_whole(store, journal):
    run, index = journal(), CheckpointIndex(store)
    header = run.path.read_bytes()
    run.path.write_bytes(header[:30])
    assert listed(index) == []
    run.path.write_bytes(header)
    made = run.checkpoint()
    assert listed(index) == [made]


def test_a_journal_that_is_replaced_is_read_anew_and_one_that_is_gone_is_removed(store, journal):
    run, index = journal(), CheckpointIndex(store)
    run.checkpoint()
    listed(index)
    aside = run.path.with_name("ann-1.12345678.jsonl")
    run.path.rename(aside)
    again = journal()
    second = again.checkpoint()
    assert len(listed(index)) == 2
    aside.unlink()
    assert listed(index) == [second]
    content = again.path.read_bytes()
    third = journal_in_place(again.path, content)
    assert listed(index) == third
    shutil.rmtree(store)
    store.mkdir()
    assert listed(index) == []


def journal_in_place(path, content):
    """Another run written over the same file, which becomes longer."""
    path.write_bytes(content.replace(read_journal(path).run.encode(), b"0" * 32).replace(b'"id":"', b'"id":"0') + b"\n")
    return [one.id for one in read_journal(path).checkpoints]


def test_what_is_no_journal_is_left_out_and_said(store, journal, caplog):
    good = journal().checkpoint()
    (store / "note.jsonl").write_bytes(b"hello\n")
    (store / "empty.jsonl").touch()
    (store / "cassette.jsonl").write_bytes(b'{"agent_cache_cassette":2}\n{"checkpoint":{}}\n')
    (store / "newer.jsonl").write_bytes(b'{"agent_cache_journal":9,"session_id":"s","run":"r"}\n{"checkpoint":{}}\n')
    (store / "folder.jsonl").mkdir()
    (store / "link.jsonl").symlink_to(journal().path)
    os.mkfifo(store / "pipe.jsonl")
    broken = WrittenJournal(store, "broken")
    for fields in ({"sequence": "1"}, {"sequence": -1}, {"after": 2**70}, {"created_at": "yesterday"}, {"label": None},
                   {"created_at": "2026-01-01"}):  # fmt: skip
        broken.checkpoint(**fields)
    broken.append(b'{"checkpoint":{\xff}}\n')
    kept = broken.checkpoint()
    assert listed(CheckpointIndex(store)) == [kept, good]
    assert caplog.text.count("which is not listed") == 7
    assert "newer.jsonl is a journal of a newer version" in caplog.text


def test_times_are_compared_as_times(store, journal):
    run = journal()
    made = [
        run.checkpoint(created_at=text)
        for text in ("2026-01-01T12:00:00Z", "2026-01-01T12:00:00.5+00:00", "2026-01-01T14:00:01+02:00")
    ]
    assert listed(CheckpointIndex(store)) == made[::-1]


@pytest.mark.usefixtures("saves_always")
def test_a_new_process_reads_nothing_again(store, journal, reads):
    made = [journal(f"s{number}").checkpoint() for number in range(5)]
    assert listed(CheckpointIndex(store)) == made[::-1]
    del reads[:]
    assert listed(CheckpointIndex(store)) == made[::-1]
    assert reads == []


def older(path):
    with sqlite3.connect(path) as database:
        database.execute("UPDATE about SET version = 0")
    database.close()


def other_tables(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TRIGGER t AFTER DELETE ON journal BEGIN DELETE FROM checkpoint; END")
    database.close()


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x" * 5000),
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: path.write_bytes(path.read_bytes()[:4096] + os.urandom(path.stat().st_size - 4096)),
        older,
        other_tables,
    ],
)
def test_a_copy_that_cannot_be_used_is_made_anew(store, journal, reads, spoil):
    made = [journal(f"s{number}").checkpoint() for number in range(5)]
    assert listed(CheckpointIndex(store)) == made[::-1]
    spoil(store / INDEX)
    del reads[:]
    assert listed(CheckpointIndex(store)) == made[::-1]
    assert len(reads) == 5
    del reads[:]
    assert listed(CheckpointIndex(store)) == made[::-1]
    assert reads == []


@pytest.mark.usefixtures("saves_always")
def test_the_copy_of_another_directory_is_ignored(store, journal, tmp_path, reads):
    made = journal().checkpoint()
    listed(CheckpointIndex(store))
    other = tmp_path / "other"
    shutil.copytree(store, other)
    del reads[:]
    assert listed(CheckpointIndex(other)) == [made]
    assert len(reads) == 1


@pytest.mark.usefixtures("saves_always")
def test_without_a_copy_the_list_is_the_same_and_that_is_said_once(store, journal, caplog):
    made = journal().checkpoint()
    (store / INDEX).mkdir()  # nothing can take its place
    index = CheckpointIndex(store)
    assert listed(index) == [made]
    later = journal("ann-2").checkpoint()
    assert listed(index) == [later, made]
    assert caplog.text.count("cannot be kept") == 1
    assert [path.name for path in store.iterdir() if path.name.startswith(f"{INDEX}.")] == []


@pytest.mark.usefixtures("saves_always")
def test_threads_and_processes_list_while_journals_are_written(store):
    runs = [WrittenJournal(store, f"s{number}") for number in range(4)]
    indices = [CheckpointIndex(store), CheckpointIndex(store)]
    stop = threading.Event()

    def look(index):
        seen = set()
        while not stop.is_set():
            found = listed(index)
            assert len(found) == len(set(found))
            assert seen <= set(found)
            seen = set(found)

    with ThreadPoolExecutor(4) as pool:
        looking = [pool.submit(look, indices[number % 2]) for number in range(4)]
        made = [runs[number % 4].checkpoint() for number in range(100)]
        stop.set()
        for each in looking:
            each.result()
    assert [listed(index) for index in indices] == [made[::-1]] * 2


def test_the_session_and_the_run_of_a_journal_are_known(store, journal):
    run, index = journal("ann-1"), CheckpointIndex(store)
    assert index.journal_of("ann-1") == run.path.name
    assert index.journal_of("ann-1", run.run) == run.path.name
    assert index.journal_of("ann-1", "0" * 32) is None
    assert index.journal_of("ann-2") is None
