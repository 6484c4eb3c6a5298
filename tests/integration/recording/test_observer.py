"""`observe` shows the calls of a run to listeners; and what a recording says of a write."""

import asyncio
import logging

import msgspec
import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, ConfigurationError
from agent_cache.recording import Cassette, DivergenceError, Redaction, intercept, observe, record, replay


class Seen:
    """A listener that keeps what it is shown."""

    def __init__(self):
        self.starts, self.ends, self.closed = [], [], []

    def on_start(self, call):
        self.starts.append(call)

    def on_end(self, call):
        self.ends.append(call)

    def on_close(self, error):
        self.closed.append(error)


@intercept(name="look")
def look(number: int) -> int:
    return number


@intercept(name="fetch")
async def fetch(number: int) -> int:
    await asyncio.sleep(0)
    return number


@intercept(name="outer")
async def outer(*numbers: int) -> list[int]:
    return await asyncio.gather(*map(fetch, numbers))


@intercept(name="fail")
def fail() -> None:
    raise LookupError("gone")


@AgentCache(resource="order:{order_id}")
async def get_order(order_id: str) -> str:
    return f"order {order_id}"


@AgentCacheInvalidator(resource="order:{order_id}")
async def cancel_order(order_id: str, password: str = "") -> str:
    return "cancelled"


async def run() -> None:
    await outer(1, 2)
    look(3)
    with pytest.raises(LookupError):
        fail()
    await get_order("7")
    await get_order("7")
    await cancel_order("7")


def said(calls):
    """What calls say, other than when they were made and which number they have."""
    same = {"id": 0, "parent": None, "after": 0, "lane": 0, "forked": 0, "started_ms": 0, "duration_ms": 0}
    return sorted(map(repr, (msgspec.structs.replace(call, **same) for call in calls)))


async def test_a_listener_sees_what_a_recording_writes(path):
    seen = Seen()
    with record(path), observe(seen):
        await run()
    assert said(seen.ends) == said(Cassette.load(path))
    assert [call.id for call in seen.starts] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(call.outcome == {"unfinished": True} for call in seen.starts)
    assert seen.closed == [None]


async def test_calls_pass_through_to_the_replay_around_it(path):
    with record(path):
        assert await fetch(1) == 1
    seen = Seen()
    with pytest.raises(DivergenceError), replay(path), observe(seen):
        assert await fetch(1) == 1
        await fetch(2)
    assert seen.ends[0].outcome == {"value": 1}
    assert seen.ends[1].outcome["error"]["type"] == "agent_cache.errors:DivergenceError"
    assert [type(error) for error in seen.closed] == [DivergenceError]


async def test_a_listener_that_raises_is_removed_and_the_run_goes_on(caplog):
    class Broken(Seen):
        def on_end(self, call):
            raise ValueError("broken")

    broken, seen = Broken(), Seen()
    with caplog.at_level(logging.ERROR, "agent_cache"), observe(broken, seen):
        assert [look(1), look(2)] == [1, 2]
    assert len(broken.starts) == 1
    assert [call.arguments for call in seen.ends] == [{"number": 1}, {"number": 2}]
    assert len(caplog.records) == 1
    assert "sees no more calls" in caplog.text
    assert seen.closed == [None]
    assert not broken.closed


async def test_what_has_not_ended_is_shown_at_the_end_of_the_block():
    seen, never = Seen(), asyncio.Event()

    @intercept(name="wait")
    async def wait() -> None:
        await never.wait()

    with pytest.raises(KeyError), observe(seen):
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        raise KeyError("stop")
    assert [call.outcome for call in seen.ends] == [{"unfinished": True}]
    assert [type(error) for error in seen.closed] == [KeyError]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(seen.ends) == 1


async def test_the_rules_of_a_listener_redact(path):
    seen = Seen()
    seen.redaction = Redaction(["number"])
    with observe(seen, redact=["other"]):
        look(3)
    assert seen.ends[0].arguments == {"number": 0}
    with record(path, redact=Redaction(["number"])):
        look(3)
    assert Cassette.load(path)[0].digest == seen.ends[0].digest


@pytest.mark.parametrize("wrong", [None, Seen, print, 5])
def test_what_is_no_listener_is_refused_at_once(wrong):
    with pytest.raises(ConfigurationError, match="on_start"):
        observe(wrong)


# Writes


async def test_a_write_has_its_tags_without_secrets_and_a_read_has_none(path):
    """Of a tag that only a result gives, the root: its segments may be secrets, known there by the names of fields."""

    @AgentCacheInvalidator(resource=["login:{result[password]}", "user:{name}"])
    async def log_in(name: str) -> dict[str, str]:
        return {"password": "hunter2hunter2"}

    with record(path, redact=["order_id"]):
        await get_order("7")
        await cancel_order("hunter2hunter2")
        await log_in("ann")
    assert b"hunter2" not in path.read_bytes()
    read, write, late = Cassette.load(path)
    assert (read.tags, read.is_write) == ([], False)
    assert (write.tags, write.is_write, late.tags) == (["order:[redacted]"], True, ["login", "user:ann"])
    with record(path):
        await cancel_order("7")
    assert Cassette.load(path)[0].tags == ["order:7"]


def test_a_wrapped_function_may_be_a_write_and_so_is_a_request_of_an_unsafe_method(path):
    with record(path):
        intercept(lambda: None, name="send", kind="write")()
    [call] = Cassette.load(path)
    assert (call.kind, call.is_write, call.tags) == ("write", True, [])
    for method, is_write in (("GET", False), ("HEAD", False), ("POST", True), ("DELETE", True), ("PATCH", True)):
        assert msgspec.structs.replace(call, kind="http", name=f"{method} http://127.0.0.1/a").is_write is is_write
    assert not msgspec.structs.replace(call, kind="llm", name="POST http://127.0.0.1/v1/chat").is_write
