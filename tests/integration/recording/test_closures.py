"""Functions that one factory has made have one name. If they bind other texts or numbers they need `name=`."""

import asyncio
import contextlib
import functools
import logging
import threading

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.core.wrappers import called_by
from agent_cache.recording import CassetteError, cached_llm_call, intercept, record, replay

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


def of_wrapper(deco, host):
    def with_host(function):
        @functools.wraps(function)
        async def call(q: str) -> str:
            return f"{host}:{await function(q)}"

        return call

    async def fetch(q: str) -> str:
        return q

    return deco(with_host(fetch))


def of_name(deco, host):
    return of_text(lambda function: deco(name=f"fetch {host}")(function), host)


def of_partial(deco, host):
    async def fetch(host, q: str) -> str:
        return f"{host}:{q}"

    return deco(functools.partial(fetch, host))


OF_TEXT = [of_text, of_wrapper, of_partial]
OF_OBJECTS = [of_object]


async def both(one, other):
    return [await one("x"), await other("x")]


@pytest.fixture(autouse=True)
def warned(caplog):
    caplog.set_level(logging.WARNING, "agent_cache")
    return caplog


@pytest.mark.parametrize("deco", DECORATORS)
@pytest.mark.parametrize("factory", OF_TEXT)
def test_two_that_bind_other_texts_are_refused_before_the_second_runs(tmp_path, deco, factory):
    eu, us = factory(DECORATORS[deco], "eu"), factory(DECORATORS[deco], "us")
    got = []

    async def agent():
        got.append(await eu("x"))
        with contextlib.suppress(CassetteError):  # it is raised again at the end
            got.append(await us("x"))

    with pytest.raises(CassetteError, match=r"two functions of the name .*name="), record(tmp_path / "r"):
        asyncio.run(agent())
    with pytest.raises(CassetteError, match=r"two functions of the name .*name="), replay(tmp_path / "r"):
        asyncio.run(agent())
    assert got == ["eu:x", "eu:x"]


@pytest.mark.parametrize("deco", DECORATORS)
@pytest.mark.parametrize("factory", OF_OBJECTS)
def test_a_strict_recording_of_two_that_bind_different_things_asks_for_names(tmp_path, deco, factory):
    one, other = factory(DECORATORS[deco], "eu"), factory(DECORATORS[deco], "us")
    with pytest.raises(CassetteError, match=r"two functions of the name .*name="), record(tmp_path / "r", strict=True):
        asyncio.run(both(one, other))


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
