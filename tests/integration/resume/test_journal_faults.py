"""Journals that are torn, full, foreign or taken: a clear error each, nothing changed and nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_cache import AgentCache, AgentCacheSession, invalidate
from agent_cache.recording import intercept
from agent_cache.resume import CustomState, InDoubtError, Journal, JournalError, NotDone
from agent_cache.resume.journal import read_journal
from tests.harness.forks import forks
from tests.harness.slow import slow

ROOT = Path(__file__).parents[3]
carried_out: list[str] = []
"""What has been carried out."""


@intercept(name="look")
async def look(order: str) -> str:
    carried_out.append(f"look {order}")
    return f"{order} is open"


@intercept(name="pay", kind="write")
async def pay(order: str) -> str:
    carried_out.append(f"pay {order}")
    return f"{order} is paid"


@intercept(name="ask", kind="llm")
async def ask(question: str) -> str:
    carried_out.append(f"ask {question}")
    return f"answer to {question}"


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    carried_out.clear()
    yield
    carried_out.clear()


class Crash(Exception):
    """Ends a run before its end."""


STEPS: Sequence[tuple[Callable[[str], Awaitable[str]], str]] = (
    (look, "o1"), (pay, "o1"), (ask, "next"), (look, "o2"), (pay, "o2"), (ask, "end"),
)  # fmt: skip
NAMES = [f"{tool.__name__} {argument}" for tool, argument in STEPS]


async def run(
    directory: Path,
    session_id: str = "s",
    *,
    until: int = len(STEPS),
    on_doubt: Any = "raise",
) -> list[str]:
    """The run; it crashes after so many calls."""
    async with AgentCacheSession(session_id, journal=Journal(directory, on_doubt=on_doubt)) as session:
        answers = []
        for number, (tool, argument) in enumerate(STEPS):
            if number == until:
                raise Crash
            answers.append(await tool(argument))
            if number == 2:
                await session.checkpoint("third", CustomState(data={"at": 3}))
    return answers


async def crash(directory: Path, session_id: str = "s", *, until: int = 4) -> Path:
    """A run that has made some calls and can be resumed. Returns its journal."""
    with pytest.raises(Crash):
        await run(directory, session_id, until=until)
    carried_out.clear()
    return Journal(directory).path(session_id)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


ANSWERS = ["o1 is open", "o1 is paid", "answer to next", "o2 is open", "o2 is paid", "answer to end"]


# Checks


@AgentCache("order:{order}", name="status")
async def status(order: str) -> str:
    return "paid" if f"pay {order}" in carried_out else "open"


async def test_what_a_check_has_read_is_read_again_by_the_next_process(tmp_path):
    """Else it would hear that the write is not done, as it was before the last process made it."""

    async def check(arguments: dict[str, Any], key: str) -> Any:
        return f"{arguments['order']} is paid" if await status(arguments["order"]) == "paid" else NotDone

    path = await crash(tmp_path, until=2)

    def cut_off_in_the_write() -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        ends = [number for number, line in enumerate(lines) if b'"name":"pay"' in line and b'"outcome"' in line]
        path.write_bytes(b"".join(lines[: ends[0]]))

    cut_off_in_the_write()
    with pytest.raises(Crash):
        await run(tmp_path, until=2, on_doubt={"pay": check})
    assert carried_out == ["pay o1"]
    cut_off_in_the_write()
    await invalidate("order")  # the next process has nothing in its caches
    assert await run(tmp_path, on_doubt={"pay": check}) == ANSWERS
    assert carried_out == ["pay o1", *NAMES[2:]]
    assert {call.name for call in read_journal(path).calls} == {"look", "pay", "ask"}


# Files that are not this journal


async def refused(directory: Path, match: str, session_id: str = "s") -> None:
    """A run does not begin, and all files stay as they are."""
    before = contents(directory)
    with pytest.raises(JournalError, match=match):
        await run(directory, session_id)
    assert carried_out == []
    assert contents(directory) == before


async def test_a_symbolic_link_is_not_written_through(tmp_path):
    (tmp_path / "journals").mkdir()
    Journal(tmp_path / "journals").path("s").symlink_to(tmp_path / "outside")
    with pytest.raises(JournalError):
        await run(tmp_path / "journals")
    assert not (tmp_path / "outside").exists()
    assert carried_out == []


# Who else resumes


def script(text: str, *arguments: object) -> list[str]:
    """The command of a process that runs this, after the imports and tools of this module."""
    folders = [str(Path(__file__).parent)]
    if (ROOT / "agent_cache").exists():  # else a wheel is tested
        folders.append(str(ROOT))
    begin = f"import asyncio, os, sys\nsys.path[:0] = {folders!r}\nfrom test_journal_faults import *\n"
    return [sys.executable, "-c", begin + textwrap.dedent(text), *map(str, arguments)]


def said(text: str, *arguments: object) -> str:
    """What a process prints that runs this."""
    done = forks().run(*script(text, *arguments)[1:], imports=["asyncio", "pytest", "agent_cache.resume"])
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


async def test_a_process_refuses_others_and_when_it_is_killed_in_a_write_that_is_in_doubt(tmp_path):
    with subprocess.Popen(script(HOLD, tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"in the middle of a write\n"
        await refused(tmp_path, "another session")
        first.kill()
    for _ in range(2):
        with pytest.raises(InDoubtError) as caught:
            await run(tmp_path)
    assert caught.value.key == read_journal(Journal(tmp_path).path("s")).in_doubt[0].key
    assert carried_out == []
    assert await run(tmp_path, on_doubt="rerun") == ANSWERS
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
async def test_a_forked_child_does_not_write_into_the_journal_of_its_parent(tmp_path):
    printed = ["child is open", "JournalError ['look o1', 'look child']", "o1 is paid"]
    assert said(FORK, tmp_path).splitlines() == printed
    assert [call.name for call in read_journal(Journal(tmp_path).path("s")).calls] == ["look", "pay"]
    assert await run(tmp_path) == ANSWERS
    assert carried_out == NAMES[2:]


# Disks that take nothing


LIMITED = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    directory = Path(sys.argv[1])
    size = Journal(directory).path("s").stat().st_size if Journal(directory).path("s").exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        print(asyncio.run(run(directory)))
    except JournalError as error:
        print("refused", carried_out)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of files there")
@pytest.mark.parametrize("room", [0, 100, 300, 750, 1350, *slow(450, 600, 900, 1050, 1200)])
async def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, room):
    """A run that has room again goes on behind the last whole line, and asks about a write without an end."""
    path = await crash(tmp_path, until=1)
    before = path.read_bytes()
    printed = said(LIMITED, tmp_path, room)
    assert printed.startswith("refused"), printed
    ran = printed.removeprefix("refused ").strip("[]").replace("'", "").split(", ")
    assert path.read_bytes().startswith(before)
    assert all(isinstance(one, dict) for one in lines_of(path))
    stored = read_journal(path)
    writes = [name for name in ran if name.startswith("pay")]
    ended = [f"pay {call.arguments['order']}" for call in stored.calls if call.name == "pay"]
    in_doubt = [f"pay {one.arguments['order']}" for one in stored.in_doubt]
    assert set(writes) <= {*ended, *in_doubt}, "no write is carried out without a trace"
    done = []

    def look_up(arguments: dict[str, Any], key: str) -> str:
        done.append(f"pay {arguments['order']}")
        return f"{arguments['order']} is paid"

    assert await run(tmp_path, on_doubt={"pay": look_up}) == ANSWERS
    assert done == in_doubt
    assert sorted([*ended, *in_doubt, *(name for name in carried_out if name.startswith("pay"))]) == [
        "pay o1",
        "pay o2",
    ]
