"""Properties that are tried on a few examples by default, and on many with `-m slow`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from tests.harness.slow import slow

Test = Callable[..., None]


def searched(few: int, many: int, *strategies: Any, **named: Any) -> Callable[[Test], Test]:
    """Make a test of a property, as ``given`` and ``settings`` do: ``@searched(20, 150, runs())``.

    Args:
        few: how many examples are tried by default.
        many: how many are tried with `-m slow`.
        strategies: what `given` draws from, also by name.
    """

    def decorate(test: Test) -> Test:
        tries = {count: settings(max_examples=count)(given(*strategies, **named)(test)) for count in (few, many)}

        def run(examples: int, **arguments: Any) -> None:
            tries[examples](**arguments)

        asked = inspect.signature(tries[few])
        examples = inspect.Parameter("examples", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = asked.replace(parameters=[examples, *asked.parameters.values()])  # type: ignore[attr-defined]
        run.__name__, run.__qualname__ = test.__name__, test.__qualname__
        run.__module__, run.__doc__ = test.__module__, test.__doc__
        return pytest.mark.parametrize("examples", [few, *slow(many)])(run)

    return decorate
