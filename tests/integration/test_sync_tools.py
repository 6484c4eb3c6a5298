"""Tools that are no `async def`: what may be decorated, and sessions. Threads: `tests/pipeline`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, ConfigurationError

pytestmark = pytest.mark.usefixtures("clock")

RUNS: list[Any] = []


@AgentCache("parcel:{parcel_id}", ttl=60)
def get_parcel(parcel_id: str, *, full: bool = False) -> dict[str, Any]:
    """A parcel."""
    RUNS.append(parcel_id)
    if parcel_id == "lost":
        raise LookupError(parcel_id)
    return {"id": parcel_id, "runs": len(RUNS), "full": full}


@AgentCacheInvalidator("parcel:{parcel_id}")
def send_parcel(parcel_id: str) -> str:
    RUNS.append(f"send {parcel_id}")
    return "sent"


@pytest.fixture(autouse=True)
def nothing_stored() -> None:
    RUNS.clear()
    get_parcel.clear()


# What is decorated


def test_a_decorated_def_is_a_def_with_its_own_signature():
    assert not inspect.iscoroutinefunction(get_parcel)
    assert str(inspect.signature(get_parcel)) == str(inspect.signature(get_parcel.__wrapped__))
    assert get_parcel.__doc__ == "A parcel."
    assert get_parcel("7") == get_parcel(parcel_id="7", full=False) == {"id": "7", "runs": 1, "full": False}
    assert RUNS == ["7"]


def test_a_def_that_returns_a_coroutine_is_refused_when_it_is_called():
    async def later() -> int:
        return 1

    for decorate in (AgentCacheInvalidator("parcel"), AgentCache("parcel")):
        tool: Any = decorate(lambda: later())
        with pytest.raises(TypeError, match="to be awaited"):
            tool()


# Sessions


def test_a_session_is_entered_by_a_plain_with():
    with AgentCacheSession("run") as session:
        get_parcel("7")
        get_parcel("7")
        send_parcel("7")
        with pytest.raises(LookupError):
            get_parcel("lost")
    trace = [(record.source, record.outcome) for record in session.get_execution_trace()]
    assert trace == [("miss", "ok"), ("hit", "ok"), ("write", "ok"), ("miss", "LookupError")]
    with pytest.raises(ConfigurationError, match="already entered"), session, session:
        pass
