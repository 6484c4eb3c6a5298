"""The protocol of one machine, every interleaving of small configurations: whole it keeps its promises, and no part of
it can be left out but those that are named. `python -m tests.properties.onemachine` prints what leads to each loss."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import pytest

from tests.harness.slow import slow
from tests.properties.checker import Model, explore
from tests.properties.onemachine import protocol
from tests.properties.onemachine.configurations import AMPUTATIONS, CONFIGURATIONS, DISPENSABLE, LIMIT
from tests.properties.onemachine.rules import WHOLE, Rules
from tests.properties.onemachine.state import State

SMALL: tuple[str, ...] = ()  # less than a second each


@pytest.mark.parametrize("name", [*SMALL, *slow(*(name for name in CONFIGURATIONS if name not in SMALL))])
def test_the_whole_protocol_keeps_its_promises_and_gets_stuck_nowhere(name: str):
    verdict = explore(protocol.model(CONFIGURATIONS[name]), LIMIT)
    sys.stdout.write(f"{name}: {verdict}\n")
    assert verdict.holds, str(verdict)


LONG: tuple[str, ...] = ()


@pytest.mark.parametrize("part", [*(part for part in AMPUTATIONS if part not in LONG), *slow(*LONG)])
def test_a_part_that_is_taken_out_is_missed(part: str):
    rules, configuration = AMPUTATIONS[part]
    verdict = explore(protocol.model(configuration, rules), LIMIT)
    sys.stdout.write(f"{verdict}\n")
    assert not verdict.holds
    assert ("for ever" in str(verdict.broken)) == (part == "no repair")


@pytest.mark.slow
@pytest.mark.parametrize("part", DISPENSABLE)
def test_a_part_that_another_one_does_is_not_missed(part: str):
    rules, names = DISPENSABLE[part]
    for name in names:
        verdict = explore(protocol.model(CONFIGURATIONS[name], rules), LIMIT)
        assert verdict.holds, f"{name}: {verdict}"


@pytest.mark.parametrize("part", AMPUTATIONS)
def test_the_whole_protocol_holds_where_a_part_is_missed(part: str):
    _, configuration = AMPUTATIONS[part]
    assert configuration.reads or configuration.kept


def test_every_part_is_taken_out_once():
    taken_out = [rules for rules, _ in (*AMPUTATIONS.values(), *DISPENSABLE.values())]
    for field in dataclasses.fields(Rules):
        values = {getattr(rules, field.name) for rules in taken_out}
        assert values > {getattr(WHOLE, field.name)}, f"{field.name} stays whole in all of them"
