"""`LoopPolicy` and `LoopHints`: what is refused, and that they are values."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent_cache import AgentCache, AgentCacheInvalidator, AgentCacheSession, ConfigurationError, LoopHints, LoopPolicy


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"repeat": 1}, "repeat"),
        ({"repeat": True}, "repeat"),
        ({"error": (1, 4)}, "error's notice"),
        ({"cycle": (6, 5)}, "cycle.*must not come after"),
        ({"any_error": (3, 4, 5)}, "any_error"),
        ({"any_error": "6"}, "any_error"),
        ({"write_repeat": (5, 5.0)}, "write_repeat's action"),
        ({"max_execution_depth": 0}, "max_execution_depth"),
        ({"max_nesting": 0}, "max_nesting"),
        ({"max_duration": 0}, "max_duration"),
        ({"max_duration": "1h"}, "max_duration"),
        ({"new_turn_after": 0}, "new_turn_after"),
        ({"new_turn_after": "1h"}, "new_turn_after"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_tool_calls": {"search": 0}}, "max_tool_calls.*search"),
        ({"max_tool_calls": {"": 1}}, "max_tool_calls.*str"),
        ({"max_tool_calls": {7: 1}}, "max_tool_calls.*str"),
        ({"max_tool_calls": True}, "max_tool_calls"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(arguments: dict[str, object], says: str) -> None:
    """Levels below two, a notice that would come after the action, budgets of nothing."""
    with pytest.raises(ConfigurationError, match=says):
        LoopPolicy(**arguments)  # type: ignore[arg-type] # wrong on purpose


def test_a_policy_may_be_given_as_a_mapping_with_names_that_exist() -> None:
    """From a settings file."""
    AgentCacheSession(loop_policy={"repeat": [4, 8]})
    for wrong in ({"repeats": 8}, "strict", 5):
        with pytest.raises(ConfigurationError, match=r"loop_policy|repeats"):
            AgentCacheSession(loop_policy=wrong)  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize(("r", "notice"), [(2, 2), (3, 2), (4, 3), (5, 3), (50, 3)])
def test_a_single_number_sets_the_action_and_lowers_the_notice(r: int, notice: int) -> None:
    """To min(3, r - 1), and never to the first call."""
    assert LoopPolicy(repeat=r).repeat == (notice, r)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_unchanged": 5}, "poll=True"),
        ({"poll": True, "max_unchanged": 1}, "max_unchanged"),
        ({"poll": True, "max_unchanged": True}, "max_unchanged"),
        ({"poll": "yes"}, "poll must be True or False"),
        ({"off": 1}, "off must be True or False"),
        ({"off": True, "poll": True}, "leave one out"),
        ({"off": True, "poll": True, "max_unchanged": 5}, "leave one out"),
        ({"loop_key": "x"}, "loop_key"),
    ],
)
def test_hints_that_cannot_work_are_refused(given: dict[str, Any], says: str) -> None:
    """A bound without a poll, what is off and judged all the same, and what is none of the kind."""
    with pytest.raises(ConfigurationError, match=says):
        LoopHints(**given)


@pytest.mark.parametrize(
    ("hints", "is_write", "says"),
    [
        (LoopHints(poll=True), True, "max_unchanged"),
        ({"poll": True}, False, "LoopHints"),
        (LoopHints(off=True, loop_key=len), False, "loop_key"),
        (LoopHints(off=True, outcome_key=len), False, "outcome_key"),
    ],
)
def test_hints_that_mean_nothing_for_a_tool_are_refused(hints: Any, is_write: bool, says: str) -> None:
    """A write that may be repeated for ever, and a read that says what to compare and is not looked at."""

    async def add() -> None: ...

    kinds: list[Any] = [AgentCacheInvalidator, AgentCache]
    wrong, right = kinds if is_write else reversed(kinds)
    with pytest.raises(ConfigurationError, match=says):
        wrong("items", name="add", loop=hints)(add)
    if isinstance(hints, LoopHints):
        right("items", name="add", loop=hints)(add)


@pytest.mark.parametrize(
    "one",
    [
        LoopPolicy(),
        LoopPolicy(repeat=(4, 8), any_error=None, max_duration=timedelta(minutes=5), max_tool_calls=7),
        LoopPolicy(repeat=[4, 8]),  # type: ignore[arg-type] # as settings files have it
        LoopHints(),
        LoopHints(poll=True, max_unchanged=5, outcome_key=len),
    ],
    ids=repr,
)
@pytest.mark.parametrize("make", [lambda one: pickle.loads(pickle.dumps(one)), deepcopy, replace])
def test_policies_and_hints_are_values(one: Any, make: Any) -> None:
    """They can be sent to another process, copied, and be the key of a dict."""
    again = make(one)
    assert again == one
    assert {one: "found"}[again] == "found"
    if isinstance(one, LoopPolicy):
        assert replace(one, repeat=99) != one


@pytest.mark.parametrize("policy", [{"max_tool_calls": 3}, {"any_error": (2, 3)}], ids=str)
async def test_a_loop_that_is_only_warned_of_is_logged_once(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    @AgentCache("thing:{number}", name="get")
    async def get(number: int) -> int:
        raise LookupError("down")

    async with AgentCacheSession(
        on_loop="warn", loop_policy={"repeat": 99, "error": 99, "cycle": 99, "any_error": None, **policy}
    ):
        for number in range(6):
            with pytest.raises(LookupError):
                await get(number)
    logged = [record for record in caplog.records if "loop detected" in record.getMessage()]
    assert len(logged) == 1
    assert next(iter(policy)).removeprefix("max_") in logged[0].getMessage()
