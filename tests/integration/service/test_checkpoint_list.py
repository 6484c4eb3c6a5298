"""The list of checkpoints follows the files of the directory, whatever has happened to them."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("openapi_spec_validator")

from tests.harness.checkpoint_service import Client
from tests.harness.stored_journals import WrittenJournal


@pytest.fixture
def listed(served):
    with Client(served, "s") as client:
        yield lambda: [one["id"] for one in client.get("/checkpoints").raise_for_status().json()["checkpoints"]]


def test_a_line_and_a_header_are_read_when_they_are_whole(listed, journal):
    run = journal("s-1")
    header = run.path.read_bytes()
    run.path.write_bytes(header[:30])
    assert listed() == []
    run.path.write_bytes(header)
    first = run.checkpoint()
    whole = run.path.read_bytes()
    second = run.checkpoint()
    line = run.path.read_bytes()[len(whole) :]
    run.path.write_bytes(whole + line[:40])
    assert listed() == [first]
    run.append(line[40:])
    assert listed() == [second, first]
    run.append(b'{"checkpoint":{"id"')
    assert listed() == [second, first]
    os.truncate(run.path, len(whole + line))  # as a resume does
    third = run.checkpoint()
    assert listed() == [third, second, first]


def test_a_journal_that_is_replaced_is_read_anew_and_one_that_is_gone_is_removed(listed, journal):
    run = journal("s-1")
    first = run.checkpoint()
    aside = run.path.with_name("s-1.12345678.jsonl")
    run.path.rename(aside)
    second = journal("s-1").checkpoint()
    assert listed() == [second, first]
    aside.unlink()
    assert listed() == [second]


def test_what_is_no_journal_is_left_out_and_said(listed, store, journal, caplog):
    good = journal("s-0").checkpoint()
    (store / "note.jsonl").write_bytes(b"hello\n")
    (store / "empty.jsonl").touch()
    (store / "cassette.jsonl").write_bytes(b'{"agent_cache_cassette":2}\n{"checkpoint":{}}\n')
    newer = b'{"agent_cache_journal":9,"session_id":"s-9","recorded_at":"","run":"r","secret":""}\n{"checkpoint":{}}\n'
    (store / "newer.jsonl").write_bytes(newer)
    (store / "folder.jsonl").mkdir()
    (store / "link.jsonl").symlink_to(journal("s-1").path)
    os.mkfifo(store / "pipe.jsonl")
    broken = WrittenJournal(store, "s-2")
    broken.checkpoint(sequence="1")
    assert listed() == [good]
    for name in ("note", "empty", "cassette", "newer", "folder", "link", "pipe", "s-2"):
        assert f"{name}.jsonl cannot be read, so its checkpoints are not listed" in caplog.text
