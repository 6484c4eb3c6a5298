"""What is public is what `__all__` says, in order, and all of it is described."""

import ast
import importlib
import inspect
import re
import typing
from pathlib import Path
from types import ModuleType

import pytest

import agent_cache

# DESIGN's public names: users and integrations stand on them.
PROMISED = {
    "AgentCache",
    "AgentCacheError",
    "AgentCacheInvalidator",
    "AgentCacheSession",
    "AgentLoopDetectedError",
    "AsyncCache",
    "ConfigurationError",
    "UncacheableArgumentsError",
    "bypass",
    "configure",
    "get_metrics",
    "invalidate",
    "tags_from",
    "writing",
}
TREE = Path(agent_cache.__file__).parent


def unlisted(module: ModuleType) -> set[str]:
    """Public attributes that are no modules and that `__all__` leaves out."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in module.__all__
    }


def undescribed(name: str, value: object) -> list[str]:
    """The name, and for a class its public methods and properties, where they lack a docstring."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return []
    missing = [] if (inspect.getdoc(value) if inspect.isroutine(value) else value.__doc__) else [name]
    if inspect.isclass(value):
        for method, plain in vars(value).items():
            is_described = isinstance(plain, property | staticmethod | classmethod) or inspect.isroutine(plain)
            if not method.startswith("_") and is_described and not inspect.getdoc(getattr(value, method)):
                missing.append(f"{name}.{method}")
    return missing


def test_the_promised_names_are_public():
    assert set(agent_cache.__all__) >= PROMISED


def test_all_is_sorted_and_names_nothing_twice():
    assert list(agent_cache.__all__) == sorted(set(agent_cache.__all__))


def test_all_lists_exactly_what_is_public():
    missing = [name for name in agent_cache.__all__ if not hasattr(agent_cache, name)]
    assert missing == []
    assert unlisted(agent_cache) == set()


def test_the_top_module_only_reexports():
    body = ast.parse((TREE / "__init__.py").read_text("utf-8")).body
    others = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    assert [node.name for node in others if not node.name.startswith("__")] == []  # a module's __getattr__ may stand


def test_every_public_name_is_described():
    assert [each for name in agent_cache.__all__ for each in undescribed(name, getattr(agent_cache, name))] == []


def test_every_module_is_described():
    # An empty `__init__.py` is a folder's mark. To parse every module would take seconds.
    texts = {path.relative_to(TREE): path.read_text("utf-8") for path in TREE.rglob("*.py")}
    docstring = re.compile(r'(\s|#.*\n)*r?"""\s*[^\s"]')
    assert [str(path) for path, text in texts.items() if text.strip() and not docstring.match(text)] == []


def test_every_public_error_is_caught_by_its_base():
    errors = [value for name in agent_cache.__all__ if inspect.isclass(value := getattr(agent_cache, name))]
    strays = [e for e in errors if issubclass(e, Exception) and not issubclass(e, agent_cache.AgentCacheError)]
    assert strays == []


def test_a_name_that_all_leaves_out_is_seen():
    module = ModuleType("module")
    module.__all__ = ["listed"]
    module.listed = module.forgotten = module._private = 1
    module.path = ast
    assert unlisted(module) == {"forgotten"}


def test_a_missing_docstring_is_seen():
    class Bare:
        def method(self): ...

        @property
        def fact(self): ...

        @classmethod
        def maker(cls):
            """Make one."""

    assert undescribed("Bare", Bare) == ["Bare", "Bare.method", "Bare.fact"]


@pytest.mark.parametrize("module", ["", ".recording", ".remote", ".resume", ".testing"])
def test_the_parameters_of_what_is_exported_are_described(module: str):
    if module == ".remote":
        pytest.importorskip("redis")
    home = importlib.import_module(f"agent_cache{module}")
    for name in home.__all__:
        value = getattr(home, name)
        section = re.search(r"^Args:\n(.*?)(^\S|\Z)", inspect.getdoc(value) or "", re.DOTALL | re.MULTILINE)
        if section is not None:
            described = re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*): ", section[1], re.MULTILINE)
            names = {one.lstrip("*") for several in described for one in several.split(", ")}
            assert names == set(inspect.signature(value).parameters), name


def test_the_hints_of_what_is_exported_can_be_resolved():
    for callable_ in (agent_cache.AgentCache, agent_cache.AgentCacheInvalidator, agent_cache.AgentCacheSession):
        assert "return" in typing.get_type_hints(callable_.__init__)
    assert typing.get_type_hints(agent_cache.configure)
