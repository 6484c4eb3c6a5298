"""Two live tools of one name do not share a tier: each would be answered with what the other has loaded."""

from __future__ import annotations

import functools
import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_cache import AgentCache, configure
from agent_cache.errors import ConfigurationError
from agent_cache.testing import MemoryServer, MemoryTier

SOURCE = """
from agent_cache import AgentCache
from tests.pipeline.test_identities import TIER

@AgentCache("order:{id}", remote_cache=TIER)
async def get_order(id: str) -> str:
    return "VERSION"
"""
TIER = MemoryTier()


def logged(function):
    """A decorator of somebody's: all that it makes has the same code."""

    @functools.wraps(function)
    async def wrapper(*args, **kwargs):
        return await function(*args, **kwargs)

    return wrapper


def made(answer: str, tier: MemoryTier | None = None, **options: object):
    """A tool of a factory: every one has the same name."""

    async def get_order(id: str) -> str:
        return answer

    return AgentCache("order:{id}", remote_cache=tier, **options)(get_order)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be written anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "tools_of_a_test.py"
    path.write_text(SOURCE.replace("VERSION", "old"))
    yield path
    sys.modules.pop(path.stem, None)


async def test_two_tools_of_one_factory_are_refused_at_decoration(clock, server: MemoryServer):
    tier = MemoryTier(server)
    first = made("first", tier)
    with pytest.raises(ConfigurationError, match=r"made\.<locals>\.get_order.*name="):
        made("second", tier)
    assert await first("7") == "first"
    second = made("second", tier, name="second")
    assert await second("7") == "second"


async def test_one_that_nobody_has_any_more_does_not_count(clock, server: MemoryServer):
    """Suites define tools of one name again and again. A tool refers to itself, so it waits for the collector."""
    tier = MemoryTier(server)
    gc.disable()
    try:
        for answer in ("first", "second", "third"):
            tool = made(answer, tier)
            assert await tool.fresh("7") == answer
            del tool
    finally:
        gc.enable()


async def test_other_tiers_and_none_are_not_concerned(clock, server: MemoryServer):
    """Two processes in one interpreter, as tests have them, and tools whose answers stay here."""
    tools = [made("a", MemoryTier(server)), made("b", MemoryTier(server)), made("c"), made("d")]
    assert [await tool("7") for tool in tools] == ["a", "a", "c", "d"]


async def test_a_tier_that_is_configured_later_is_checked_at_the_first_call(clock, server: MemoryServer):
    first, second = made("first"), made("second")
    assert [await first("7"), await second("7")] == ["first", "second"]
    with configure(remote=MemoryTier(server)):
        with pytest.raises(ConfigurationError, match="two tools"):
            await first("8")
        with pytest.raises(ConfigurationError, match="two tools"):
            await second("8")
        with pytest.raises(ConfigurationError, match="two tools"):
            made("third")
    assert [await first("8"), await second("8")] == ["first", "second"]


async def test_two_functions_that_were_given_one_name_are_refused(clock, server: MemoryServer):
    tier = MemoryTier(server)

    @AgentCache("order:{id}", remote_cache=tier, name="get_order")
    async def get_order(id: str) -> str:
        return id

    with pytest.raises(ConfigurationError, match="get_order"):

        @AgentCache("user:{id}", remote_cache=tier, name="get_order")
        async def get_user(id: str) -> str:
            return id

    assert await get_order("7") == "7"


async def test_so_are_those_of_two_modules(clock, server: MemoryServer):
    namespaces = [
        {"AgentCache": AgentCache, "TIER": tier, "__name__": name}
        for tier in [MemoryTier(server)]
        for name in ("orders", "users")
    ]
    source = "@AgentCache('row:{id}', remote_cache=TIER, name='get')\nasync def get(id): return __name__"
    exec(source, namespaces[0])
    with pytest.raises(ConfigurationError, match=r"orders:get.*users:get"):
        exec(source, namespaces[1])


async def test_two_functions_of_one_module_that_have_one_name_count_as_one(clock, server: MemoryServer):
    """The second is taken for the first, defined again: what `def` does with the name, too."""
    namespace = {"AgentCache": AgentCache, "TIER": MemoryTier(server), "__name__": "a_script"}
    source = """
@AgentCache("order:{id}", remote_cache=TIER)
async def get(id): return "order"
registry = [get]
@AgentCache("order:{id}", remote_cache=TIER)
async def get(id): return "order, defined again"
"""
    exec(source, namespace)
    assert await namespace["registry"][0].fresh("7") == "order"
    assert await namespace["get"].fresh("7") == "order, defined again"


async def test_a_cell_may_be_run_again_while_a_registry_has_its_former_function(clock, server: MemoryServer):
    """As it stood, and changed. Both are one tool, as it is to two processes of which one has the newer code."""
    namespace = {"AgentCache": AgentCache, "TIER": MemoryTier(server), "__name__": "__main__", "registry": []}
    cell = """
@AgentCache("order:{id}", remote_cache=TIER, name="cell:get")
async def get(id): return "VERSION"
registry.append(get)
"""
    for number, version in enumerate(("old", "old", "new")):
        exec(compile("\n" * number + cell.replace("VERSION", version), f"<cell {number}>", "exec"), namespace)
        assert await namespace["get"].fresh("7") == version
    assert [await tool.fresh("7") for tool in namespace["registry"]] == ["old", "old", "new"]


async def test_code_that_is_kept_compiled_may_be_run_again(clock, server: MemoryServer):
    """As a server of notebooks or apps runs a script anew for each visitor."""
    code = compile(
        "@AgentCache('order:{id}', remote_cache=TIER)\nasync def get(id): return id\nregistry.append(get)",
        "<app>",
        "exec",
    )
    registry: list[object] = []
    tier = MemoryTier(server)
    for _ in range(2):
        exec(code, {"AgentCache": AgentCache, "TIER": tier, "__name__": "an_app", "registry": registry})
    assert [await tool("7") for tool in registry] == ["7", "7"]


@pytest.mark.parametrize("answer", ["a", "b"])
async def test_cases_of_one_test_may_define_one_tool_each(clock, module: Path, answer: str):
    """On the tier of a module. The former case's is collected; its entries are another question."""

    @AgentCache("order:{id}", remote_cache=TIER)
    async def get_order(id: str) -> str:
        return answer

    assert await get_order.fresh("7") == answer


async def test_a_factory_needs_names_also_for_what_it_binds_to_the_same(clock, server: MemoryServer):
    tier = MemoryTier(server)
    tools = [made("one", tier)]
    with pytest.raises(ConfigurationError, match="name="):
        tools.append(made("one", tier))
    assert await tools[0]("7") == "one"


async def test_a_default_tells_two_functions_apart(clock, server: MemoryServer):
    tier = MemoryTier(server)
    tools = []
    with pytest.raises(ConfigurationError, match="name="):
        for table in ("orders", "users"):

            @AgentCache("row:{id}", remote_cache=tier)
            async def get_row(id: str, table: str = table) -> str:
                return table

            tools.append(get_row)
    assert len(tools) == 1


async def test_what_a_decorator_wraps_is_looked_at_and_not_its_wrapper(clock, server: MemoryServer, module: Path):
    module.write_text(SOURCE.replace("async def", "@logged\nasync def").replace("import TIER", "import TIER, logged"))
    tools = importlib.import_module(module.stem)
    former = tools.get_order
    importlib.reload(tools)
    assert [await one.fresh("7") for one in (former, tools.get_order)] == ["VERSION", "VERSION"]


async def test_one_function_may_be_decorated_twice(clock, server: MemoryServer):
    tier = MemoryTier(server)

    async def get_order(id: str) -> str:
        return id

    tools = [AgentCache("order:{id}", remote_cache=tier, ttl=ttl)(get_order) for ttl in (1, 2)]
    assert [await tool("7") for tool in tools] == ["7", "7"]


@pytest.mark.parametrize("registry_has_it", [False, True])
@pytest.mark.parametrize("lines", [0, 3])
async def test_a_module_may_be_loaded_again(clock, module: Path, lines: int, *, registry_has_it: bool):
    """Whether somebody still has the former tool or not, and wherever the new one stands."""
    tools = importlib.import_module(module.stem)
    registry = [tools.get_order] if registry_has_it else []
    assert await tools.get_order.fresh("7") == "old"
    module.write_text("\n" * lines + SOURCE.replace("VERSION", "new"))
    importlib.reload(tools)
    await tools.get_order.invalidate("7")
    assert await tools.get_order("7") == "new"
    assert [await tool.fresh("7") for tool in registry] in ([], ["old"])


async def test_a_module_may_be_imported_anew(clock, module: Path):
    former = importlib.import_module(module.stem)
    del sys.modules[module.stem]
    tools = importlib.import_module(module.stem)
    assert former is not tools
    assert [await one.get_order.fresh("7") for one in (former, tools)] == ["old", "old"]
