"""What a call raised is raised again: class, arguments, attributes, cause, notes and groups."""

import asyncio
import io
import json
import pickle
import subprocess
import sys
import textwrap
import types
import urllib.error
from datetime import datetime
from email.message import Message

import pytest

from agent_cache import AgentCache
from agent_cache.errors import CassetteError, RecordedError
from agent_cache.recording import Cassette, intercept, record, register, replay


class Refused(Exception):
    """Its constructor takes something else than what it hands on. Classes of attrs have slots, too."""

    __slots__ = ("code",)

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
        OSError(2, "No such file", "x.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        asyncio.CancelledError("by itself"),
        KeyboardInterrupt(),
        ZeroDivisionError(("a", {1: "x"}, b"y")),
        StopAsyncIteration(4),
        json.JSONDecodeError("bad", '{"a": ', 6),
        subprocess.CalledProcessError(3, ["git", "push"], b"out", "err"),
        urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")),
        asyncio.IncompleteReadError(b"ab", 5),
        Refused(5, retry=True),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_exception_of_a_known_class_comes_back_as_itself(error, path, caplog):
    caught = await round_trip(error, path)
    assert type(caught) is type(error)
    assert (repr(caught.args), str(caught)) == (repr(error.args), str(error))
    assert {name: repr(value) for name, value in vars(caught).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }
    assert not caplog.records


@pytest.mark.parametrize("decorator", [AgentCache("number"), intercept(name="take")], ids=["tool", "function"])
def test_a_plain_function_may_raise_stop_iteration(decorator, path):
    """Which the coroutine of the engine that runs a tool cannot."""
    made = iter([3])
    take = decorator(lambda at: next(made))
    for block in (record(path), replay(path, strict=True)):
        with block:
            assert take(1) == 3
            with pytest.raises(StopIteration):
                take(2)
    assert Cassette.load(path)[1].outcome["error"]["type"] == "builtins:StopIteration"


async def test_a_registered_exception_comes_back_as_itself_and_an_unknown_one_by_its_name(path):
    namespace = {"__name__": "somewhere.else"}
    exec("class Elsewhere(Exception): pass", namespace)
    unknown = namespace["Elsewhere"]
    caught = await round_trip(unknown("bad", 1), path)
    assert type(caught) is RecordedError
    assert str(caught) == f"{caught.type_name}: ('bad', 1)"
    register(unknown)
    assert type(await round_trip(unknown("x"), path.with_name("2.jsonl"))) is unknown


async def test_an_attribute_that_cannot_be_written_is_said_while_recording(path, caplog):
    error = Refused(5)
    error.client = object()
    caught = await round_trip(error, path)
    assert (type(caught), caught.code) == (Refused, 5)
    [warning] = [entry.getMessage() for entry in caplog.records if "recording to" in entry.getMessage()]
    assert "Refused, which a replay raises as RecordedError or without parts of it" in warning
    fail, _ = raiser(error)
    with pytest.raises(CassetteError, match="without parts of it"), record(path, strict=True), pytest.raises(Refused):
        await fail()


class ShopError(urllib.error.HTTPError):
    """One of a client that is built on urllib."""


@pytest.mark.parametrize("kind", [urllib.error.HTTPError, ShopError])
async def test_an_error_of_urllib_comes_back_without_its_body(kind, path):
    caught = await round_trip(kind("http://shop/", 429, "busy", Message(), io.BytesIO(b"slow")), path)
    assert (type(caught), caught.code, str(caught)) == (kind, 429, "HTTP Error 429: busy")
    assert (caught.read(), caught.headers.get("retry-after"), hasattr(caught, "other")) == (b"", None, False)


class Lost(Exception):
    """Says what only an object says that no file can have, as a connection."""

    def __init__(self, connection: object) -> None:
        self.connection = connection
        self.status = 403

    def __str__(self) -> str:
        return f"lost {type(self.connection).__name__}"

    __repr__ = __str__  # as that of aiohttp's errors


async def test_an_exception_that_would_say_something_else_is_one_of_its_class_with_its_text(path):
    caught = await round_trip(Lost(iter(())), path)
    assert isinstance(caught, Lost)
    assert isinstance(caught, RecordedError)
    assert (str(caught), caught.status) == (f"{__name__}:Lost: lost tuple_iterator", 403)
    assert repr(caught) == f"RecordedError('{__name__}:Lost', 'lost tuple_iterator')"


@pytest.mark.parametrize("base", [KeyError, OSError, UnicodeDecodeError, SystemExit])
async def test_an_exception_of_an_unknown_class_is_of_the_nearest_builtin_class(base, path, monkeypatch):
    module = types.ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    source = f"""
        class Base({base.__name__}):
            def __init__(self): pass
            def __str__(self): return "what it says"
        class Deeper(Base): pass
    """
    exec(textwrap.dedent(source), vars(module))
    fail, _ = raiser(module.Deeper.__new__(module.Deeper))
    with record(path), pytest.raises(module.Deeper):
        await fail()
    monkeypatch.delitem(sys.modules, "elsewhere")
    with replay(path, strict=True), pytest.raises(base) as raised:
        await fail()
    caught = raised.value
    assert isinstance(caught, RecordedError)
    assert (caught.type_name, str(caught)) == ("elsewhere:Deeper", "elsewhere:Deeper: what it says")
    copy = pickle.loads(pickle.dumps(caught))
    assert (type(copy), str(copy), vars(copy)) == (type(caught), str(caught), vars(caught))


async def test_a_validation_error_of_pydantic_comes_back_with_its_errors(path, caplog):
    pydantic = pytest.importorskip("pydantic")

    class Line(pydantic.BaseModel):
        sku: str = pydantic.Field(min_length=3)
        count: int

        @pydantic.field_validator("count")
        @classmethod
        def check(cls, count: int) -> int:
            if count == 1:
                raise ValueError("one is {too} few")
            assert count != 4, "not four"
            return count

    class Order(pydantic.BaseModel):
        lines: list[Line]
        at: datetime

    given = [{"sku": "a", "count": "x"}, *({"sku": "abc", "count": count} for count in (1, 4)), {}]
    with pytest.raises(pydantic.ValidationError) as raised:
        Order.model_validate({"lines": given, "at": (1, 2)})
    caught = await round_trip(raised.value, path)
    assert type(caught) is pydantic.ValidationError
    assert (str(caught), caught.title) == (str(raised.value), "Order")
    assert repr(caught.errors()) == repr(raised.value.errors())
    assert not caplog.records
    with pytest.raises(pydantic.ValidationError) as raised:
        pydantic.create_model("Login", password=(int, ...)).model_validate({"password": "hunter2 hunter2"})
    assert (await round_trip(raised.value, path)).errors()[0]["input"] == "[redacted]"


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_an_http_status_error_comes_back_with_its_response(library, path, caplog):
    httpx = pytest.importorskip(library)
    request = httpx.Request(
        "POST", "https://api.example.com/v1?page=2", headers={"authorization": "Bearer s3cret0s3cret0"}
    )
    response = httpx.Response(429, headers=[("Retry-After", "7")], json={"error": "slow down"}, request=request)
    with pytest.raises(httpx.HTTPStatusError) as raised:
        response.raise_for_status()
    raised.value.__cause__ = TimeoutError("deep down")
    caught = await round_trip(raised.value, path)
    assert type(caught) is httpx.HTTPStatusError
    assert (str(caught), repr(caught.__cause__)) == (str(raised.value), "TimeoutError('deep down')")
    assert (caught.response.status_code, caught.response.json()) == (429, {"error": "slow down"})
    assert caught.response.headers["retry-after"] == "7"
    assert (caught.request.method, str(caught.request.url)) == ("POST", "https://api.example.com/v1?page=2")
    assert "s3cret0" not in path.read_text()
    assert not caplog.records


async def test_causes_notes_and_groups_come_back(path):
    error = ExceptionGroup("two", [ValueError("a"), Refused(6)])
    error.__cause__ = KeyError("why")
    error.add_note("a note")
    caught = await round_trip(error, path)
    assert type(caught) is ExceptionGroup
    assert [type(member) for member in caught.exceptions] == [ValueError, Refused]
    assert caught.exceptions[1].code == 6
    assert (type(caught.__cause__), caught.__notes__, caught.message) == (KeyError, ["a note"], "two")

    class Several(ExceptionGroup):
        """One that is not found by its name."""

    caught = await round_trip(Several("all", [ValueError("a")]), path)
    assert isinstance(caught, RecordedError)
    assert isinstance(caught, ExceptionGroup)
    assert repr(caught.exceptions) == "(ValueError('a'),)"


async def test_no_class_that_a_cassette_names_is_ever_imported(path, caplog):
    fail, _ = raiser(ValueError("x"))
    with record(path), pytest.raises(ValueError):
        await fail()
    path.write_text(path.read_text().replace("builtins:ValueError", "antigravity:Boom"))
    with replay(path), pytest.raises(RecordedError, match="antigravity:Boom"):
        await fail()
    assert "antigravity" not in sys.modules
    assert "fail: raised antigravity:Boom when it was recorded, which is not found here" in caplog.text
