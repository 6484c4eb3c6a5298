"""The list of checkpoints follows the files of the directory, whatever has happened to them."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette")

from agent_cache.resume.journal import read_journal
from agent_cache.service.checkpoint_index import CheckpointIndex
from tests.harness.stored_journals import WrittenJournal


def listed(index, **filters):
    return [row.entry.id for row in index.page(limit=1000, **filters)]


def test_a_journal_that_grows_is_read_from_where_it_was_read_to(store, journal):
    run, index = journal(), CheckpointIndex(store)
    first = run.checkpoint()
    assert listed(index) == [first]
    content = run.path.read_bytes()
    with run.path.open("r+b") as file:  # what is not read again may be anything
        file.seek(content.index(b'{"checkpoint"'))
        file.write(b"?" * 20)
    second = run.checkpoint()
    assert listed(index) == [second, first]
    assert listed(CheckpointIndex(store)) == [second]


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
