"""A run whose process has ended in the middle goes on: what answers, what runs again, and what is in doubt.

A process that dies is played by `Killed`, which no tool and no agent catches. `test_journal_property` kills a run at
each line of its journal, `test_journal_file` a real process.
"""

import asyncio
import contextlib
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, AgentLoopDetectedError, configure
from agent_cache.errors import CheckpointError, ConfigurationError, DivergenceError, InDoubtError, JournalError
from agent_cache.recording import Cassette, Redaction, cached_llm_call, intercept, replay
from agent_cache.resume import AutoReplayManager, Journal, JournalEnded, NotDone, idempotency_key
from agent_cache.resume.journal import read_journal
from agent_cache.testing import MemoryTier, reset


class Killed(BaseException):
    """The process ends here."""


class World:
    """What is outside of the process."""

    def __init__(self):
        self.calls = Counter()
        self.keys = {}
        self.dies_in = set()
        self.dies_after = set()

    def call(self, name):
        if name in self.dies_in:
            raise Killed(name)
        self.calls[name] += 1
        self.keys.setdefault(name, []).append(idempotency_key())
        if name in self.dies_after:
            raise Killed(name)


@pytest.fixture
def world():
    global WORLD
    WORLD = World()
    return WORLD


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "journals"


@AgentCache("order:{order}", name="resumed:get_order")
async def get_order(order: str) -> dict:
    WORLD.call(f"get {order}")
    return {"order": order, "state": "open"}


@AgentCacheInvalidator("order:{order}", name="resumed:pay")
async def pay(order: str, note: str = "") -> str:
    WORLD.call(f"pay {order}{note}")
    return f"paid {order}"


@intercept(kind="write", name="resumed:ship")
def ship(order: str) -> str:
    WORLD.call(f"ship {order}")
    return f"shipped {order}"


@cached_llm_call(name="resumed:ask")
async def ask(prompt: str) -> str:
    WORLD.call(f"ask {prompt}")
    return f"answer {WORLD.calls[f'ask {prompt}']} to {prompt}"


async def ship_later(order):
    return ship(order)


def journaled(journal, program, session_id="run", **options):
    """Run a program in a session that has this journal."""

    async def run():
        async with AgentCacheSession(session_id, journal=journal, **options):
            return await program()

    return asyncio.run(run())


def dies(journal, program, *names):
    """Run a program whose process dies when it makes one of these calls."""
    WORLD.dies_in |= set(names)
    with pytest.raises(Killed):
        journaled(journal, program)
    WORLD.dies_in, WORLD.dies_after = set(), set()


# What answers


def test_a_cancelled_read_runs_again_and_a_cancelled_write_is_in_doubt(world, directory):
    async def waits(name):
        WORLD.call(name)
        await asyncio.sleep(3600 if WORLD.calls[name] == 1 else 0)
        return name

    @AgentCache("order:{order}", name="resumed:slow_read")
    async def slow_read(order: str) -> str:
        return await waits("read")

    @AgentCacheInvalidator("order:{order}", name="resumed:slow_write")
    async def slow_write(order: str) -> str:
        return await waits("write")

    async def first():
        for name, tool in (("read", slow_read), ("write", slow_write)):
            task = asyncio.create_task(tool("1"))
            while not WORLD.calls[name]:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        raise Killed

    async def second():
        return await asyncio.create_task(slow_read("1")), await asyncio.create_task(slow_write("1"))

    dies(Journal(directory), first)
    with pytest.raises(InDoubtError) as raised:
        journaled(Journal(directory), second)
    assert raised.value.tool == "resumed:slow_write"
    assert world.calls == {"read": 2, "write": 1}
    assert journaled(Journal(directory, on_doubt={slow_write: "rerun"}), second) == ("read", "write")
    assert world.calls == {"read": 2, "write": 2}


def test_a_stream_that_was_cut_is_read_again(world, directory):
    @cached_llm_call(name="resumed:stream")
    async def stream(prompt: str):
        WORLD.call(f"stream {prompt}")
        for word in ("one", "two", "three"):
            yield word

    async def program():
        found = [word async for word in stream("whole")]
        async for word in stream("cut"):
            found.append(word)
            if WORLD.dies_in:
                raise Killed
        return found

    dies(Journal(directory), program, "now")
    assert journaled(Journal(directory), program) == ["one", "two", "three"] * 2
    assert world.calls == {"stream whole": 1, "stream cut": 2}


def test_a_failure_that_ended_the_run_is_tried_again_and_one_that_it_went_on_from_is_not(world, directory):
    @cached_llm_call(name="resumed:fetch")
    async def fetch(name: str) -> str:
        WORLD.call(f"fetch {name}")
        if WORLD.calls[f"fetch {name}"] == 1:
            raise ConnectionError("the provider is down")
        yield f"fetched {name}"

    @intercept(name="resumed:step")
    async def step(order: str) -> list[str]:
        await pay(order)
        return [one async for one in fetch("b")]

    async def program():
        with contextlib.suppress(ConnectionError):
            [_ async for _ in fetch("a")]
        found = await step("1")
        with contextlib.suppress(ConnectionError):
            [_ async for _ in fetch("c")]
        return found

    dies(Journal(directory), program, "pay 1")
    with pytest.raises(ConnectionError):
        journaled(Journal(directory, on_doubt="rerun"), program)
    assert journaled(Journal(directory), program) == ["fetched b"]
    assert world.calls == {"fetch a": 1, "pay 1": 1, "fetch b": 2, "fetch c": 1}
    cassette = Cassette.load(directory / "run.jsonl")
    assert cassette.trailer.calls == len(cassette.steps) == 5
    with replay(directory / "run.jsonl", strict=True):
        assert asyncio.run(program()) == ["fetched b"]


def test_a_write_that_raised_and_a_loop_end_each_resumed_run_at_the_same_call(world, directory):
    @AgentCacheInvalidator("order:{order}", name="resumed:refuse")
    async def refuse(order: str) -> str:
        WORLD.call(f"refuse {order}")
        raise LookupError(order)

    @AgentCache("order:{order}", name="resumed:watch", cache_if=lambda _: False)
    async def watch(order: str) -> str:
        WORLD.call(f"watch {order}")
        return "open"

    async def repeats(tool):
        for number in range(5):
            await ask(f"{number}")
            await tool("again")

    for _ in range(3):
        with pytest.raises(LookupError):
            journaled(Journal(directory), lambda: refuse("1"), "refused")
        for tool in (get_order, watch):  # one is stopped before its call, the other after it
            with pytest.raises(AgentLoopDetectedError):
                journaled(Journal(directory), lambda tool=tool: repeats(tool), f"{tool}", max_tool_repeats=2)
    assert world.calls == {"refuse 1": 1, "ask 0": 2, "ask 1": 2, "get again": 1, "watch again": 2}


def test_tasks_of_the_process_that_resumes_are_none_of_the_one_before(world, directory):
    async def program(*prompts):
        await asyncio.gather(*map(ask, prompts))
        ship("1")

    dies(Journal(directory), lambda: program("a", "b"), "ship 1")
    journaled(Journal(directory, on_doubt="rerun"), lambda: program("c", "d"))
    calls = read_journal(directory / "run.jsonl").calls
    assert len({call.lane for call in calls if call.kind == "llm"}) == 4


# Writes in doubt


def in_doubt(directory, program=lambda: pay("1")):
    """Kill the process in the middle of paying order 1, after it took effect."""
    WORLD.dies_after = {"pay 1"}
    dies(Journal(directory), program)


def test_a_write_in_doubt_raises_with_its_call_and_its_key(world, directory):
    in_doubt(directory)
    by_now = AgentCache("order:{order}", name="resumed:pay")(pay.__wrapped__)  # a read, in a new program
    for restart, tool in ((False, by_now), (True, pay), (False, pay)):  # and stays in doubt
        with pytest.raises(InDoubtError, match=r"on_doubt=\{'resumed:pay': check\}") as raised:
            journaled(Journal(directory, restart=restart), lambda tool=tool: tool("1"))
    error = raised.value
    assert Path(error.path).read_text().count('resumed":') == 1  # it does not grow with the times that it is tried
    assert (error.tool, error.arguments) == ("resumed:pay", {"order": "1", "note": ""})
    assert (error.key, error.path) == (world.keys["pay 1"][0], str(Journal(directory).path("run")))
    assert [one.key for one in read_journal(error.path).in_doubt] == [error.key]
    assert world.calls == {"pay 1": 1}


async def found_later(arguments, key):
    await asyncio.sleep(0)
    return f"paid {arguments['order']}, as I see" if [key] == WORLD.keys["pay 1"] else NotDone


def found(arguments, key):
    assert arguments == {"order": "1", "note": ""}
    return f"paid {arguments['order']}, as I see" if [key] == WORLD.keys["pay 1"] else NotDone


def not_done(*_):
    raise NotDone


@pytest.mark.parametrize(
    ("choice", "answer", "times"),
    [
        (found, "paid 1, as I see", 1),
        (found_later, "paid 1, as I see", 1),
        (lambda *_: NotDone, "paid 1", 2),
        (lambda *_: NotDone(), "paid 1", 2),
        (not_done, "paid 1", 2),
        ("notice", "It is not known whether pay(order='1', note='') took effect", 1),
    ],
)
def test_a_check_finds_out_or_the_model_is_told(world, directory, choice, answer, times):
    in_doubt(directory)
    said = journaled(Journal(directory, on_doubt={pay: choice}), lambda: pay("1"))
    assert said.startswith(answer)
    assert world.calls == {"pay 1": times}
    assert len(set(world.keys["pay 1"])) == 1
    with replay(directory / "run.jsonl", strict=True):
        assert asyncio.run(pay("1")) == said


def test_a_check_that_raises_or_cannot_be_awaited_leaves_the_write_in_doubt(world, directory):
    def no_route(arguments, key):
        raise ConnectionError("no route")

    in_doubt(directory)
    with pytest.raises(InDoubtError, match="returned None, and not NotDone"):  # it lacks its last line
        journaled(Journal(directory, on_doubt={pay: lambda *_: None}), lambda: pay("1"))
    with pytest.raises(InDoubtError, match="check function raised ConnectionError") as raised:
        journaled(Journal(directory, on_doubt={pay: no_route}), lambda: pay("1"))
    assert isinstance(raised.value.__cause__, ConnectionError)
    dies(Journal(directory, on_doubt={pay: lambda *_: world.call("check")}), lambda: pay("1"), "check")
    assert journaled(Journal(directory, on_doubt={pay: lambda *_: "found"}), lambda: pay("1")) == "found"
    dies(Journal(directory / "sync"), lambda: ship_later("1"), "ship 1")
    with pytest.raises(InDoubtError, match="it is asynchronous, and the write is not"):
        journaled(Journal(directory / "sync", on_doubt={ship: found_later}), lambda: ship_later("1"))
    assert world.calls == {"pay 1": 1}


def test_the_error_of_a_write_in_doubt_is_no_outcome_of_the_calls_that_enclose_it(world, directory):
    @intercept(name="resumed:careful")
    async def careful() -> str:
        try:
            return await pay("1")
        except InDoubtError:
            return "could not pay"

    async def program():
        return await careful(), await ask("what now?")

    in_doubt(directory, program)
    with pytest.raises(InDoubtError):  # also the model is not asked what to do about it
        journaled(Journal(directory), program)
    assert journaled(Journal(directory, on_doubt="rerun"), program) == ("paid 1", "answer 1 to what now?")


def test_a_write_in_doubt_that_is_not_made_again_is_said(world, directory, caplog):
    in_doubt(directory)
    with pytest.raises(InDoubtError, match="was not made again"):
        journaled(Journal(directory), lambda: ask("nothing"))
    journaled(Journal(directory, on_doubt={"resumed:pay": "rerun"}), lambda: ask("nothing"))
    assert "has not come to writes that it had made: resumed:pay" in caplog.text


def test_what_a_write_encloses_is_settled_with_it(world, directory, caplog):
    @AgentCacheInvalidator("order:{order}", name="resumed:settle")
    async def settle(order: str) -> str:
        return f"settled, {await pay(order)}"

    in_doubt(directory, lambda: settle("1"))
    assert len(read_journal(directory / "run.jsonl").in_doubt) == 2
    assert journaled(Journal(directory, on_doubt={settle: lambda *_: "found"}), lambda: settle("1")) == "found"
    assert read_journal(directory / "run.jsonl").is_sealed
    assert not caplog.messages


def test_caches_drop_what_a_write_in_doubt_may_have_changed(world, directory):
    with configure(remote=MemoryTier()):
        in_doubt(directory)
        reset()  # another process
        for _ in range(2):  # an entry of which it is not known whether it is from before the change
            asyncio.run(get_order("1"))
        assert world.calls["get 1"] == 1
        journaled(Journal(directory, on_doubt="notice"), lambda: get_order("1"))
        assert world.calls["get 1"] == 2


# Idempotency keys


@pytest.mark.parametrize(("durability", "waits"), [("process", 0), ("machine", 2)])
def test_a_write_waits_for_the_disk_where_the_journal_is_to_outlive_the_machine(
    world, directory, durability, waits, monkeypatch
):
    synced = []
    monkeypatch.setattr("os.fdatasync" if hasattr(os, "fdatasync") else "os.fsync", synced.append)

    async def counted():
        await get_order("1")
        before = len(synced)
        await pay("1")
        return len(synced) - before

    assert journaled(Journal(directory, durability=durability), counted) == waits


def test_each_write_of_each_run_has_a_key_of_its_own(world, directory):
    async def program():
        await asyncio.gather(pay("1"), pay("1"), pay("2"))
        await asyncio.to_thread(ship, "1")
        assert idempotency_key() is None

    for session_id in ("a", "a", "b"):
        journaled(Journal(directory, restart=True), program, session_id)
    keys = [key for keys in world.keys.values() for key in keys]
    assert len(set(keys)) == len(keys) == 12
    assert all(len(bytes.fromhex(key)) == 16 for key in keys)


@pytest.mark.parametrize("key", [None, bytes(range(32))])
def test_arguments_that_redaction_makes_equal_are_different_writes(world, directory, key):
    @AgentCacheInvalidator("card:{password}", name="resumed:charge")
    async def charge(password: str) -> str:
        WORLD.call(f"charge {password}")
        return password.upper()

    async def program(*passwords):
        return [await charge(one) for one in passwords]

    if key:
        pytest.importorskip("cryptography")
    options = {"key": key, "redact": ["password"]}
    dies(Journal(directory, **options), lambda: program("alpha", "beta"), "charge beta")
    text = (directory / "run.jsonl").read_text()
    assert "alpha" not in text
    assert "beta" not in text
    swapped = journaled(Journal(directory, on_doubt="rerun", **options), lambda: program("beta", "alpha"))
    assert swapped == ["BETA", "ALPHA"]
    assert world.calls == {"charge alpha": 1, "charge beta": 1}


# Runs that differ


async def pays(note):
    await pay("1", note)
    ship("3")


async def pays_and_swallows(note):
    try:
        await pay("1", note)
    except DivergenceError:
        await asyncio.gather(pay("2"), return_exceptions=True)
    ship("3")


@AgentCacheInvalidator("order:{order}", name="moved:pay")
async def moved(order: str, note: str = "") -> str:
    return await pay.__wrapped__(order, note)


@AgentCacheInvalidator("order:{order}", name="resumed:settle_up")
async def renamed(order: str, note: str = "") -> str:
    return await pay.__wrapped__(order, note)


@AgentCacheInvalidator("order:{order}", name="resumed:pay")
async def with_more(order: str, note: str = "", by: str = "card") -> str:
    return await pay.__wrapped__(order, note)


def at_once(tool):
    async def program(note):
        await asyncio.gather(tool("1", note), tool("2", note))
        ship("3")

    return program


@pytest.mark.parametrize(
    ("first", "second", "note", "text", "made"),
    [
        (pays, pays, " on tuesday", r"it made resumed:pay \(call 1\)", 0),  # refused before it runs
        (pays_and_swallows, pays_and_swallows, " on tuesday", r"it made resumed:pay \(call 1\)", 0),
        (at_once(pay), at_once(moved), " on monday", r"it made resumed:pay \(call 1\).* of another module", 0),
        (at_once(pay), at_once(with_more), " on monday", r"it made resumed:pay \(call 1\).* other arguments", 0),
        # Nothing tells which task is which.
        (at_once(pay), at_once(pay), " on tuesday", "note=' on monday'.* it may have taken effect twice", 2),
        (at_once(pay), at_once(renamed), " on monday", r"call 1, resumed:pay.* it may have taken effect twice", 2),
    ],
)
def test_a_write_that_may_be_an_earlier_one_is_never_a_second_one_in_silence(
    world, directory, first, second, note, text, made
):
    dies(Journal(directory), lambda: first(" on monday"), "ship 3")
    before = Counter(world.calls)
    with pytest.raises(DivergenceError, match=text):
        journaled(Journal(directory, on_doubt="rerun"), lambda: second(note))
    assert sum((world.calls - before).values()) - world.calls["ship 3"] == made
    assert not read_journal(directory / "run.jsonl").is_sealed
    if not made:
        journaled(Journal(directory, on_doubt="rerun"), lambda: first(" on monday"))
        assert world.calls == before + Counter({"ship 3": 1})


@pytest.mark.parametrize(("dies_after", "paid"), [("ask in", 1), ("pay in", 2)])
def test_a_read_that_had_made_a_write_runs_again_though_another_process_has_its_result(
    world, directory, dies_after, paid
):
    @AgentCache("summary", name="resumed:summary")
    async def summary() -> str:
        return await pay("in") + await ask("in")

    async def program():
        return await summary(), await pay("2")

    world.dies_after = {dies_after}
    dies(Journal(directory), program)
    before = Counter(world.calls)
    asyncio.run(summary())  # as another process does, which shares its tier
    world.calls = before
    with pytest.raises(InDoubtError) if paid == 2 else contextlib.nullcontext():
        journaled(Journal(directory), program)
    assert world.calls["pay in"] == 1
    assert paid == 1 or journaled(Journal(directory, on_doubt="rerun"), program)
    assert (world.calls["pay in"], world.calls["pay 2"]) == (paid, 1)


def test_what_a_task_does_that_the_run_has_left_behind_is_refused(world, directory):
    async def program():
        async def straggler():
            await left.wait()
            with pytest.raises(JournalError, match="its run has ended with an error"):
                await pay("late")
            with pytest.raises(JournalError):
                ship("late")
            return await get_order("late")

        left = asyncio.Event()
        with pytest.raises(Killed):
            async with AgentCacheSession("run", journal=Journal(directory)):
                task = asyncio.create_task(straggler())
                await asyncio.sleep(0)
                raise Killed
        left.set()
        return await task

    asyncio.run(program())
    assert world.calls == {"get late": 1}


# What redaction has changed


def test_a_run_that_needs_what_redaction_has_removed_is_not_resumed(world, directory, caplog):
    @intercept(name="resumed:token")
    async def token(order: str) -> dict:
        WORLD.call("token")
        return {"password": "correct horse battery", "order": order}

    async def program():
        return await token("1"), await pay("1")

    dies(Journal(directory), program, "pay 1")
    assert "so this run can only be resumed with a key=" in caplog.text
    before = (directory / "run.jsonl").read_bytes()
    with pytest.raises(JournalError, match=r"the outcome of resumed:token \(call 1\) cannot be given back"):
        journaled(Journal(directory, on_doubt="rerun"), program)
    assert world.calls == {"token": 1}
    assert (directory / "run.jsonl").read_bytes() == before


def test_secrets_among_the_arguments_are_no_part_of_the_outcome_and_what_cannot_be_written_is_read_again(
    world, directory
):
    @AgentCacheInvalidator("password:{user}", name="resumed:set_password")
    async def set_password(user: str) -> str:  # its tag reads like a secret
        return "set"

    @intercept(name="resumed:log_in")
    async def log_in(password: str) -> str:
        WORLD.call("log_in")
        return "welcome"

    @intercept(name="resumed:connect")
    async def connect():
        WORLD.call("connect")
        return threading.Lock()

    @intercept(name="resumed:secret")
    async def secret() -> dict:
        return {"password": "correct horse"}

    @intercept(name="resumed:sign_in")
    async def sign_in() -> str:  # whose own outcome has none
        await secret()
        return "welcome"

    async def program():
        welcome, lock = await log_in("correct horse"), await connect()
        assert await sign_in() == welcome
        return welcome, lock.locked(), await set_password("ann7"), await pay("1")

    rules = Redaction(patterns=["password:[a-z0-9]+"])
    dies(Journal(directory, redact=rules), program, "pay 1")
    assert "horse" not in (directory / "run.jsonl").read_text()
    assert journaled(Journal(directory, redact=rules, on_doubt="rerun"), program) == ("welcome", False, "set", "paid 1")
    assert world.calls == {"log_in": 1, "connect": 2, "pay 1": 1}


def test_settings_that_the_run_was_not_begun_with_are_refused(world, directory):
    dies(Journal(directory, redact=["customer"]), lambda: pay("1"), "pay 1")
    for journal in (Journal(directory), Journal(directory, redact=["customer"], http=True)):
        with pytest.raises(ConfigurationError, match="can only be resumed with the same"):
            journaled(journal, lambda: pay("1"))
    journaled(Journal(directory, redact=["customer"], on_doubt="rerun"), lambda: pay("1"))


# Sessions


@pytest.mark.parametrize("over", [get_order, pay])
def test_trace_metrics_and_budgets_go_on_until_the_budget_is_raised(world, directory, over):
    reset()

    async def program():
        for number in range(4):
            await get_order(str(number))
        await pay("1")
        await over("over")

    async def resumed():
        session = AgentCacheSession("run", max_execution_depth=5, journal=Journal(directory, on_doubt="rerun"))
        with pytest.raises(AgentLoopDetectedError):
            async with session:
                await program()
        return session

    dies(Journal(directory), program, "pay 1")
    sizes = []
    for _ in range(3):
        session = asyncio.run(resumed())
        sizes.append((directory / "run.jsonl").stat().st_size)
        assert [one.tool for one in session.get_execution_trace()[:5]] == ["resumed:get_order"] * 4 + ["resumed:pay"]
        assert session.get_metrics()["tools"]["resumed:get_order"]["calls"] >= 4
    assert world.calls == {**{f"get {number}": 1 for number in range(4)}, "pay 1": 1}
    assert sizes[1] == sizes[2]
    assert not read_journal(directory / "run.jsonl").in_doubt
    journaled(Journal(directory), program, max_execution_depth=6)
    assert world.calls.total() == 6
    with replay(directory / "run.jsonl", strict=True):
        asyncio.run(program())


def test_checkpoints_are_written_once_and_what_came_after_them_is_found(world, directory):
    async def run(journal):
        async with AgentCacheSession("run", journal=journal) as session:
            made = []
            for number in range(3):
                await ask(str(number))
                made.append(await session.checkpoint("turn", {"number": number}, importance=0.1))
            await pay("1")
            made.append(await session.checkpoint("end", {"password": "correct horse"}))
            return made

    world.dies_in = {"pay 1"}
    with pytest.raises(Killed):
        asyncio.run(run(Journal(directory)))
    first = read_journal(directory / "run.jsonl").checkpoints
    world.dies_in = set()
    made = asyncio.run(run(Journal(directory, on_doubt="rerun")))
    journal = read_journal(directory / "run.jsonl")
    stored = journal.checkpoints
    assert made[:3] == stored[:3] == first
    assert [one.sequence for one in stored] == [one.after for one in stored] == [1, 2, 3, 4]
    assert "horse" not in (directory / "run.jsonl").read_text()
    report = asyncio.run(AutoReplayManager(journal, after=stored[1]).run())
    assert [getattr(event, "name", "checkpoint") for event in report.replayed] == [
        "resumed:ask", "checkpoint", "resumed:pay", "checkpoint",
    ]  # fmt: skip
    asyncio.run(run(Journal(directory, restart=True)))
    with pytest.raises(CheckpointError, match="of another run"):
        AutoReplayManager(read_journal(directory / "run.jsonl"), after=stored[1])


async def test_a_resumed_run_writes_the_checkpoints_that_it_had_not_made(directory):
    async def run(*checkpoints):
        with pytest.raises(Killed):
            async with AgentCacheSession("run", journal=Journal(directory)) as session:
                for label, number in checkpoints:
                    await session.checkpoint(label, {"number": number})
                raise Killed

    await run(("a", 1))
    await run(("b", 1), ("a", 2), ("a", 1))
    stored = read_journal(directory / "run.jsonl").checkpoints
    assert [(one.label, one.state.data["number"]) for one in stored] == [("a", 1), ("b", 1), ("a", 2)]


async def test_a_state_that_cannot_be_written_leaves_the_journal_and_the_run_as_they_were(directory):
    async with AgentCacheSession("run", journal=Journal(directory)) as session:
        for label, state, field in (("bad", {"connection": object()}, "connection"), ("x" * 201, {}, "label")):
            with pytest.raises(CheckpointError) as caught:
                await session.checkpoint(label, state)
            assert caught.value.field == field
        made = await session.checkpoint("good", {"a": (1,)})
    assert read_journal(directory / "run.jsonl").checkpoints == [made]
    async with AgentCacheSession("run") as session:
        with pytest.raises(ConfigurationError, match="no journal"):
            await session.checkpoint("x", {})


def test_a_read_that_is_a_write_by_now_is_answered_as_one(world, directory, caplog):
    dies(Journal(directory), lambda: asyncio.gather(get_order("1"), ask("next")), "ask next")
    changed = AgentCacheInvalidator("order:{order}", name="resumed:get_order")(get_order.__wrapped__)
    assert journaled(Journal(directory), lambda: changed("1")) == {"order": "1", "state": "open"}
    assert not caplog.messages


# A run that has ended


@pytest.mark.parametrize("program", [lambda: pay("1"), lambda: ship_later("1")])
def test_a_session_whose_run_has_ended_raises_and_runs_nothing_unless_it_begins_a_new_run(
    world, directory, program, caplog
):
    journaled(Journal(directory), program)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    for _ in range(3):
        with pytest.raises(JournalEnded, match=r"'run'.*restart=True") as caught:
            journaled(Journal(directory), program)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert (caught.value.session_id, caught.value.calls) == ("run", 1)
    assert caught.value.path == str(directory / "run.jsonl")
    assert not caplog.messages
    for count in (1, 2, 3):
        assert world.calls.total() == len(list(directory.iterdir())) == count
        journaled(Journal(directory, restart=True), program)
    assert all(read_journal(path).is_sealed for path in directory.iterdir())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"directory": ""}, "directory must be a path"),
        ({"directory": "a\0"}, "directory must be a path"),
        ({"directory": None}, "directory must be a path"),
        ({"on_doubt": "retry"}, "on_doubt"),
        ({"on_doubt": {"pay": "retry"}}, "on_doubt of pay"),
        ({"on_doubt": {len: "rerun"}}, "maps tools, or their names"),
        ({"on_doubt": {"pay": lambda arguments: None}}, r"on_doubt of pay .* check\(arguments, key\)"),
        ({"durability": "disk"}, "durability"),
        ({"key": "secret"}, "Journal: key must be"),
        ({"key": b"too short"}, "Journal: key must be"),
        ({"http": "yes"}, "http"),
        ({"redact": "password"}, "redact"),
    ],
)
def test_arguments_that_cannot_work_are_refused(directory, options, reason):
    with pytest.raises(ConfigurationError, match=reason):
        Journal(**{"directory": directory, **options})
