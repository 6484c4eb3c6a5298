"""Functions that one factory has made have one name. If they bind other texts or numbers they need `name=`."""

import asyncio
import contextlib
import functools
import inspect
import logging

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator
from agent_cache.recording import CassetteError, cached_llm_call, intercept, record, replay


class Client:
    """An object, which may be the same as another one."""

    def __str__(self):
        return "client"


DECORATORS = {
    "AgentCache": AgentCache("page:{q}"),
    "AgentCacheInvalidator": AgentCacheInvalidator("page:{q}"),
    "intercept": intercept,
    "cached_llm_call": cached_llm_call(),
}
REFUSED = pytest.raises(CassetteError, match=r"two functions have this name.*name=")


def of_text(deco, host):
    @deco
    async def fetch(q: str) -> str:
        return f"{host}:{q}"

    return fetch


def of_wrapper(deco, host):
    async def fetch(q: str) -> str:
        return q

    def with_host(function):
        @functools.wraps(function)
        async def call(q: str) -> str:
            return f"{host}:{await function(q)}"

        return call

    return deco(with_host(fetch))


def of_partial(deco, host):
    async def fetch(host, q: str) -> str:
        return f"{host}:{q}"

    return deco(functools.partial(fetch, host))


OF_TEXT = [of_text, of_wrapper, of_partial]


def both(one, other):
    async def run():
        return [await one("x"), await other("x")]

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def warned(caplog):
    caplog.set_level(logging.WARNING, "agent_cache")
    return caplog


@pytest.mark.parametrize("deco", DECORATORS)
@pytest.mark.parametrize("factory", OF_TEXT)
def test_two_that_bind_other_texts_are_refused_before_the_second_runs(path, deco, factory):
    eu, us = factory(DECORATORS[deco], "eu"), factory(DECORATORS[deco], "us")
    got = []

    async def agent():
        got.append(await eu("x"))
        with contextlib.suppress(CassetteError):  # it is raised again at the end
            got.append(await us("x"))

    for block in (record(path), replay(path)):
        with REFUSED, block:
            asyncio.run(agent())
    assert got == ["eu:x", "eu:x"]


@pytest.mark.parametrize("deco", DECORATORS)
def test_two_that_bind_other_objects_are_refused_by_a_strict_recording_and_warned_of_by_others(path, deco, warned):
    def named(function):
        """It warns once of a name, and other tests have these."""
        inner = inspect.unwrap(function)
        inner = inner.func if isinstance(inner, functools.partial) else getattr(inner, "__func__", inner)
        inner.__qualname__ = f"warned_{deco}"
        return DECORATORS[deco](function)

    one, other = of_text(named, Client()), of_text(named, Client())
    with REFUSED, record(path, strict=True):
        both(one, other)
    with record(path):
        both(one, other)
    assert [text for text in warned.messages if "two functions have this name" in text and "name=" in text]


@pytest.mark.parametrize("factory", OF_TEXT)
def test_two_that_bind_the_same_are_one_function(path, factory, warned):
    """A program may make its tools anew for each conversation."""
    for block in (record(path, strict=True), replay(path, strict=True)):
        with block:
            assert both(factory(intercept, "eu"), factory(intercept, "eu")) == ["eu:x", "eu:x"]
    assert not [text for text in warned.messages if "two functions" in text]
