"""The file of a journal: its name, who may write it, its branches and its key; files that are torn, full or foreign."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.__main__ import main
from agent_cache.errors import (
    CassetteError,
    CassetteNotFound,
    ConfigurationError,
    DivergenceError,
    InDoubtError,
    JournalError,
)
from agent_cache.recording import Cassette, fork, intercept, record, replay
from agent_cache.resume import Journal, NotDone, idempotency_key
from agent_cache.resume.journal import branch_journal, journal_path, read_journal
from tests.harness.processes import python
from tests.harness.slow import slow

ROOT = Path(__file__).parents[3]
carried_out: list[str] = []
"""What has been carried out."""


@intercept(name="look")
async def look(order: str) -> str:
    carried_out.append(f"look {order}")
    return f"{order} is open"


@AgentCacheInvalidator("order:{order}", name="pay")
async def pay(order: str) -> str:
    carried_out.append(f"pay {order}")
    return f"{order} is paid"


@intercept(name="ask", kind="llm")
async def ask(question: str) -> str:
    carried_out.append(f"ask {question}")
    return f"answer to {question}"


@pytest.fixture(autouse=True)
def nothing_ran():
    carried_out.clear()


class Crash(Exception):
    """Ends a run before its end."""


STEPS: Any = ((look, "o1"), (pay, "o1"), (ask, "next"), (look, "o2"), (pay, "o2"), (ask, "end"))
NAMES = [f"{tool.__name__} {argument}" for tool, argument in STEPS]
ANSWERS = ["o1 is open", "o1 is paid", "answer to next", "o2 is open", "o2 is paid", "answer to end"]


async def run(directory: Path, session_id: str = "s", *, until: int = len(STEPS), **options: Any) -> list[str]:
    """The run; it crashes after so many calls."""
    async with AgentCacheSession(session_id, journal=Journal(directory, **options)) as session:
        answers = []
        for number, (tool, argument) in enumerate(STEPS):
            if number == until:
                raise Crash
            answers.append(await tool(argument))
            if number == 2:
                await session.checkpoint("third", {"at": 3})
    return answers


def crash(directory: Path, session_id: str = "s", *, until: int = 4, **options: Any) -> Path:
    """A run that has made some calls and can be resumed. Returns its journal."""
    with pytest.raises(Crash):
        asyncio.run(run(directory, session_id, until=until, **options))
    carried_out.clear()
    return Journal(directory).path(session_id)


def refused(directory: Path, match: str) -> JournalError:
    """A run does not begin, and all files stay as they are."""
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(JournalError, match=match) as caught:
        asyncio.run(run(directory))
    assert carried_out == []
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    return caught.value


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


async def test_a_journal_can_be_read_while_it_is_written_and_its_header_names_no_secret_of_the_user(tmp_path):
    async with AgentCacheSession("s", journal=Journal(tmp_path, redact=["customer_id"])):
        await pay("1")
        path = tmp_path / "s.jsonl"
        stored, cassette = read_journal(path), Cassette.load(path)
    assert (stored.session_id, stored.is_sealed, stored.in_doubt, stored.checkpoints) == ("s", False, [], [])
    assert cassette.is_partial
    [call] = cassette.steps
    assert (call.name, call.arguments, call.is_write, call.tags) == ("pay", {"order": "1"}, True, ["order:1"])
    assert stored.calls == [call]
    assert read_journal(path).is_sealed
    assert path.stat().st_mode & 0o077 == 0
    header = json.loads(path.read_text().splitlines()[0])
    assert header["redact"] == {"names": ["customer_id"]}
    assert len(bytes.fromhex(header["run"])) == len(bytes.fromhex(header["secret"])) == 16


BROKEN = [
    (lambda text: text.replace('"agent_cache_journal":1', '"agent_cache_journal":9'), "has format version 9"),
    (lambda text: text.replace('"agent_cache_journal":1', '"agent_cache_cassette":2'), "is no journal"),
    (lambda text: "hello\n", "is no journal"),
    (lambda text: text.replace('"session_id":"s"', '"session_id":"other"'), "of the session 'other', and not of 's'"),
    (lambda text: text.replace('"order":"o1"', '"order"', 1), "this line is broken"),
    (lambda text: text + '{"what": 1}\n', "this line is broken"),
    (lambda text: text.replace('"place":"', '"place":"x'), "this line is broken"),
    (lambda text: text + '{"trailer":{"calls":1}}\n{"open":{}}\n', "follows the trailer"),
    (lambda text: text + text.splitlines(keepends=True)[-1], r"an earlier line has the id \d+, too$"),
]


@pytest.mark.parametrize(("change", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_a_file_that_cannot_be_resumed_is_refused_and_left_alone(tmp_path, change, reason):
    path = crash(tmp_path)
    path.write_text(change(path.read_text()))
    for _ in range(2):  # the lock was released
        assert refused(tmp_path, reason).path == str(path)
    if "other" not in reason:
        with pytest.raises(JournalError, match=reason):
            read_journal(path)


def test_there_may_be_no_journal_or_an_empty_one_or_a_link(tmp_path):
    with pytest.raises(CassetteNotFound):
        read_journal(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(JournalError, match="is empty"):
        read_journal(tmp_path / "empty.jsonl")
    with pytest.raises(JournalError, match="cannot be read"):
        read_journal(tmp_path)
    (tmp_path / "s.jsonl").symlink_to(tmp_path / "outside")  # which is not written through
    refused(tmp_path, "cannot be opened")
    assert not (tmp_path / "outside").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_a_folder_without_locks_is_refused_with_what_it_lacks(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    crash(tmp_path)
    monkeypatch.setattr("fcntl.flock", refuse)
    refused(tmp_path, "cannot be opened and locked: No locks available")


@pytest.mark.parametrize("rest", [b"", b'{"agent_cache_jou'])
def test_a_machine_may_have_stopped_before_the_header_was_on_the_disk(tmp_path, rest):
    path = Journal(tmp_path).path("s")
    path.write_bytes(rest + bytes(4096))
    assert asyncio.run(run(tmp_path)) == ANSWERS
    assert b"\0" not in path.read_bytes()


def test_the_commands_show_what_is_in_doubt_and_they_and_recordings_leave_the_journal_alone(tmp_path, capsys):
    path = crash(tmp_path, until=5)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    [doubt] = read_journal(path).in_doubt
    for command, code, text in (
        (["show"], 0, f"in doubt  pay(order='o2') (idempotency key {doubt.key})"),
        (["show", "--json"], 0, f'"key": "{doubt.key}"'),
        (["redact", "--check"], 2, "is a journal, which stays as it is"),
    ):
        assert main(["cassette", *command, str(path)]) == code
        assert text in "".join(capsys.readouterr())
    with pytest.raises(CassetteError, match="it is a journal"), record(path):
        pass
    with pytest.raises(CassetteError, match="it is a journal"):
        Cassette.load(path).save(path)
    assert path.read_bytes() == b"".join(lines[:-1])
    line = '{"%s":{"id":%d,"parent":%d,"place":"","kind":"","name":"","key":""}}\n'  # by hand
    path.write_text(path.read_text() + line % ("open", 8, 9) + line % ("open", 9, 8) + line % ("intent", 10, 9))
    assert [one.id for one in read_journal(path).in_doubt] == [doubt.id, 10]


@AgentCache("bank:{order}", name="status")
async def status(order: str) -> str:
    return "paid" if f"pay {order}" in carried_out else "open"


def test_what_a_check_has_read_is_read_again_by_the_next_process(tmp_path):
    """Else it would hear, from the journal or a cache, that the write is not done, as it was before it was made."""

    async def check(arguments: dict[str, Any], key: str) -> Any:
        return f"{arguments['order']} is paid" if await status(arguments["order"]) == "paid" else NotDone

    path = crash(tmp_path, until=2)

    def cut_off_in_the_write() -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        ends = [number for number, line in enumerate(lines) if b'"name":"pay"' in line and b'"outcome"' in line]
        path.write_bytes(b"".join(lines[: ends[0]]))

    cut_off_in_the_write()
    with pytest.raises(Crash):
        asyncio.run(run(tmp_path, until=2, on_doubt={"pay": check}))
    assert carried_out == ["pay o1"]
    cut_off_in_the_write()
    assert asyncio.run(run(tmp_path, on_doubt={"pay": check})) == ANSWERS
    assert carried_out == ["pay o1", *NAMES[2:]]
    assert {call.name for call in read_journal(path).calls} == {"look", "pay", "ask"}


# One at a time


async def test_a_session_inside_of_one_that_has_a_journal_has_none_of_its_own(tmp_path):
    async with AgentCacheSession("outer", journal=Journal(tmp_path)):
        with pytest.raises(ConfigurationError, match="'inner' is inside of one that has a journal"):
            await run(tmp_path, "inner")
        async with AgentCacheSession("plain"):
            await pay("2")
    assert carried_out == ["pay 2"]
    assert Cassette.load(tmp_path / "outer.jsonl").num_steps == 1


def script(text: str, *arguments: object) -> list[str]:
    """The command of a process that runs this, after the imports and tools of this module."""
    folders = [str(Path(__file__).parent)]
    if (ROOT / "agent_cache").exists():  # else a wheel is tested
        folders.append(str(ROOT))
    begin = f"import asyncio, os, sys\nsys.path[:0] = {folders!r}\nfrom test_journal_file import *\n"
    return [sys.executable, "-c", begin + textwrap.dedent(text), *map(str, arguments)]


def said(text: str, *arguments: object) -> str:
    """What a process prints that runs this."""
    done = python(*script(text, *arguments)[1:])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HOLD = """
    @intercept(name="pay", kind="write")
    async def pay(order):
        print("in the middle of a write", flush=True)
        sys.stdin.read()
    async def hold():
        async with AgentCacheSession("s", journal=Journal(sys.argv[1])):
            await look("o1")
            await pay("o1")
    asyncio.run(hold())
"""


def test_a_process_refuses_others_and_when_it_is_killed_in_a_write_that_is_in_doubt(tmp_path):
    with subprocess.Popen(script(HOLD, tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"in the middle of a write\n"
        refused(tmp_path, "another session")
        first.kill()
    for _ in range(2):
        with pytest.raises(InDoubtError) as caught:
            asyncio.run(run(tmp_path))
    assert caught.value.key == read_journal(Journal(tmp_path).path("s")).in_doubt[0].key
    assert carried_out == []
    assert asyncio.run(run(tmp_path, on_doubt="rerun")) == ANSWERS
    assert carried_out == NAMES[1:]


FORK = """
    async def main():
        async with AgentCacheSession("s", journal=Journal(sys.argv[1])):
            await look("o1")
            child = os.fork()
            if not child:
                try:
                    print(await look("child"), flush=True)
                    await pay("child")
                except BaseException as error:
                    print(type(error).__name__, carried_out, flush=True)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            print(await pay("o1"), flush=True)
            raise Crash
    try:
        asyncio.run(main())
    except Crash:
        pass
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_write_into_the_journal_of_its_parent(tmp_path):
    printed = ["child is open", "JournalError ['look o1', 'look child']", "o1 is paid"]
    assert said(FORK, tmp_path).splitlines() == printed
    assert [call.name for call in read_journal(Journal(tmp_path).path("s")).calls] == ["look", "pay"]
    assert asyncio.run(run(tmp_path)) == ANSWERS
    assert carried_out == NAMES[2:]


# Disks that take nothing

LIMITED = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    directory = Path(sys.argv[1])
    size = Journal(directory).path("s").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        print(asyncio.run(run(directory)))
    except JournalError as error:
        print("refused", *carried_out, sep=",")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of files there")
@pytest.mark.parametrize("room", [0, 100, 300, 750, 1350, *slow(450, 600, 900, 1050, 1200)])
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, room):
    """A run that has room again goes on behind the last whole line, and asks about a write without an end."""
    path = crash(tmp_path, until=1)
    before = path.read_bytes()
    word, *ran = said(LIMITED, tmp_path, room).split(",")
    assert word == "refused"
    assert path.read_bytes().startswith(before)
    assert path.read_bytes().endswith(b"\n")
    stored = read_journal(path)
    ended = [f"pay {call.arguments['order']}" for call in stored.calls if call.name == "pay"]
    in_doubt = [f"pay {one.arguments['order']}" for one in stored.in_doubt]
    assert {one for one in ran if one.startswith("pay")} <= {*ended, *in_doubt}, "no write is made without a trace"
    asked = []

    def look_up(arguments: dict[str, Any], key: str) -> str:
        asked.append(f"pay {arguments['order']}")
        return f"{arguments['order']} is paid"

    assert asyncio.run(run(tmp_path, on_doubt={"pay": look_up})) == ANSWERS
    assert asked == in_doubt
    assert sorted([*ended, *in_doubt, *(one for one in carried_out if one.startswith("pay"))]) == ["pay o1", "pay o2"]


@pytest.mark.parametrize("change", ["deleted", "replaced", "written to"])
async def test_a_write_that_a_resume_would_not_find_is_not_made(change, tmp_path):
    """As if a cleaner of old files had deleted the journal of a run that waits for days."""
    path, content = tmp_path / "s.jsonl", b""
    with pytest.raises(JournalError, match="it was moved, deleted or changed by somebody else"):
        async with AgentCacheSession("s", journal=Journal(tmp_path)):
            await pay("o1")
            if change != "written to":
                content = path.read_bytes()
                path.unlink()
            if change != "deleted":
                path.write_bytes(content)
            await pay("o2")
    assert carried_out == ["pay o1"]


# Branches


@AgentCacheInvalidator("order:{order}", name="slow_pay")
async def slow_pay(order: str) -> None:
    carried_out.append(idempotency_key())
    await asyncio.sleep(3600)


async def test_a_branch_goes_on_from_its_checkpoint_and_replaces_nothing(tmp_path):
    """Its writes have keys of their own, but for one that was running at the checkpoint, which is in doubt in it."""
    async with AgentCacheSession("run", journal=Journal(tmp_path)) as session:
        await pay("o1")
        first = await session.checkpoint("first", {"paid": 1})
        await pay("o2")
        running = asyncio.create_task(slow_pay("o3"))
        while len(carried_out) < 3:
            await asyncio.sleep(0)
        second = await session.checkpoint("second", {"paid": 2})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pay("o4")
    source, key = tmp_path / "run.jsonl", carried_out[2]
    path = branch_journal(source, "branch", until=first, directory=tmp_path / "branches")
    stored, original = read_journal(path), read_journal(source)
    assert (stored.session_id, stored.is_sealed, stored.in_doubt) == ("branch", False, [])
    assert stored.run != original.run
    assert [call.arguments["order"] for call in stored.calls] == ["o1"]
    assert [one.label for one in stored.checkpoints] == ["first"]
    for until, session_id, reason in (
        (second, "branch", "there is a journal of the session 'branch' already"),
        (read_journal(path).checkpoints[0], "another", "has no checkpoint"),
    ):
        with pytest.raises(JournalError, match=reason):
            branch_journal(source, session_id, until=until, directory=tmp_path / "branches")
    carried_out.clear()
    async with AgentCacheSession("branch", journal=Journal(tmp_path / "branches")):
        assert [await pay("o1"), await pay("o2")] == ["o1 is paid", "o2 is paid"]
    assert carried_out == ["pay o2"]
    keys = {one.key for stored in (read_journal(path), original) for one in stored.intents.values()}
    assert len(keys) == 4 + 1  # the first payment is one write, its second one is another in each
    (doubt,) = read_journal(branch_journal(source, "branch", until=second, directory=tmp_path)).in_doubt
    assert (doubt.name, doubt.arguments, doubt.key) == ("slow_pay", {"order": "o3"}, key)
    with pytest.raises(InDoubtError) as caught:
        async with AgentCacheSession("branch", journal=Journal(tmp_path)):
            await pay("o1")
    assert caught.value.key == key
    with pytest.raises(TimeoutError):
        async with AgentCacheSession("branch", journal=Journal(tmp_path, on_doubt="rerun")), asyncio.timeout(0):
            await slow_pay("o3")
    assert carried_out[-1] == key


# Encrypted

KEY = bytes(range(32))
SECRET = "correct horse battery"


@intercept(name="file:token")
async def token(password: str) -> dict[str, str]:
    carried_out.append("token")
    return {"password": SECRET, "user": "ann"}


@AgentCacheInvalidator("order:{order}", name="file:charge")
async def charge(order: str, password: str) -> str:
    carried_out.append("charge")
    if carried_out.count("charge") == 1:
        raise KeyboardInterrupt
    return "charged"


def secret_run(directory: Path, order: str = "W1", **options: Any) -> tuple[str, dict[str, str]]:
    async def main() -> tuple[str, dict[str, str]]:
        async with AgentCacheSession("job", journal=Journal(directory, **{"key": KEY, **options})) as session:
            await session.checkpoint("begun", {"password": SECRET, "step": 1})
            found = await token(SECRET)
            return await charge(order, found["password"]), found

    return asyncio.run(main())


@pytest.fixture
def encrypted(tmp_path, monkeypatch):
    """The encrypted journal of a run that was killed in a write."""
    pytest.importorskip("cryptography")
    monkeypatch.delenv("AGENT_CACHE_JOURNAL_KEY", raising=False)
    with pytest.raises(KeyboardInterrupt):
        secret_run(tmp_path)
    return tmp_path / "job.jsonl"


def test_with_a_key_nothing_of_the_run_is_in_the_file_and_the_run_gets_back_what_it_saw(encrypted):
    text = encrypted.read_text()
    assert all(line.startswith(('{"agent_cache_journal":1,"enc', '{"encrypted":"')) for line in text.splitlines())
    for word in (SECRET, "ann", "file:charge", "job", "begun"):
        assert word not in text
    with pytest.raises(InDoubtError) as caught:
        secret_run(encrypted.parent)
    assert SECRET not in str(caught.value)
    assert caught.value.arguments == {"order": "W1", "password": "[redacted]"}
    with pytest.raises(DivergenceError) as diverged:
        secret_run(encrypted.parent, "W2")
    assert "charge(order='W2', password='[redacted]') is a new write" in str(diverged.value)
    [made] = read_journal(encrypted, key=KEY).checkpoints
    branch = branch_journal(encrypted, "other", until=made, directory=encrypted.parent, events=True, key=KEY)
    assert SECRET not in branch.read_text()
    assert [call.name for call in read_journal(branch, key=KEY).calls] == ["file:token"]
    assert secret_run(encrypted.parent, on_doubt="rerun") == ("charged", {"password": SECRET, "user": "ann"})
    assert carried_out == ["token", "charge", "charge"]
    assert read_journal(encrypted, key=KEY).is_sealed


def test_lines_may_be_torn_at_the_end_and_not_moved_or_changed(encrypted):
    lines = encrypted.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        encrypted.write_bytes(b"".join(lines[:count]) + lines[count][:20])
        carried_out[:] = ["charge"]
        assert secret_run(encrypted.parent, on_doubt="rerun")[0] == "charged"
        assert carried_out.count("charge") == 2
    for changed in ([lines[0], lines[2], lines[1], *lines[3:]], [*lines[:-1], lines[-1].replace(b'"', b'"AAAA', 3)]):
        encrypted.write_bytes(b"".join(changed))
        with pytest.raises(JournalError, match="cannot be decrypted"):
            read_journal(encrypted, key=KEY)


def test_readers_find_the_key_in_the_environment_and_show_no_secret(encrypted, monkeypatch):
    for read in (
        read_journal, Cassette.load, lambda path: replay(path).__enter__(),
        lambda path: fork(path, at=1, to=path.with_name("branch")),
    ):  # fmt: skip
        with pytest.raises(CassetteError, match=r"is an encrypted journal.*AGENT_CACHE_JOURNAL_KEY"):
            read(encrypted)
    monkeypatch.setenv("AGENT_CACHE_JOURNAL_KEY", KEY.hex())
    stored, cassette = read_journal(encrypted), Cassette.load(encrypted)
    for shown in (str(stored.calls), str(stored.in_doubt), str(stored.checkpoints), str(list(cassette.steps))):
        assert SECRET not in shown
        assert "[redacted]" in shown
    with replay(encrypted):
        assert asyncio.run(token(SECRET)) == {"password": "[redacted]", "user": "ann"}
    monkeypatch.setenv("AGENT_CACHE_JOURNAL_KEY", "no key")
    with pytest.raises(CassetteError, match="in hexadecimal digits"):
        Cassette.load(encrypted)


def test_a_journal_is_resumed_with_the_key_that_it_was_begun_with(encrypted, tmp_path):
    before = encrypted.read_bytes()
    for key, reason in ((None, "begun with a key="), (bytes(32), "another key")):
        with pytest.raises(JournalError, match=reason):
            secret_run(encrypted.parent, key=key)
    assert encrypted.read_bytes() == before
    carried_out.clear()
    with pytest.raises(KeyboardInterrupt):
        secret_run(tmp_path / "plain", key=None)
    with pytest.raises(JournalError, match="without a key"):
        secret_run(tmp_path / "plain")
