"""A backup in front of a remote tier: other processes do not write to it, so news must reach it, too."""

from __future__ import annotations

import pytest

from agent_cache.testing import MemoryServer, MemoryTier
from tests.contract.workbench import commit, write, writing
from tests.harness import library
from tests.pipeline.fleet import Process, Truth, WatchedTier

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def backup() -> WatchedTier:
    return WatchedTier(MemoryServer())


@pytest.fixture
def remote(server: MemoryServer) -> WatchedTier:
    return WatchedTier(server)


@pytest.fixture
def process(truth: Truth, remote: WatchedTier, backup: WatchedTier) -> Process:
    return Process(truth, remote, backup)


async def test_what_is_written_elsewhere_is_not_found_in_the_backup(
    truth: Truth, process: Process, backup: WatchedTier, elsewhere: MemoryTier
):
    await process.get_order("7")
    await process.get_order("8")
    async with writing(elsewhere, "order:7"):
        truth.save("7")
    assert await process.get_order("7") == "new"
    truth.orders["8"] = "unseen"
    process.get_order.clear()
    assert await process.get_order("8") == "old"


async def test_a_single_entry_written_elsewhere_is_not_found_in_the_backup(
    truth: Truth, process: Process, backup: WatchedTier, elsewhere: MemoryTier
):
    await process.get_order("7")
    intent = write(entries=(backup.requests[0],))
    await elsewhere.begin(intent)
    truth.save("7")
    await commit(elsewhere, intent)
    assert await process.get_order("7") == "new"


async def test_a_backup_that_cannot_be_told_is_not_believed(
    truth: Truth, process: Process, backup: WatchedTier, elsewhere: MemoryTier
):
    await process.get_order("7")
    async with writing(elsewhere, "order:7"):
        truth.save("7")
    backup.fail("commit", OSError("gone"))
    assert await process.get_order("7") == "new"
    process.get_order.clear()
    assert await process.get_order("7") == "new"


async def test_after_a_loss_the_backup_is_not_believed(
    truth: Truth, process: Process, remote: WatchedTier, elsewhere: MemoryTier
):
    await process.get_order("7")
    remote.memory.cut()
    async with writing(elsewhere, "order:7"):
        truth.save("7")
    remote.memory.reconnect()
    assert await process.get_order("7") == "new"


async def test_what_an_earlier_process_left_in_the_backup_is_not_believed(
    truth: Truth, remote: WatchedTier, backup: WatchedTier, elsewhere: MemoryTier
):
    await Process(truth, backup).get_order("7")
    async with writing(elsewhere, "order:7"):  # nobody listens yet
        truth.save("7")
    assert await Process(truth, remote, backup).get_order("7") == "new"


async def test_what_was_loaded_while_a_writer_was_at_work_elsewhere_is_not_given_to_the_backup(
    truth: Truth, process: Process, elsewhere: MemoryTier, clock: library.Clock
):
    await process.get_order("8")  # the tiers are listened to
    await elsewhere.begin(write("order:7"))
    assert await process.get_order("7") == "old"
    truth.orders["7"] = "new"  # and then the writer dies, so nobody says more
    clock.advance(elsewhere.lease + 1)
    assert await process.get_order("7") == "new"
