"""What stands for a value: of arguments, in tiers and in every process; of an outcome, when two are compared, or one is
shown.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import shutil
import subprocess
import sys
import types
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from importlib.machinery import PathFinder
from ipaddress import ip_address, ip_network
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pytest

from agent_cache import AgentCache
from agent_cache.values import canonical as digests
from agent_cache.values.canonical import lasting_digest, segment_digest
from agent_cache.values.compare import fingerprint, is_empty, shown, signature_of
from tests.harness.searches import searched
from tests.harness.structure import VALUES, Access, Colour, Level, Paint, Word, near_pairs, same

ROOT = Path(__file__).parents[2]


class Pair(NamedTuple):
    x: Any
    y: Any = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any = 1
    y: Any = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    x: Any = 1
    y: Any = 2


class Outer:
    @dataclasses.dataclass
    class Inner:
        x: Any = 1


WORDS = [f"word-{number}" for number in range(30)]
CORPUS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, float("inf"), 1e300),
    *("", "0", "1", "a", "ä", "\ud800"),
    *(b"", b"1", b"a", [], (), {}, set(), frozenset(), [1], (1,), [True], [1.0], ["1"], [[1]], [(1,)]),
    *({1}, frozenset({1}), {1: 1}, {"1": 1}, {True: 1}, {1: True}, {"a": {"b": [1, {2}]}}, [None], [1, 2], [2, 1]),
    *(set(WORDS), frozenset(WORDS), dict.fromkeys(WORDS, 1), {word: {word} for word in WORDS}, [*WORDS], (*WORDS,)),
    *({(1, word) for word in WORDS}, Fraction(1, 3)),
    *(Colour.RED, Colour.GREEN, Paint.RED, Level.LOW, Word.LOW, Access(0), Access.READ, Access.READ | Access.WRITE),
    *(Pair(1, 2), Point(1, 2), Place(1, 2), Point(2, 1), Point(Colour.RED, {Colour.RED, Colour.GREEN}), Outer.Inner()),
    *(Decimal(1), Decimal("1.0"), uuid.UUID(int=1), PurePosixPath("a"), ip_address("::1"), ip_network("10.0.0.0/8")),
    *(date(2026, 1, 1), time(1), time(1, fold=1), timedelta(1), datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),  # noqa: DTZ001
    *(timezone(timedelta(hours=2)), datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
    *(int, Colour, Outer.Inner, ValueError),
]  # fmt: skip
"""No two of them are the same."""


def digest(
    *values: Any,
    tool: str = "shop:get",
    tenant: Any = None,
    session: str | None = None,
    namespace: str = "test",
    version: int = 1,
) -> str | None:
    arguments = tuple((f"argument_{number}", value) for number, value in enumerate(values))
    return lasting_digest(tool, (arguments, tenant, session), namespace=namespace, version=version)


def lines() -> list[str]:
    return [
        *(f"{digest(value)} {number}" for number, value in enumerate(CORPUS)),
        f"{digest(*CORPUS, tenant=('acme', Colour.RED), session='s')} all",
        *(segment_digest(segment, namespace="test") for segment in ("", "7", "ä", "\ud800")),
    ]


class Settings(msgspec.Struct):
    depth: int = 1


class Text(str):
    __slots__ = ()


class Bare:
    def method(self) -> None: ...


def digests_of(python: str | Path, seed: str, **environment: str) -> list[str]:
    found = subprocess.run(
        [python, "-c", "import sys; from tests.unit import test_values; print(*test_values.lines(), sep=chr(10))"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_digests_are_the_same_in_a_process_of_another_hash_seed(seed):
    assert digests_of(sys.executable, seed) == lines()


def test_calls_that_differ_have_digests_that_differ():
    found = [digest(value) for value in CORPUS]
    assert None not in found
    assert len(set(found)) == len(CORPUS)


@searched(20, 100, VALUES, VALUES)
def test_digests_are_equal_exactly_where_values_are_the_same(one, other):
    first, second = digest(one), digest(other)
    if first is not None and second is not None:
        assert (first == second) == same(one, other)
    assert digest(one) == first


def test_everything_that_makes_a_call_another_call_is_in_its_digest():
    variants = [
        *(digest(1), digest(1, 1), digest(), digest(1, tool="shop:put"), digest(1, tenant="a")),
        *(digest(1, tenant=("a",)), digest(1, session="a"), digest(1, namespace="other"), digest(1, version=2)),
        digest(1, tool="shop:get", tenant="None"),
    ]
    assert len(set(variants)) == len(variants)


def test_a_digest_shows_nothing_of_the_arguments():
    found = digest("hunter2", tenant="acme")
    assert found is not None
    assert len(found) == 48
    assert set(found) <= set("0123456789abcdef")


# -- What has no identity outside --------------------------------------------------------------------------------


def local_point() -> Any:
    @dataclasses.dataclass
    class Point:
        x: int = 1

    return Point()


def impostor() -> Any:
    """A class that says that it is another."""
    kind = dataclasses.make_dataclass("Point", [("x", int, 1), ("y", int, 2)])
    kind.__module__ = Point.__module__
    return kind()


def orphan() -> Any:
    kind = enum.Enum("Orphan", "ONE")
    kind.__module__ = "no_such_module"
    return kind.ONE


NAMELESS = [
    *(lambda: 1, local_point, len, functools.partial(len), Bare().method, Bare(), object(), Text("a"), sys, open),
    *(local_point(), impostor(), orphan(), [local_point()], {"a": {1: lambda: 2}}, type(local_point()), list[int]),
]


@pytest.mark.parametrize("value", NAMELESS, ids=lambda value: type(value).__name__)
def test_what_cannot_be_written_down_stably_has_no_digest(value):
    assert digest(value) is None
    assert digest(1, [value]) is None
    assert digest(1, tenant=value) is None


def test_pydantic_models_have_digests():
    pydantic = pytest.importorskip("pydantic")
    global Model  # a class that is local to this test has no name outside

    class Model(pydantic.BaseModel):
        x: Any = 1

    assert digest(Model()) is not None
    assert digest(Model(x=1.0)) != digest(Model(x=1))
    assert digest(Model()) != digest(Model(x=1)), "`model_fields_set` is not the same"
    assert digest(Model(x=1)) == digest(Model(x=1))
    beside, other = Model(), Model()
    vars(beside)["note"] = 1
    vars(other)["note"] = 2
    assert len({digest(Model()), digest(beside), digest(other)} - {None}) == 3, "it is known by its attributes, too"
    vars(other)["note"] = 1
    assert digest(beside) == digest(other)
    vars(other)["note"] = object()
    assert digest(other) is None


class Unset:
    """The class of a sentinel. Two processes have an object of it each."""

    def __init__(self, name: str = "UNSET") -> None:
        self.name = name


def digest_of_call(unset: Any, *args: Any) -> str | None:
    @AgentCache("order")
    async def get(query: str, limit: Any = unset, *, sort: Any = unset) -> None: ...

    return digest(get.cache_key(*args).request.arguments)


@pytest.mark.parametrize("make", [object, Unset], ids=["object", "instance"])
def test_a_fleet_agrees_on_a_default_that_is_a_sentinel(make, clock):
    found = digest_of_call(make(), "a")
    assert found is not None
    assert found == digest_of_call(make(), "a")
    unset = make()
    assert found == digest_of_call(unset, "a", unset)
    others = [digest_of_call(unset, "b"), *(digest_of_call(unset, "a", value) for value in (None, "", 0, [], "UNSET"))]
    assert len({found, *others}) == 7


# -- Scripts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    digests._script.cache_clear()
    yield module
    digests._script.cache_clear()


@pytest.mark.parametrize("kind", ["script", "folder", "archive"])
def test_two_scripts_do_not_meet_and_one_meets_itself(kind, main, tmp_path):
    """Also those that are the ``__main__.py`` of a folder or an archive that is run."""
    found = []
    for name, text in (("first", "print(1)"), ("copy", "print(1)"), ("second", "print(2)")):
        script = tmp_path / name / "__main__.py"
        script.parent.mkdir()
        script.write_text(text)
        main.__file__ = str(script)
        if kind != "script":
            archive = shutil.make_archive(str(script.parent), "zip", script.parent)
            main.__spec__ = PathFinder.find_spec("__main__", [archive if kind == "archive" else str(script.parent)])
            main.__file__ = main.__spec__.origin
        found.append(digest(1, tool="__main__:get"))
    assert found[0] == found[1] != found[2]
    assert None not in found


def test_a_module_that_is_run_has_the_name_that_others_import(main):
    main.__spec__ = types.SimpleNamespace(name="shop")
    assert digest(1, tool="__main__:get") == digest(1, tool="shop:get")


def test_what_is_typed_in_has_no_name_outside(main):
    class Local:
        pass

    main.Point = dataclasses.make_dataclass("Point", ["x"])
    main.Point.__module__ = "__main__"
    assert digest(1, tool="__main__:get") is None
    assert digest(main.Point(1)) is None
    assert digest(1, tool="named") is not None


# -- Segments -----------------------------------------------------------------------------------------------------


def test_a_segment_digest_depends_on_segment_and_namespace_alone():
    assert segment_digest("7", namespace="a") == segment_digest("7", namespace="a")
    found = {segment_digest(segment, namespace=space) for segment in ("7", "8", "") for space in ("a", "b", "a" * 200)}
    assert len(found) == 9
    assert all(each != "7" and len(each) == 48 for each in found)


# -- Outcomes -----------------------------------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoText:
    def __repr__(self) -> str:
        return None  # type: ignore[return-value]


@searched(20, 100, near_pairs())
def test_two_outcomes_have_one_fingerprint_if_and_only_if_they_are_the_same(pair: tuple[Any, Any]):
    one, other = pair
    first, second = fingerprint(one), fingerprint(other)
    assert first is not None
    assert second is not None
    assert len(first) == 16
    assert (first == second) is same(one, other)


def test_what_has_no_identity_has_no_fingerprint():
    assert fingerprint(object()) is None
    assert fingerprint([object()]) is None


def test_a_value_is_shown_briefly_whatever_its_repr_does():
    assert shown("x") == "'x'"
    assert shown(Unprintable()).startswith("<Unprintable")
    assert len(shown("x" * 1_000)) == 80
    assert shown("x" * 1_000).endswith("...")
    assert shown(NoText()).startswith("<NoText")


@pytest.mark.parametrize(
    "value",
    [None, False, 0, 0.0, "", b"", [], (), {}, set(), {"items": [], "total": 0}, [[], None], {"page": {"rows": ()}}],
)
def test_an_answer_with_nothing_in_it_is_empty(value: Any):
    assert is_empty(value)


def test_an_answer_with_something_in_it_is_not_empty():
    endless: list[Any] = []
    endless.append(endless)
    full = True, 1, "Error", [0, 1], {"error": "down"}, {"items": [], "page": 1}, object(), endless, [None] * 9_999
    for value in full:
        assert not is_empty(value)


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_two_errors_are_the_same_by_type_and_whole_message():
    assert signature_of(LookupError("x")) == signature_of(LookupError("x"))
    assert signature_of(LookupError("x")) != signature_of(ValueError("x"))
    assert signature_of(LookupError("x" * 200 + "1")) != signature_of(LookupError("x" * 200 + "2"))
    assert signature_of(Silent()) is None
    assert signature_of(type("LookupError", (Exception,), {})("x")) != signature_of(LookupError("x"))


def test_two_groups_of_errors_are_the_same_by_what_is_in_them():
    def group(*errors: Exception) -> ExceptionGroup[Exception]:
        return ExceptionGroup("tasks failed", list(errors))

    one = signature_of(group(ValueError("a"), LookupError("b")))
    assert one is not None
    assert one == signature_of(group(LookupError("b"), ValueError("a"))), "whichever task was first"
    others = [
        group(ValueError("a"), LookupError("c")),
        group(ValueError("a"), KeyError("b")),
        group(ValueError("a"), LookupError("b"), LookupError("b")),
        group(group(ValueError("a"), LookupError("b"))),
        ExceptionGroup("other tasks failed", [ValueError("a"), LookupError("b")]),
    ]
    assert len({one, *map(signature_of, others)}) == 6
    assert signature_of(group(ValueError("a"), Silent())) is None
    deep = ValueError("a")
    for _ in range(200):
        deep = group(deep)  # type: ignore[assignment]
    assert signature_of(deep) is not None
