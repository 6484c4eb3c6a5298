"""`python -m tests.mutants`: small faults of a package, and whether its tests find them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("coverage", reason='mutants need pip install "agent-cache[test]"')

from tests.mutants.__main__ import Copy, main  # after the skip
from tests.mutants.mutations import Finder, sample

ROOT = Path(__file__).parents[1]
CONFIGURATION = """
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
addopts = ["--import-mode=importlib", "-pno:hypothesispytest", "-pno:valkey", "-pno:anyio", "-pno:asyncio"]
[tool.coverage.run]
source = ["shop"]
"""
MODULE = '''"""A shop."""
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from decimal import Decimal

__all__ = ["is_cheap", "unused"]

LIMIT: "int" = 3

def is_cheap(price: "int | None") -> "bool":
    """Whether it costs less than 3."""
    return price < LIMIT

def doubled(number):
    return number * 2

def unused(flag):
    return flag + 1
'''
STRONG = """
from shop import module

SIX = module.doubled(3)  # while the file is collected

def test_six():
    assert SIX == 6

def test_prices():
    assert [module.is_cheap(price) for price in (2, 3, 4)] == [True, False, False]
"""
WEAK = """
from shop import module

def test_a_low_price():
    assert module.is_cheap(1)
"""


def mutants(source: str) -> set[str]:
    """Each mutant of a source text, as its changed lines."""
    text = source.encode()
    finder = Finder("module.py", text)
    changed = (mutant.apply(text).decode() for mutant in finder.found if mutant.is_sound(text))
    return {"\n".join(line for line in one.splitlines() if line not in source.splitlines()).strip() for one in changed}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a is b", {"x = a is not b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = (a) + (  # or -\n    b)", {"x = (a) - (  # or -"}),
        ("x = a and b and c", {"x = a or b and c", "x = a and b or c"}),
        ("x = not a", {"x = (a)"}),
        ("x -= a", {"x += a"}),
        ("x = 1", {"x = 2", "x = 0"}),
        ("x = True", {"x = False"}),
        ("x = f(None, 'é', b'b')", {"x = f(0, 'é', b'b')", "x = f(None, 'XXé', b'b')", "x = f(None, 'é', b'XXb')"}),
        ("x = a if b else c", {"x = a if (not (b)) else c"}),
        ("x = [a for a in b if c]", {"x = [a for a in b if (not (c))]"}),
        ("def f(a):\n    a()\n    a.b = a\n    return a", {"pass", "return None"}),
        ("def f():\n    raise KeyError('a text of two')", {"pass"}),
        ("x = 'text' + a", {"x = 'XXtext' + a"}),
        ("for a in b:\n    if c(): continue\nelse:\n    c", {"if (not (c())): continue", "pass"}),
        ("def f():\n    while a():\n        break", {"while (not (a())):", "pass"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_fault_is_one_change_of_the_text(source: str, expected: set[str]) -> None:
    assert mutants(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "def f():\n    '''A docstring.'''\n    x: 'int | None' = a\n    'and a text below it'",
        "def f(a: 'int' = b, *c: 'str') -> 'bool | None': ...",
        "if TYPE_CHECKING:\n    x = 1\n    import a",
        "if typing.TYPE_CHECKING:\n    x = 1",
        "__all__ = ['a', 'b']",
        "class A:\n    __slots__ = ('a', 'b')",
        "from a import b as c",
        "@overload\ndef f(a: int = 1) -> int: ...",
        "@decorator(1)\ndef f(): ...",
        "T = TypeVar('T', bound='int')\nKind = Literal['a', 1]",
        "x = f'{a + 1} of {b}'",
        "assert a > 0, 'a text'",
        "_log.warning('a text of %s', a)",
    ],
)
def test_what_does_not_run_or_is_read_by_people_is_left_alone(source: str) -> None:
    assert mutants(source) <= {"pass"}  # without a log call, a program is another one


def test_the_same_seed_draws_the_same_mutants_in_proportion_to_the_lines() -> None:
    sources = {"long.py": b"def f():\n" + b"    a(1)\n" * 29, "short.py": b"def f():\n" + b"    a(1)\n" * 9}
    drawn = sample(sources, 20, 1)
    assert sample(sources, 20, 1) == drawn
    assert sample(sources, 20, 2) != drawn
    assert [sum(mutant.path == path for mutant in drawn) for path in sources] == [15, 5]
    assert len({(mutant.path, mutant.lines) for mutant in drawn}) == 20  # as many lines as there are mutants


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "pyproject.toml": CONFIGURATION,
        "conftest.py": "",
        "shop/__init__.py": "",
        "shop/module.py": MODULE,
        "tests/test_strong.py": STRONG,
        "tests/test_weak.py": WEAK,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mutants_are_killed_survive_or_are_not_covered(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "tests" / "test_wrong.py").write_text("from shop import module\ndef test_it(): module.is_cheap(None)\n")
    assert main(["module.py"]) == 0
    printed = capfd.readouterr().out
    assert "| shop/module.py | 12 | 8 | 0 | 4 | 0 |" in printed
    assert "killed: 8 of 8 covered mutants (100%), 0 of them by a hang" in printed
    assert "killed shop/module.py:13 '<' -> '<=' by tests/test_strong.py::test_prices (" in printed
    assert "- shop/module.py:19 '+' -> '-' in `return flag + 1` by any test" in printed.partition("\nnot covered:")[2]
    assert "left out, because it fails without a mutant: tests/test_wrong.py::test_it" in printed
    assert (project / "shop" / "module.py").read_text() == MODULE

    assert main(["module.py", "--tests", "tests/test_weak.py"]) == 0
    printed = capfd.readouterr().out
    assert "| shop/module.py | 12 | 1 | 3 | 8 | 0 |" in printed
    assert (
        "- shop/module.py:13 '<' -> '<=' in `return price < LIMIT` by 1 of 1 tests"
        in printed.partition("\nsurvived:")[2]
    )


@pytest.mark.slow
def test_a_recording_that_did_not_run_all_tests_is_refused(project: Path) -> None:
    (project / "tests" / "test_a.py").write_text("def test_a(): assert False\ndef test_b(): pass\n")
    (project / "pyproject.toml").write_text(CONFIGURATION.replace("addopts = [", 'addopts = ["-x", '))
    with pytest.raises(SystemExit, match=r"not recorded: \d of 5 tests came to their end"):
        main(["module.py"])
    assert not list((project / ".mutants").rglob("tests.json"))


@pytest.mark.slow
def test_a_test_that_hangs_kills_the_mutant_and_one_that_makes_progress_does_not(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutants.__main__.LIMIT", 20.0)
    monkeypatch.setattr("tests.mutants.__main__.HANGS", 0.0)
    endless = "def count(number):\n    while number > 0:\n        number -= 1\n    return number\n"
    (project / "shop" / "module.py").write_text(endless)
    (project / "tests" / "test_it.py").write_text("from shop import module\ndef test_it(): module.count(3)\n")
    [mutant] = [one for one in Finder("shop/module.py", endless.encode()).found if one.new == "+="]
    copy = Copy(project, tmp_path_factory.mktemp("copy"))
    test = "tests/test_it.py::test_it"
    hung = copy.try_mutant(mutant, {test: 0.01}, 1)
    assert (hung["status"], hung["by"]) == ("killed", f"a hang of {test}")
    slow = copy.try_mutant(mutant, {test: 1000.0}, 1)
    assert (slow["status"], slow["by"]) == ("time ran out", test)
