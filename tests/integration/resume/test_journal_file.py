"""The file of a journal: its name, what of it is read, its branches, and one that is encrypted."""

import asyncio
import json

import pytest

from agent_cache import AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import CassetteError, CassetteNotFound, ConfigurationError, InDoubtError, JournalError
from agent_cache.recording import Cassette, fork, intercept, record, replay
from agent_cache.recording.encryption import KEY_VARIABLE
from agent_cache.resume import Journal, idempotency_key
from agent_cache.resume.journal import branch_journal, journal_path, read_journal

MADE = []
KEYS = []


@AgentCacheInvalidator("order:{order}", name="file:pay")
async def pay(order: str) -> str:
    MADE.append(order)
    return f"paid {order}"


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
        ("../b", "%2e%2e%2fb.jsonl"),
        ("A%é", "%41%25%c3%a9.jsonl"),
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


BROKEN = [
    (lambda text: text.replace('"agent_cache_journal":1', '"agent_cache_journal":9'), "has format version 9"),
    (lambda text: text.replace('"agent_cache_journal":1', '"agent_cache_cassette":2'), "is no journal"),
    (lambda text: "hello\n", "is no journal"),
    (
        lambda text: text.replace('"session_id":"run"', '"session_id":"other"'),
        "of the session 'other', and not of 'run'",
    ),
    (lambda text: text.replace('"order":"1"', '"order"', 1), "this line is broken"),
    (lambda text: text + '{"what": 1}\n', "this line is broken"),
    (lambda text: text.replace('"place":"', '"place":"x'), "this line is broken"),
    (lambda text: text + '{"trailer":{"calls":1}}\n{"open":{}}\n', "a line follows the trailer"),
]


@pytest.mark.parametrize(("change", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_a_file_that_cannot_be_resumed_is_refused_and_left_alone(tmp_path, change, reason):
    path = begun(tmp_path, "1")
    path.write_text(change(path.read_text()))
    before = path.read_bytes()
    MADE.clear()
    with pytest.raises(JournalError, match=reason) as raised:
        asyncio.run(make(tmp_path, "1"))
    assert raised.value.path == str(path)
    assert path.read_bytes() == before
    assert MADE == []
    if "other" not in reason:
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


def test_a_branch_has_the_calls_that_had_ended_at_the_checkpoint_and_replaces_nothing(run_with_checkpoints, tmp_path):
    source, first, second = run_with_checkpoints
    path = branch_journal(source, "branch", until=first, directory=tmp_path / "branches")
    stored, original = read_journal(path), read_journal(source)
    assert (stored.session_id, stored.is_sealed) == ("branch", False)
    assert stored.run != original.run
    assert [call.arguments["order"] for call in stored.calls] == ["1"]
    assert stored.in_doubt == []
    assert [one.label for one in stored.checkpoints] == ["first"]
    with pytest.raises(JournalError, match="there is a journal of the session 'branch' already"):
        branch_journal(source, "branch", until=second, directory=tmp_path / "branches")
    with pytest.raises(JournalError, match="has no checkpoint"):
        branch_journal(begun(tmp_path / "other", "1"), "another", until=first, directory=tmp_path)
    MADE.clear()
    assert asyncio.run(make(tmp_path / "branches", "1", "2", session_id="branch"))[0] == ["paid 1", "paid 2"]
    assert MADE == ["2"]
    keys = {one.key for stored in (read_journal(path), original) for one in stored.intents.values()}
    assert len(keys) == 4 + 1  # the first payment is one write, its second one is another in each


def test_a_write_that_was_running_at_the_checkpoint_is_in_doubt_in_the_branch(run_with_checkpoints, tmp_path):
    source, _, second = run_with_checkpoints
    (doubt,) = read_journal(branch_journal(source, "branch", until=second, directory=tmp_path)).in_doubt
    assert (doubt.name, doubt.arguments, doubt.key) == ("file:slow_pay", {"order": "3"}, KEYS[-1])
    with pytest.raises(InDoubtError) as caught:
        asyncio.run(make(tmp_path, "1", "2", session_id="branch"))
    assert caught.value.key == doubt.key


def test_a_journal_is_for_its_owner_and_its_header_names_no_secret_of_the_user(tmp_path):
    path = begun(tmp_path, "1", redact=["customer_id"])
    assert path.stat().st_mode & 0o077 == 0
    header = json.loads(path.read_text().splitlines()[0])
    assert header["redact"] == {"names": ["customer_id"]}
    assert len(bytes.fromhex(header["run"])) == len(bytes.fromhex(header["secret"])) == 16


# Encrypted

KEY = bytes(range(32))
SECRET = "correct horse battery"


@intercept(name="file:token")
async def token(password: str) -> dict:
    MADE.append("token")
    return {"password": SECRET, "user": "ann"}


@AgentCacheInvalidator("order:{order}", name="file:charge")
async def charge(order: str, password: str) -> str:
    MADE.append("charge")
    if MADE.count("charge") == 1:
        raise KeyboardInterrupt
    return "charged"


def run(directory, **options):
    async def main():
        async with AgentCacheSession("job", journal=Journal(directory, **{"key": KEY, **options})) as session:
            await session.checkpoint("begun", {"password": SECRET, "step": 1})
            found = await token(SECRET)
            return await charge("W1", found["password"]), found

    return asyncio.run(main())


@pytest.fixture
def encrypted(tmp_path, monkeypatch):
    """The encrypted journal of a run that was killed in a write."""
    pytest.importorskip("cryptography")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    return tmp_path / "job.jsonl"


def test_with_a_key_nothing_of_the_run_is_in_the_file_and_the_run_gets_back_what_it_saw(encrypted):
    text = encrypted.read_text()
    assert all(line.startswith(('{"agent_cache_journal":1,"enc', '{"encrypted":"')) for line in text.splitlines())
    for word in (SECRET, "ann", "file:charge", "job", "begun"):
        assert word not in text
    with pytest.raises(InDoubtError) as caught:
        run(encrypted.parent)
    assert SECRET not in str(caught.value)
    assert caught.value.arguments == {"order": "W1", "password": "[redacted]"}
    [made] = read_journal(encrypted, key=KEY).checkpoints
    branch = branch_journal(encrypted, "other", until=made, directory=encrypted.parent, events=True, key=KEY)
    assert SECRET not in branch.read_text()
    assert [call.name for call in read_journal(branch, key=KEY).calls] == ["file:token"]
    assert run(encrypted.parent, on_doubt="rerun") == ("charged", {"password": SECRET, "user": "ann"})
    assert MADE == ["token", "charge", "charge"]
    assert read_journal(encrypted, key=KEY).is_sealed


def test_lines_may_be_torn_at_the_end_and_not_moved_or_changed(encrypted):
    lines = encrypted.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        encrypted.write_bytes(b"".join(lines[:count]) + lines[count][:20])
        MADE[:] = ["charge"]
        assert run(encrypted.parent, on_doubt="rerun")[0] == "charged"
        assert MADE.count("charge") == 2
    for changed in ([lines[0], lines[2], lines[1], *lines[3:]], [*lines[:-1], lines[-1].replace(b'"', b'"AAAA', 3)]):
        encrypted.write_bytes(b"".join(changed))
        with pytest.raises(JournalError, match="cannot be decrypted"):
            read_journal(encrypted, key=KEY)


def test_readers_find_the_key_in_the_environment_and_show_no_secret(encrypted, monkeypatch):
    for read in (
        read_journal, Cassette.load, lambda path: replay(path).__enter__(),
        lambda path: fork(path, at=1, to=path.with_name("branch")),
    ):  # fmt: skip
        with pytest.raises(CassetteError, match=f"is an encrypted journal.*{KEY_VARIABLE}"):
            read(encrypted)
    monkeypatch.setenv(KEY_VARIABLE, KEY.hex())
    stored, cassette = read_journal(encrypted), Cassette.load(encrypted)
    for shown in (str(stored.calls), str(stored.in_doubt), str(stored.checkpoints), str(list(cassette.steps))):
        assert SECRET not in shown
        assert "[redacted]" in shown
    with replay(encrypted):
        assert asyncio.run(token(SECRET)) == {"password": "[redacted]", "user": "ann"}
    monkeypatch.setenv(KEY_VARIABLE, "no key")
    with pytest.raises(CassetteError, match="in hexadecimal digits"):
        Cassette.load(encrypted)


def test_a_journal_is_resumed_with_the_key_that_it_was_begun_with(encrypted, tmp_path):
    before = encrypted.read_bytes()
    for key, reason in ((None, "begun with a key="), (bytes(32), "another key")):
        with pytest.raises(JournalError, match=reason):
            run(encrypted.parent, key=key)
    assert encrypted.read_bytes() == before
    MADE.clear()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "plain", key=None)
    with pytest.raises(JournalError, match="without a key"):
        run(tmp_path / "plain")
