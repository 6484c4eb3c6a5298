"""Cases that are tried sooner than pytest counts them: several of them are one test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def in_batches(name: str, values: Iterable[Any], *, size: int = 20) -> Callable[[Test], Test]:
    """As ``pytest.mark.parametrize(name, values)``, but one test tries `size` of them. A failure names its value.

    They share the fixtures of the test, so it must leave nothing in them.
    """
    every = list(values)
    batches = [every[start : start + size] for start in range(0, len(every), size)]

    def decorate(test: Test) -> Test:
        def run(batch: list[Any], **fixtures: Any) -> None:
            for value in batch:
                try:
                    test(**{name: value}, **fixtures)
                except BaseException as error:
                    error.add_note(f"{name} was {value!r}")
                    raise

        asked = inspect.signature(test)
        batch = inspect.Parameter("batch", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        others = [parameter for parameter in asked.parameters.values() if parameter.name != name]
        run.__signature__ = asked.replace(parameters=[batch, *others])  # type: ignore[attr-defined]
        run.__name__, run.__qualname__ = test.__name__, test.__qualname__
        run.__module__, run.__doc__ = test.__module__, test.__doc__
        run.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("batch", batches, ids=map(str, range(len(batches))))(run)

    return decorate
