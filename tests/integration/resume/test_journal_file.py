"""The file of a journal: its name, its lock, what of it is read, and what happens when it cannot be written."""

import asyncio
import json
from pathlib import Path

import pytest

from agent_cache import AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError, InDoubtError, JournalError
from agent_cache.recording import Cassette, intercept, record
from agent_cache.resume import Journal, NotDone, idempotency_key
from agent_cache.resume.journal import branch_journal, journal_path, read_journal

MADE = []
KEYS = []


@AgentCacheInvalidator("order:{order}", name="file:pay")
async def pay(order: str) -> str:
    MADE.append(order)
    return f"paid {order}"


@intercept(name="file:look")
async def look(order: str) -> str:
    return f"seen {order}"


@pytest.fixture(autouse=True)
def _made():
    MADE.clear()


async def make(directory, *orders, fails=False, session_id="run", **options):
    async with AgentCacheSession(session_id, journal=Journal(directory, **options)) as session:
        found = [await pay(order) for order in orders]
        if fails:
            raise RuntimeError("stop")
        return found, session


def begun(directory, *orders, **options):
    """A journal that can be resumed."""
    with pytest.raises(RuntimeError):
        asyncio.run(make(directory, *orders, fails=True, **options))
    return Journal(directory).path(options.get("session_id", "run"))


# Names


@pytest.mark.parametrize(
    ("session_id", "name"),
    [
        ("order-7_a", "order-7_a.jsonl"),
        ("..", "%2e%2e.jsonl"),
        ("a/b", "a%2fb.jsonl"),
        ("A", "%41.jsonl"),
        ("a.b", "a%2eb.jsonl"),
        ("%41", "%2541.jsonl"),
        ("é", "%c3%a9.jsonl"),
        ("\udc80\0", "%ed%b2%80%00.jsonl"),
    ],
)
def test_an_id_is_escaped(session_id, name, tmp_path):
    assert journal_path(tmp_path, session_id) == tmp_path / name


def test_long_ids_have_names_of_their_own(tmp_path):
    names = {journal_path(tmp_path, "x" * 1000 + end).name for end in ("a", "b", "~")}
    assert len(names) == 3
    assert max(map(len, names)) < 200
    for name in names:
        (tmp_path / name).touch()


# Reading


def test_a_journal_can_be_read_while_it_is_written(tmp_path):
    async def main():
        async with AgentCacheSession("run", journal=Journal(tmp_path)):
            await pay("1")
            stored = read_journal(tmp_path / "run.jsonl")
            cassette = Cassette.load(tmp_path / "run.jsonl")
            return stored, cassette

    stored, cassette = asyncio.run(main())
    assert (stored.session_id, stored.is_sealed, stored.in_doubt, stored.checkpoints) == ("run", False, [], [])
    assert [call.arguments for call in stored.calls] == [{"order": "1"}]
    assert cassette.is_partial
    assert [call.name for call in cassette.steps] == ["file:pay"]
    assert cassette.steps[0].is_write
    assert cassette.steps[0].tags == ["order:1"]
    assert read_journal(tmp_path / "run.jsonl").is_sealed


def broken(name):
    def change(lines):
        if name == "newer":
            return [lines[0].replace('"agent_cache_journal":1', '"agent_cache_journal":9'), *lines[1:]]
        if name == "no journal":
            return ['{"agent_cache_cassette":2}\n', *lines[1:]]
        if name == "text":
            return ["hello\n"]
        if name == "another's":
            return [lines[0].replace('"session_id":"run"', '"session_id":"other"'), *lines[1:]]
        if name == "middle":
            return [lines[0], lines[1][:-9] + "\n", *lines[2:]]
        if name == "unknown line":
            return [*lines, '{"what": 1}\n']
        if name == "place":
            return [line.replace('"place":"', '"place":"x') for line in lines]
        return [*lines, '{"trailer":{"calls":1}}\n', lines[-1]]

    return change


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("newer", "has format version 9"),
        ("no journal", "is no journal"),
        ("text", "is no journal"),
        ("another's", "is the journal of the session 'other', and not of 'run'"),
        ("middle", "this line is broken"),
        ("unknown line", "this line is broken"),
        ("place", "this line is broken"),
        ("after the trailer", "a line follows the trailer"),
    ],
)
def test_a_file_that_cannot_be_resumed_is_refused_and_left_alone(tmp_path, name, reason):
    path = begun(tmp_path, "1")
    path.write_text("".join(broken(name)(path.read_text().splitlines(keepends=True))))
    before = path.read_bytes()
    MADE.clear()
    with pytest.raises(JournalError, match=reason) as raised:
        asyncio.run(make(tmp_path, "1"))
    assert raised.value.path == str(path)
    assert path.read_bytes() == before
    assert MADE == []
    if name != "another's":
        with pytest.raises(JournalError, match=reason):
            read_journal(path)
    with pytest.raises(JournalError):  # the lock was released
        asyncio.run(make(tmp_path, "1"))


def test_there_may_be_no_journal(tmp_path):
    with pytest.raises(CassetteNotFound):
        read_journal(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(JournalError, match="is empty"):
        read_journal(tmp_path / "empty.jsonl")
    with pytest.raises(JournalError, match="cannot be read"):
        read_journal(tmp_path)


# Directories


def test_a_journal_is_for_its_owner(tmp_path):
    path = begun(tmp_path, "1")
    assert path.stat().st_mode & 0o077 == 0


# One at a time


def test_a_session_inside_of_one_that_has_a_journal_has_none_of_its_own(tmp_path):
    async def main():
        async with AgentCacheSession("outer", journal=Journal(tmp_path)):
            with pytest.raises(ConfigurationError, match="'inner' is inside of one that has a journal"):
                await make(tmp_path, "1", session_id="inner")
            async with AgentCacheSession("plain"):
                await pay("2")

    asyncio.run(main())
    assert MADE == ["2"]
    assert Cassette.load(tmp_path / "outer.jsonl").num_steps == 1


def test_a_recording_does_not_replace_a_journal(tmp_path):
    path = begun(tmp_path, "1")
    before = path.read_bytes()
    with pytest.raises(CassetteError, match="it is a journal"), record(path):
        pass
    with pytest.raises(CassetteError, match="it is a journal"):
        Cassette.load(path).save(path)
    assert path.read_bytes() == before


# A full disk


# Branches


@pytest.fixture
def run_with_checkpoints(tmp_path):
    async def main():
        async with AgentCacheSession("run", journal=Journal(tmp_path)) as session:
            await pay("1")
            first = await session.checkpoint("first", {"paid": 1})
            await pay("2")
            running = asyncio.create_task(slow_pay("3"))
            while not MADE[-1].startswith("slow"):
                await asyncio.sleep(0)
            second = await session.checkpoint("second", {"paid": 2})
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await pay("4")
            return first, second

    first, second = asyncio.run(main())
    MADE.clear()
    return tmp_path / "run.jsonl", first, second


@AgentCacheInvalidator("order:{order}", name="file:slow_pay")
async def slow_pay(order: str) -> None:
    MADE.append(f"slow {order}")
    KEYS.append(idempotency_key())
    await asyncio.sleep(3600)


def test_a_branch_has_the_calls_that_had_ended_at_the_checkpoint(run_with_checkpoints, tmp_path):
    source, first, _ = run_with_checkpoints
    path = branch_journal(source, "branch", until=first, directory=tmp_path / "branches")
    stored, original = read_journal(path), read_journal(source)
    assert (stored.session_id, stored.is_sealed) == ("branch", False)
    assert stored.run != original.run
    assert [call.arguments["order"] for call in stored.calls] == ["1"]
    assert stored.in_doubt == []
    assert [one.label for one in stored.checkpoints] == ["first"]
    assert asyncio.run(make(tmp_path / "branches", "1", "2", session_id="branch"))[0] == ["paid 1", "paid 2"]
    assert MADE == ["2"]
    keys = {one.key for stored in (read_journal(path), original) for one in stored.intents.values()}
    assert len(keys) == 4 + 1  # the first payment is one write, its second one is another in each


def test_a_write_that_was_running_at_the_checkpoint_is_in_doubt_in_the_branch(run_with_checkpoints, tmp_path):
    source, _, second = run_with_checkpoints
    path = branch_journal(source, "branch", until=second, directory=tmp_path)
    (doubt,) = read_journal(path).in_doubt
    assert (doubt.name, doubt.arguments) == ("file:slow_pay", {"order": "3"})
    assert doubt.key == next(one for one in read_journal(source).intents.values() if one.name == doubt.name).key
    with pytest.raises(InDoubtError):
        asyncio.run(make(tmp_path, "1", "2", session_id="branch"))

    keys = []

    def look(_arguments, key):
        keys.append(key)
        return NotDone

    async def resumed():
        async with AgentCacheSession("branch", journal=Journal(tmp_path, on_doubt={slow_pay: look})):
            await pay("1")
            await pay("2")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await slow_pay("3")

    asyncio.run(resumed())
    assert keys == KEYS[-1:] == [doubt.key]


def test_a_branch_replaces_nothing(run_with_checkpoints, tmp_path):
    source, first, second = run_with_checkpoints
    path = branch_journal(source, "branch", until=first, directory=tmp_path)
    before = path.read_bytes()
    with pytest.raises(JournalError, match="there is a journal of the session 'branch' already"):
        branch_journal(source, "branch", until=second, directory=tmp_path)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(JournalError, match="has no checkpoint"):
        branch_journal(begun(tmp_path / "other", "1"), "branch", until=first, directory=tmp_path)
    assert sorted(one.name for one in Path(tmp_path).iterdir()) == ["other", "run.jsonl"]


def test_the_header_names_no_secret_of_the_user(tmp_path):
    path = begun(tmp_path, "1", redact=["customer_id"])
    header = json.loads(path.read_text().splitlines()[0])
    assert header["redact"] == {"names": ["customer_id"]}
    assert len(bytes.fromhex(header["run"])) == len(bytes.fromhex(header["secret"])) == 16
