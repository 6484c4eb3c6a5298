"""The page that the processes of a file share, and the trust in copies that depend on its slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_cache.remote.file.shared_page import PageLease, SharedPage, Use, reader_of

CELL = 7
OTHER = 8


@pytest.fixture
def page(tmp_path: Path) -> SharedPage:
    return SharedPage.create(tmp_path / "page", incarnation=5)


def lease_on(page: SharedPage, *cells: int) -> PageLease:
    read = reader_of(cells)
    return PageLease(page, Use(), read, read(page.words))


def test_a_copy_is_trusted_until_one_of_its_slots_changes(page: SharedPage):
    lease = lease_on(page, CELL, OTHER)
    assert lease.is_valid()
    page.change({CELL + 100: True}, page.latest + 1)
    assert lease.is_valid()
    assert lease.stamp == page.sequence
    page.change({OTHER: True}, page.latest + 1)
    assert not lease.is_valid()
    page.change({OTHER: False}, page.latest + 1)
    assert not lease.is_valid()


def test_nothing_is_trusted_while_an_invalidation_is_missing(page: SharedPage):
    lease = lease_on(page, CELL)
    assert lease.is_valid()
    page.suspend(3, 1)
    assert not lease.is_valid()
    assert not page.resume()
    page.suspend(3, 0)
    assert page.resume()
    assert lease.is_valid()


def test_nothing_is_trusted_of_a_page_that_was_retired(page: SharedPage):
    lease = lease_on(page, CELL)
    assert lease.is_valid()
    page.retire()
    assert not lease.is_valid()


@pytest.mark.parametrize("look", [PageLease.renew, lambda lease: lease.is_current])
def test_an_invalidation_that_is_written_while_a_hit_looks_is_not_overlooked(page: SharedPage, look: Any):
    """It was missing when the slots were compared, and is there when the words of the processes are read."""
    lease = lease_on(page, CELL)
    page.suspend(3, 1)
    read = lease.read

    def read_and_write(words: Any) -> tuple[int, ...]:
        slots = read(words)
        page.change({CELL: False}, page.latest + 1)
        page.suspend(3, 0)
        page.resume()
        return slots

    lease.read = read_and_write
    assert not look(lease)


def test_a_page_of_another_database_or_size_is_not_opened(tmp_path: Path, page: SharedPage):
    assert SharedPage.open(tmp_path / "page", 5) is not None
    assert SharedPage.open(tmp_path / "page", 6) is None
    (tmp_path / "short").write_bytes(bytes(64))
    assert SharedPage.open(tmp_path / "short", None) is None
    assert SharedPage.open(tmp_path / "none", None) is None
