"""Functions that one factory has made have one name. What they bind tells their calls apart, where it is plain data;
else they need `name=`.
"""

import asyncio
import contextlib
import functools
import logging
import threading

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession
from agent_cache.core.wrappers import called_by
from agent_cache.recording import CassetteError, cached_llm_call, intercept, record, replay
from agent_cache.resume import Journal
from tests.harness.slow import slow

DECORATORS = {
    "AgentCache": AgentCache("page:{q}"),
    "AgentCacheInvalidator": AgentCacheInvalidator("page:{q}"),
    "intercept": intercept,
    "cached_llm_call": cached_llm_call(),
}


class Client:
    def __init__(self, host):
        self.host = host
        self.lock = threading.Lock()


def of_text(deco, host):
    @deco
    async def fetch(q: str) -> str:
        return f"{host}:{q}"

    return fetch


def of_object(deco, host):
    client = Client(host)

    @deco
    async def fetch(q: str) -> str:
        return f"{client.host}:{q}"

    return fetch


def of_helper(deco, host):
    def url(q):
        return f"{host}:{q}"

    @deco
    async def fetch(q: str) -> str:
        return url(q)

    return fetch


def of_wrapper(deco, host):
    def with_host(function):
        @functools.wraps(function)
        async def call(q: str) -> str:
            return f"{host}:{await function(q)}"

        return call

    async def fetch(q: str) -> str:
        return q

    return deco(with_host(fetch))


def of_keyword_default(deco, host):
    def url(q, *, at=host):
        return f"{at}:{q}"

    @deco
    async def fetch(q: str) -> str:
        return url(q)

    return fetch


def of_name(deco, host):
    return of_text(lambda function: deco(name=f"fetch {host}")(function), host)


def of_partial(deco, host):
    async def fetch(host, q: str) -> str:
        return f"{host}:{q}"

    return deco(functools.partial(fetch, host))


def of_partial_of_objects(deco, host):
    async def fetch(client, q: str) -> str:
        return f"{client.host}:{q}"

    return deco(functools.partial(fetch, Client(host)))


OF_TEXT = [of_text, of_helper, of_wrapper, of_keyword_default, of_partial]
OF_OBJECTS = [of_object, of_partial_of_objects]


async def both(one, other):
    return [await one("x"), await other("x")]


@pytest.fixture(autouse=True)
def warned(caplog):
    caplog.set_level(logging.WARNING, "agent_cache")
    return caplog


@pytest.mark.parametrize("strict", [False, *slow(True)])
@pytest.mark.parametrize("deco", DECORATORS)
@pytest.mark.parametrize("factory", OF_TEXT)
def test_what_two_bind_tells_their_calls_apart(tmp_path, deco, factory, strict, warned):
    def tools():
        return factory(DECORATORS[deco], "eu"), factory(DECORATORS[deco], "us")

    with record(tmp_path / "r", strict=True):
        asyncio.run(both(*tools()))
    with replay(tmp_path / "r", strict=True):
        assert asyncio.run(both(*tools())) == ["eu:x", "us:x"]
    if not strict:
        eu, us = tools()
        with replay(tmp_path / "r"):
            assert asyncio.run(both(us, eu)) == ["us:x", "eu:x"]
        with replay(tmp_path / "r"):
            assert asyncio.run(us("x")) == "us:x"
    eu, us = tools()
    with pytest.raises(CassetteError) if strict else contextlib.nullcontext(), replay(tmp_path / "r", strict=strict):
        asyncio.run(both(us, eu))
    assert not [text for text in warned.messages if "two functions" in text]


@pytest.mark.parametrize("order", ["eu us", "us eu"])
def test_a_resumed_journal_tells_them_apart(tmp_path, order):
    ran = []

    def make(host):
        @intercept
        async def fetch(q: str) -> str:
            ran.append(host)
            return f"{host}:{q}"

        return fetch

    class Killed(BaseException):
        pass

    async def agent(hosts, *, is_killed):
        async with AgentCacheSession(journal=Journal(tmp_path), session_id="run"):
            found = [await make(host)("x") for host in hosts]
            if is_killed:
                raise Killed
            return found

    with pytest.raises(Killed):
        asyncio.run(agent(["eu", "us"], is_killed=True))
    assert asyncio.run(agent(order.split(), is_killed=False)) == [f"{host}:x" for host in order.split()]
    assert ran == ["eu", "us"]


def test_a_value_that_differs_from_run_to_run_keeps_no_replay_from_its_calls(tmp_path):
    def make(folder):
        @intercept
        async def read(q: str) -> str:
            return f"{q} {len(folder)}"

        return read

    with record(tmp_path / "r", strict=True):
        asyncio.run(make("/tmp/1")("x"))
    with replay(tmp_path / "r", strict=True):
        assert asyncio.run(make("/tmp/2")("x")) == "x 6"


@pytest.mark.parametrize("deco", DECORATORS)
@pytest.mark.parametrize("factory", OF_OBJECTS)
def test_a_strict_recording_of_two_that_bind_different_things_asks_for_names(tmp_path, deco, factory):
    one, other = factory(DECORATORS[deco], "eu"), factory(DECORATORS[deco], "us")
    with pytest.raises(CassetteError, match=r"two functions of the name .*name="), record(tmp_path / "r", strict=True):
        asyncio.run(both(one, other))


@pytest.mark.parametrize("factory", OF_OBJECTS)
def test_a_strict_replay_refuses_the_second_one_before_it_has_an_answer(tmp_path, factory):
    one, other = factory(intercept, "eu"), factory(intercept, "us")
    got = []

    async def agent():
        got.append(await other("x"))
        got.append(await one("x"))

    with record(tmp_path / "r"):
        asyncio.run(both(one, other))
    with pytest.raises(CassetteError, match="name="), replay(tmp_path / "r", strict=True):
        asyncio.run(agent())
    assert len(got) == 1


@pytest.mark.parametrize("factory", OF_OBJECTS)
def test_a_recording_warns_of_two_that_bind_different_things(tmp_path, factory, warned):
    def named(function):
        """It warns once of a name, and other tests have these."""
        called_by(function).__qualname__ = f"warned_{factory.__name__}"
        return intercept(function)

    one, other = factory(named, "eu"), factory(named, "us")
    with record(tmp_path / "r"):
        asyncio.run(both(one, other))
    assert [text for text in warned.messages if "two functions of the name" in text and "name=" in text]


@pytest.mark.parametrize("factory", OF_TEXT)
def test_two_that_bind_the_same_are_one_function(tmp_path, factory, warned):
    """A program may make its tools anew for each conversation."""
    with record(tmp_path / "r", strict=True):
        asyncio.run(both(factory(intercept, "eu"), factory(intercept, "eu")))
    with replay(tmp_path / "r", strict=True):
        assert asyncio.run(both(factory(intercept, "eu"), factory(intercept, "eu"))) == ["eu:x", "eu:x"]
    assert not [text for text in warned.messages if "two functions" in text]


def test_two_that_have_names_are_told_apart(tmp_path):
    eu, us = of_name(intercept, "eu"), of_name(intercept, "us")
    with record(tmp_path / "r", strict=True):
        asyncio.run(both(eu, us))
    with replay(tmp_path / "r", strict=True):
        assert asyncio.run(both(eu, us)) == ["eu:x", "us:x"]
    with replay(tmp_path / "r"):
        assert asyncio.run(both(us, eu)) == ["us:x", "eu:x"]


def test_a_function_that_calls_itself_is_compared_to_its_end(tmp_path):
    def make(start):
        @intercept
        async def count(n: int) -> int:
            return start if not n else 1 + await inner(n - 1)

        async def inner(n):
            return await count(n)

        return count

    with record(tmp_path / "r", strict=True):
        assert asyncio.run(both_counts(make(1), make(1))) == [4, 4]


async def both_counts(one, other):
    return [await one(3), await other(3)]
