"""`intercept`: functions of every kind take part, and are what they were outside of recordings."""

import asyncio
import functools
import random
import threading
import time
import uuid
from datetime import UTC, datetime

import pytest

from agent_cache import recording
from agent_cache.recording import Cassette, CassetteError, DivergenceError, ReplayExhausted, intercept, record, replay


@intercept(name="double")
def double(number: int) -> int:
    return number * 2


@intercept(name="greet", kind="tool")
async def greet(name: str, *, loud: bool = False) -> str:
    await asyncio.sleep(0)
    return name.upper() if loud else name


class Client:
    def __init__(self, api_key: str, stage) -> None:
        self.api_key, self.stage = api_key, stage

    async def __call__(self, question: str) -> str:
        self.stage.real()
        return question + "?"

    @intercept
    def get(self, path: str) -> str:
        self.stage.real()
        return path

    async def ask(self, prompt: str) -> str:
        self.stage.real()
        return prompt[::-1]

    def later(self, number: int):
        """A plain function that returns something to be awaited, as many SDKs have."""

        async def answer() -> int:
            self.stage.real()
            return number + 1

        return answer()


async def test_what_is_called_may_be_an_object_a_method_or_a_partial_and_its_receiver_is_no_argument(stage, path):
    def agent(api_key):
        client = Client(api_key, stage)
        ask, bound = intercept(client, name="ask"), intercept(client.ask)
        part, soon = intercept(functools.partial(greet.__wrapped__, loud=True), name="part"), intercept(client.later)

        async def run() -> list[object]:
            return [client.get("/x"), await ask("why"), await bound("abc"), await part("bob"), await soon(1)]

        return run

    assert await stage.twice(agent("sk-1234567890abcdef1234"), agent("another")) == ["/x", "why?", "cba", "BOB", 2]
    assert "sk-123" not in path.read_text()
    assert '"arguments":{"path":"/x"}' in path.read_text()


def test_every_spelling_of_a_call_is_the_same_call_and_the_same_line(path):
    take = intercept(lambda a, b=1: [a, b], name="take")
    spellings = [
        lambda: take(3), lambda: take(3, 1), lambda: take(3, b=1), lambda: take(a=3, b=1), lambda: take(b=1, a=3)
    ]  # fmt: skip
    lines = set()
    for one in spellings:
        with record(path):
            one()
        lines.add(path.read_bytes().splitlines()[1])
        for other in spellings:
            with replay(path, strict=True):
                assert other() == [3, 1]
    assert len(lines) == 1


async def test_an_inner_call_is_not_taken_for_the_same_call_outside(stage, path):
    answers = iter([1, 2])
    draw = intercept(lambda: stage.real() or next(answers), name="draw")
    inside = intercept(lambda: draw(), name="inside")
    await stage.twice(lambda: [inside(), draw()])
    with replay(path, policy={"inside": "live"}):
        assert [draw(), inside()] == [2, 1]


TOOLS = "what each tool does " * 99  # the end of each request
DIVERGENCES = {
    "once more": ([1, 1], [1, 1, 1], ReplayExhausted, "was recorded 2 times", 2),
    "the nearest": ([1, 4000], [4001], DivergenceError, "number: 4000 -> 4001", 2),
    "a turn of a conversation": (
        [["Where?", TOOLS], ["Where?", "look it up " * 9, f"late{' ' * 60}", TOOLS]],
        [["Where?", TOOLS], ["Where?", "look it up " * 9, "late", TOOLS]],
        *(DivergenceError, r"number\[2\]: late\[-", 2),
    ),
    "its beginning": (["2" + TOOLS[:-9] + "elsewhere", "1" + TOOLS], ["2" + TOOLS], DivergenceError, "is call 2,", 2),
    "what is new in each run": (["at 10:01"], ["at 10:02"], DivergenceError, r"recording\.now\(\)", 1),
    "a number and its text": (["1"], [1], DivergenceError, "number: '1' -> 1\n", 1),
    "left over, if it is strict": ([1, 2], [1], DivergenceError, "1 recorded calls were not made", 2),
}


@pytest.mark.parametrize("is_swallowed", [False, True])
@pytest.mark.parametrize("case", DIVERGENCES)
def test_a_call_that_is_not_recorded_names_the_nearest_and_what_differs(case, is_swallowed, path):
    """At the end, too, if something has swallowed it."""
    recorded, called, error, text, number = DIVERGENCES[case]
    with record(path):
        for one in recorded:
            double(one)
    is_left = called == recorded[: len(called)]
    with pytest.raises(error, match=text) as caught, replay(path, strict=is_left) as player:
        try:
            for one in called:
                double(one)
        except CassetteError:
            if not is_swallowed:
                raise
    assert caught.value.call_id == number
    assert caught.value.expected == {"name": "double", "arguments": {"number": recorded[-1]}}
    assert caught.value.actual == (None if is_left else {"name": "double", "arguments": {"number": called[-1]}})
    assert player.divergences == [{"call_id": number, "expected": caught.value.expected, "actual": caught.value.actual}]


@pytest.mark.parametrize("now", ["shop:Shop.look", "shop:look", "__main__:Shop.find"])
def test_a_function_that_was_recorded_under_another_name_is_named(now, path):
    """A file that was run as a program has the module __main__, and another one in a test."""
    with record(path):
        intercept(lambda number: 1, name="__main__\x1b:Shop.look")(7)  # a terminal would obey
    with pytest.raises(DivergenceError, match=r"but of __main__\\x1b:Shop\.look.*by name="), replay(path):
        intercept(lambda number: 1, name=now)(7)


async def test_two_recordings_in_one_loop_do_not_see_each_other(tmp_path):
    async def run(name: str, numbers: range) -> None:
        with record(tmp_path / name):
            for number in numbers:
                await greet(f"{name}{number}")

    await asyncio.gather(run("a", range(5)), run("b", range(3)), greet("outside"))
    for name, count in (("a", 5), ("b", 3)):
        with replay(tmp_path / name, strict=True):
            assert [await greet(f"{name}{number}") for number in range(count)] == [f"{name}{n}" for n in range(count)]


# Threads without a context


def test_a_thread_without_the_context_is_outside_and_that_is_said_once(path, caplog):
    alone = intercept(lambda number: number, name="alone")
    alone(0)
    with record(path) as recorder:
        for number in range(2):
            thread = threading.Thread(target=alone, args=(number,))
            thread.start()
            thread.join()
    assert len(recorder.steps) == 0
    [message] = caplog.messages
    assert "alone: ran in a thread" in message
    assert "copy_context" in message


@pytest.mark.parametrize("options", [{"strict": True}, {"policy": {"alone": "forbid"}}], ids=["strict", "forbid"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_thread_without_the_context_is_refused_where_nothing_may_run(is_stream, options, stage, path):
    """It may belong to the run, and cannot tell: an executor's thread does not know who has sent it work."""

    def letters():
        stage.real()
        yield "a"

    alone = intercept(letters if is_stream else stage.real, name="alone")

    def run() -> None:
        list(alone() or ())

    with record(path):
        await asyncio.to_thread(run)
    with pytest.raises(CassetteError, match="copy_context"), stage.replay(**options):
        try:
            await asyncio.get_running_loop().run_in_executor(None, run)
        except CassetteError:
            pass
    stage.is_live = True
    with pytest.raises(DivergenceError, match="not made"), replay(path, strict=True, policy={"alone": "live"}):
        await asyncio.get_running_loop().run_in_executor(None, run)


# Clock, identifiers, chance


async def test_a_replay_gives_back_times_and_chance_and_nothing_global_is_patched(stage, path):
    def look():
        assert (time.time, random.random, uuid.uuid4, type(random.random())) == (*before, float)
        return recording.now(), recording.uuid4(), recording.random(), recording.now(None), recording.random()

    before = time.time, random.random, uuid.uuid4
    began = datetime.now(UTC)
    moment, identifier, number, local, other = recorded = await stage.twice(look)
    assert look() != recorded
    assert began <= moment <= datetime.now(UTC)
    assert (local.tzinfo, type(identifier), 0 <= number < 1, number != other) == (None, uuid.UUID, True, True)
    assert [call.kind for call in Cassette.load(path)] == ["env"] * 5
