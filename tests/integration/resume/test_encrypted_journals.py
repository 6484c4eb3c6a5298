"""`Journal(key=)` encrypts the whole file: a run resumes with it, and readers need it, and show no secrets."""

import asyncio
from collections import Counter

import pytest

from agent_cache import AgentCacheInvalidator, AgentCacheSession
from agent_cache.errors import CassetteError, InDoubtError, JournalError
from agent_cache.recording import Cassette, fork, intercept, replay
from agent_cache.recording.encryption import KEY_VARIABLE
from agent_cache.resume import Journal
from agent_cache.resume.journal import branch_journal, read_journal

pytest.importorskip("cryptography")

KEY = bytes(range(32))
CALLS = Counter()
SECRET = "correct horse battery"


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def no_calls(monkeypatch):
    CALLS.clear()
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@intercept(name="encrypted:token")
async def token(password: str) -> dict:
    CALLS["token"] += 1
    return {"password": SECRET, "user": "ann"}


@AgentCacheInvalidator("order:{order}", name="encrypted:pay")
async def pay(order: str, password: str) -> str:
    CALLS["pay"] += 1
    if CALLS["pay"] == 1:
        raise Killed
    return "paid"


async def program():
    found = await token(SECRET)
    return await pay("W1", found["password"]), found


def run(directory, **options):
    async def main():
        async with AgentCacheSession("job", journal=Journal(directory, **{"key": KEY, **options})) as session:
            await session.checkpoint("begun", {"password": SECRET, "step": 1})
            return await program()

    return asyncio.run(main())


@pytest.fixture
def killed(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path)
    return tmp_path / "job.jsonl"


def test_nothing_of_the_run_is_in_the_file_but_that_it_is_a_journal(killed):
    text = killed.read_text()
    assert text.startswith('{"agent_cache_journal":1,"encrypted":"')
    assert all(line.startswith(('{"agent_cache_journal":1,"enc', '{"encrypted":"')) for line in text.splitlines())
    for word in (SECRET, "ann", "encrypted:pay", "job", "begun"):
        assert word not in text


def test_a_run_gets_back_what_it_saw(killed):
    assert run(killed.parent, on_doubt="rerun") == ("paid", {"password": SECRET, "user": "ann"})
    assert CALLS == {"token": 1, "pay": 2}
    assert read_journal(killed, key=KEY).is_sealed


def test_errors_show_arguments_without_secrets(killed):
    with pytest.raises(InDoubtError) as caught:
        run(killed.parent)
    assert SECRET not in str(caught.value)
    assert caught.value.arguments == {"order": "W1", "password": "[redacted]"}


@pytest.mark.parametrize("share", [0, 0.3, 0.99])
def test_each_line_may_be_torn(killed, share):
    lines = killed.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        killed.write_bytes(b"".join(lines[:count]) + lines[count][: int(len(lines[count]) * share)])
        CALLS.clear()
        CALLS["pay"] = 1
        assert run(killed.parent, on_doubt="rerun")[0] == "paid"
        assert CALLS["pay"] == 2
        killed.unlink()


def test_a_line_that_was_moved_or_changed_is_refused(killed):
    lines = killed.read_bytes().splitlines(keepends=True)
    for changed in ([lines[0], lines[2], lines[1], *lines[3:]], [*lines[:-1], lines[-1].replace(b'"', b'"AAAA', 3)]):
        killed.write_bytes(b"".join(changed))
        with pytest.raises(JournalError, match="cannot be decrypted"):
            read_journal(killed, key=KEY)


READERS = [
    read_journal,
    Cassette.load,
    lambda path: replay(path).__enter__(),
    lambda path: fork(path, at=1, to=path.with_name("branch")).__enter__(),
]


@pytest.mark.parametrize("read", READERS)
def test_without_the_key_every_reader_says_that_the_file_is_encrypted(killed, read):
    with pytest.raises(CassetteError, match=f"is an encrypted journal.*{KEY_VARIABLE}"):
        read(killed)


def test_readers_find_the_key_in_the_environment_and_show_no_secret(killed, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY.hex())
    stored, cassette = read_journal(killed), Cassette.load(killed)
    for shown in (str(stored.calls), str(stored.in_doubt), str(stored.checkpoints), str(list(cassette.steps))):
        assert SECRET not in shown
        assert "[redacted]" in shown
    assert [one.name for one in stored.in_doubt] == ["encrypted:pay"]
    with replay(killed):
        assert asyncio.run(token(SECRET)) == {"password": "[redacted]", "user": "ann"}
    monkeypatch.setenv(KEY_VARIABLE, "no key")
    with pytest.raises(CassetteError, match="in hexadecimal digits"):
        Cassette.load(killed)


def test_a_journal_is_resumed_with_the_key_that_it_was_begun_with(killed, tmp_path):
    before = killed.read_bytes()
    for key, reason in ((None, "begun with a key="), (bytes(32), "another key")):
        with pytest.raises(JournalError, match=reason):
            run(killed.parent, key=key)
    assert killed.read_bytes() == before
    plain = tmp_path / "plain"
    CALLS.clear()
    with pytest.raises(Killed):
        run(plain, key=None)
    with pytest.raises(JournalError, match="without a key"):
        run(plain)


def test_a_branch_is_encrypted_too(killed):
    [made] = read_journal(killed, key=KEY).checkpoints
    path = branch_journal(killed, "other", until=made, directory=killed.parent, events=True, key=KEY)
    assert SECRET not in path.read_text()
    assert [call.name for call in read_journal(path, key=KEY).calls] == ["encrypted:token"]
