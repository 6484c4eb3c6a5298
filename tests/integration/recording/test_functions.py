"""`intercept`: functions of every kind take part, and are what they were outside of recordings."""

import asyncio
import functools
import threading

import pytest

from agent_cache.recording import CassetteError, DivergenceError, ReplayExhausted, intercept, record, replay


class Switch:
    is_on = True


def real() -> None:
    assert Switch.is_on, "the real function ran"


@pytest.fixture(autouse=True)
def switch():
    Switch.is_on = True
    yield
    Switch.is_on = True


@intercept
def double(number: int) -> int:
    real()
    return number * 2


@intercept(name="greet", kind="tool")
async def greet(name: str, *, loud: bool = False) -> str:
    real()
    await asyncio.sleep(0)
    return name.upper() if loud else name


class Ask:
    async def __call__(self, question: str) -> str:
        real()
        return question + "?"


class Client:
    def __init__(self, api_key: str) -> None:
        self.api_key = api_key

    @intercept
    def get(self, path: str) -> str:
        real()
        return path

    async def ask(self, prompt: str) -> str:
        real()
        return prompt[::-1]


def later(number: int):
    """A plain function that returns something to be awaited, as many SDKs have."""

    async def answer() -> int:
        real()
        return number + 1

    return answer()


def off_and(path, **kwargs):
    Switch.is_on = False
    return replay(path, **kwargs)


async def test_every_spelling_of_a_call_is_the_same_call(path):
    async with record(path):
        await greet("ann")
    async with off_and(path):
        assert await greet(name="ann", loud=False) == "ann"


async def test_what_is_called_may_be_an_object_a_bound_method_or_a_partial(path):
    ask = intercept(Ask(), name="ask")
    bound = intercept(Client("k").ask)
    part = intercept(functools.partial(greet.__wrapped__, loud=True), name="part")
    soon = intercept(later)

    async def run() -> list[object]:
        return [await ask("why"), await bound("abc"), await part("bob"), await soon(1)]

    with record(path):
        recorded = await run()
    assert recorded == ["why?", "cba", "BOB", 2]
    with off_and(path, strict=True):
        assert await run() == recorded


def test_the_receiver_and_its_secrets_are_left_out(path):
    with record(path):
        Client("sk-1234567890abcdef1234").get("/x")
    text = path.read_text()
    assert "sk-123" not in text
    assert '"arguments":{"path":"/x"}' in text
    with off_and(path):
        assert Client("another").get("/x") == "/x"


async def test_calls_in_threads_belong_to_the_run_that_started_them(path):
    with record(path) as recorder:
        await asyncio.gather(*(asyncio.to_thread(double, number) for number in range(20)))
    assert sorted(call.arguments["number"] for call in recorder.steps) == list(range(20))
    with off_and(path):
        assert await asyncio.gather(*(asyncio.to_thread(double, number) for number in range(20))) == [
            number * 2 for number in range(20)
        ]


async def test_an_inner_call_is_not_taken_for_the_same_call_outside(path):
    answers = iter([1, 2])

    @intercept(name="draw")
    def draw() -> int:
        real()
        return next(answers)

    @intercept(name="inside")
    def inside() -> int:
        return draw()

    with record(path):
        inside()
        draw()
    with off_and(path, policy={"inside": "live"}):
        assert draw() == 2
        assert inside() == 1


def test_a_call_made_once_more_than_it_was_recorded_says_so(path):
    with record(path):
        double(1)
        double(1)
    with pytest.raises(ReplayExhausted, match="was recorded 2 times") as caught, off_and(path):
        for _ in range(3):
            double(1)
    assert caught.value.call_id == 2
    assert caught.value.expected == {"name": double.__agent_cache_recorded__.name, "arguments": {"number": 1}}


def test_a_call_that_is_not_recorded_names_the_nearest_and_what_differs(path):
    with record(path):
        double(1)
        double(4000)
    with pytest.raises(DivergenceError, match="number: 4000 -> 4001") as caught, off_and(path) as player:
        double(4001)
    assert caught.value.call_id == 2
    assert caught.value.actual["arguments"] == {"number": 4001}
    assert player.divergences == [{"call_id": 2, "expected": caught.value.expected, "actual": caught.value.actual}]


def test_a_divergence_tells_a_number_from_its_text(path):
    with record(path):
        double("1")
    with pytest.raises(DivergenceError, match="number: '1' -> 1\n"), off_and(path):
        double(1)


def test_a_stop_iteration_of_a_plain_function_is_recorded_as_one(path):
    follow = intercept(iter([1]).__next__, name="follow")
    with record(path) as recorder:
        assert follow() == 1
        with pytest.raises(StopIteration):
            follow()
    assert recorder.steps[1].outcome["error"]["type"] == "builtins:StopIteration"
    with replay(path), pytest.raises(StopIteration):
        while follow():
            pass


def test_a_divergence_that_was_swallowed_is_raised_at_the_end(path):
    with record(path):
        double(1)
    with pytest.raises(DivergenceError, match="was not recorded"), off_and(path):
        try:
            double(2)
        except Exception:
            pass


def test_strict_refuses_what_is_left_over(path):
    with record(path):
        double(1)
        double(2)
    with pytest.raises(DivergenceError, match="1 recorded calls were not made") as caught, off_and(path, strict=True):
        double(1)
    assert (caught.value.call_id, caught.value.actual) == (2, None)
    with off_and(path):
        double(1)


async def test_two_recordings_in_one_loop_do_not_see_each_other(tmp_path):
    async def run(name: str, numbers: range) -> None:
        with record(tmp_path / name):
            for number in numbers:
                await greet(f"{name}{number}")

    await asyncio.gather(run("a", range(5)), run("b", range(3)), greet("outside"))
    with record(tmp_path / "c") as recorder:
        pass
    assert len(recorder.steps) == 0
    for name, count in (("a", 5), ("b", 3)):
        with replay(tmp_path / name, strict=True):
            assert [await greet(f"{name}{number}") for number in range(count)] == [f"{name}{n}" for n in range(count)]


def test_a_thread_without_the_context_is_outside_and_that_is_said_once(path, caplog):
    alone = intercept(lambda number: number, name="alone")
    alone(0)
    with record(path) as recorder:
        for number in range(2):
            thread = threading.Thread(target=alone, args=(number,))
            thread.start()
            thread.join()
    assert len(recorder.steps) == 0
    assert [
        message for message in caplog.messages if "copy_context" in message and "alone ran" in message
    ] == caplog.messages
    assert len(caplog.messages) == 1


def letters():
    real()
    yield "a"


@pytest.mark.parametrize("options", [{"strict": True}, {"policy": {"alone": "forbid"}}], ids=["strict", "forbid"])
@pytest.mark.parametrize("function", [lambda: real(), letters], ids=["plain", "stream"])
async def test_a_thread_without_the_context_is_refused_where_nothing_may_run(function, options, path):
    """It may belong to the run, and cannot tell: an executor's thread does not know who has sent it work."""
    alone = intercept(function, name="alone")

    def run() -> None:
        list(alone() or ())

    with record(path):
        await asyncio.to_thread(run)
    block = off_and(path, **options)
    with pytest.raises(CassetteError, match="copy_context"), block:
        try:
            await asyncio.get_running_loop().run_in_executor(None, run)
        except CassetteError:
            pass
    Switch.is_on = True
    with pytest.raises(DivergenceError, match="not made"), replay(path, strict=True, policy={"alone": "live"}):
        await asyncio.get_running_loop().run_in_executor(None, run)
