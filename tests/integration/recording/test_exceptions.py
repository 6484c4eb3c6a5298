"""What a call raised is raised again: class, arguments, attributes, cause, notes and groups."""

import asyncio
import json
import pickle

import pytest

from agent_cache.errors import CassetteError, DivergenceError, RecordedError, ReplayExhausted
from agent_cache.recording import intercept, record, register, replay


class Refused(Exception):
    """Its constructor takes something else than what it hands on."""

    def __init__(self, code: int, *, retry: bool = False) -> None:
        super().__init__(f"refused with {code}")
        self.code = code
        self.retry = retry


def raiser(error):
    calls = []

    @intercept(name="fail")
    async def fail() -> None:
        calls.append(1)
        raise error

    return fail, calls


async def round_trip(error, path):
    fail, calls = raiser(error)
    with record(path), pytest.raises(type(error)):
        await fail()
    with replay(path, strict=True):
        try:
            await fail()
        except BaseException as caught:
            assert calls == [1]
            return caught
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 3),
        KeyError("missing"),
        TimeoutError(),
        AssertionError(),
        OSError(2, "No such file", "x.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        asyncio.CancelledError("by itself"),
        KeyboardInterrupt(),
        ZeroDivisionError(("a", {1: "x"}, b"y")),
        StopAsyncIteration(4),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_builtin_exception_comes_back_as_itself(error, path):
    caught = await round_trip(error, path)
    assert type(caught) is type(error)
    assert caught.args == error.args
    assert str(caught) == str(error)


async def test_a_file_error_keeps_its_number_and_its_file(path):
    caught = await round_trip(FileNotFoundError(2, "No such file", "x.txt"), path)
    assert type(caught) is FileNotFoundError
    assert (caught.errno, caught.filename) == (2, "x.txt")


async def test_an_exception_of_the_tools_own_module_comes_back_with_its_attributes(path):
    caught = await round_trip(Refused(5, retry=True), path)
    assert type(caught) is Refused
    assert (caught.code, caught.retry, str(caught)) == (5, True, "refused with 5")


async def test_an_unknown_exception_is_told_by_name(path):
    caught = await round_trip(json.JSONDecodeError("bad", "doc", 0), path)
    assert type(caught) is RecordedError
    assert caught.type_name == "json.decoder:JSONDecodeError"
    assert "bad" in str(caught)


async def test_a_registered_exception_comes_back_as_itself(path):
    namespace = {"__name__": "somewhere.else"}
    exec("class Elsewhere(Exception): pass", namespace)
    unknown = namespace["Elsewhere"]
    assert type(await round_trip(unknown("x"), path)) is RecordedError
    register(unknown)
    assert type(await round_trip(unknown("x"), path.with_name("2.jsonl"))) is unknown


async def test_causes_notes_and_groups_come_back(path):
    error = ExceptionGroup("two", [ValueError("a"), Refused(6)])
    error.__cause__ = KeyError("why")
    error.add_note("a note")
    caught = await round_trip(error, path)
    assert type(caught) is ExceptionGroup
    assert [type(member) for member in caught.exceptions] == [ValueError, Refused]
    assert caught.exceptions[1].code == 6
    assert (type(caught.__cause__), caught.__notes__, caught.message) == (KeyError, ["a note"], "two")


async def test_an_exception_that_cannot_be_written_down_keeps_its_message(path):
    caught = await round_trip(ValueError("bad", object()), path)
    assert type(caught) is ValueError
    assert "bad" in str(caught)


class MadeByName(Exception):
    """Its class is made by other arguments than its base is."""

    def __new__(cls, *, code: int) -> "MadeByName":
        return super().__new__(cls, code)

    def __init__(self, *, code: int) -> None:
        self.code = code


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class Shy(Exception):
    @property
    def args(self):
        raise RuntimeError("nobody is to look at it")

    def __str__(self) -> str:
        raise RuntimeError("nor to print it")


async def test_an_exception_that_was_made_in_its_own_way_comes_back(path):
    caught = await round_trip(MadeByName(code=7), path)
    assert type(caught) is MadeByName
    assert (caught.args, caught.code) == ((7,), 7)


async def test_an_exception_that_does_not_want_to_be_changed_comes_back(path):
    error = Frozen("no", 3)
    BaseException.__setattr__(error, "__cause__", Refused(2))
    BaseException.__setattr__(error, "__notes__", ["to whom it may concern"])
    caught = await round_trip(error, path)
    assert type(caught) is Frozen
    assert caught.args == ("no", 3)
    assert type(caught.__cause__) is Refused
    assert caught.__notes__ == ["to whom it may concern"]


async def test_an_exception_that_must_not_be_looked_at_is_raised_as_it_is(path):
    """`round_trip` sees it raised while it is recorded, too: what the run sees is never the recorder's own trouble."""
    assert type(await round_trip(Shy("x"), path)) is Shy


async def test_no_class_that_a_cassette_names_is_ever_imported(path):
    fail, _ = raiser(ValueError("x"))
    with record(path), pytest.raises(ValueError):
        await fail()
    path.write_text(path.read_text().replace("builtins:ValueError", "antigravity:Boom"))
    with replay(path), pytest.raises(RecordedError, match="antigravity:Boom"):
        await fail()
    import sys

    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("name", ["os:system", "builtins:eval", "builtins:int", "builtins:print"])
async def test_what_is_no_exception_is_not_raised_and_not_called(name, path):
    fail, _ = raiser(ValueError("echo boo"))
    with record(path), pytest.raises(ValueError):
        await fail()
    path.write_text(path.read_text().replace("builtins:ValueError", name))
    with replay(path), pytest.raises(RecordedError):
        await fail()


async def test_a_cancelled_call_waits_for_its_cancellation_again(path):
    running = asyncio.Event()

    @intercept(name="slow")
    async def slow() -> None:
        running.set()
        await asyncio.Event().wait()

    async def run() -> str:
        task = asyncio.create_task(slow())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "returned"

    with record(path) as recorder:
        assert await run() == "cancelled"
    assert recorder.steps[0].outcome == {"cancelled": True}
    running.clear()
    with replay(path, strict=True):
        assert await run() == "cancelled"
    assert not running.is_set()


async def test_a_call_that_timed_out_times_out_again(path):
    @intercept(name="slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow(), 0.01)

    with record(path):
        await run()
    with replay(path, strict=True):
        await run()


async def test_an_exception_leaves_a_whole_cassette(path):
    @intercept(name="ok")
    def ok() -> int:
        return 1

    with pytest.raises(RuntimeError, match="the agent's own"), record(path) as recorder:
        ok()
        raise RuntimeError("the agent's own")
    assert recorder.cassette.trailer.ended == "raised RuntimeError"
    assert len(recorder.steps) == 1


@pytest.mark.parametrize(
    "error",
    [
        CassetteError("broken", "a.jsonl", 3),
        DivergenceError(2, {"name": "f", "arguments": {}}, None, "left over", "a.jsonl"),
        ReplayExhausted(2, None, {"name": "f", "arguments": {}}),
        RecordedError("m:E", "text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickle(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)
