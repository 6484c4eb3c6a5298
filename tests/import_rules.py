"""The import rules of the package, as functions from a source tree to the sentences that say what breaks them.

Imports go one way, `core` is pure, and a third-party name stands only in the leaf that needs it. The tree is an
argument, so that `test_architecture.py` can show each rule a broken one. The last two say which files of
tests look behind the public names.
"""

import ast
import gc
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "agent_cache"

# From the ground up. A module may import from its own layer and from those below it.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "at_fork"}),
    frozenset({"values"}),
    frozenset({"core"}),
    frozenset({"clock", "metrics", "remote", "config"}),
    frozenset({"engine"}),
    frozenset({"tools", "tool_types", "session", "async_cache", "toolbox", "tuning"}),
    frozenset({"recording", "testing"}),
    frozenset({"resume", "advise", "report", "otel", "prometheus"}),
    frozenset({"service"}),
    frozenset({"integrations", "relay", "pytest_plugin", "cli", "__main__"}),
    frozenset({"__init__"}),
)
# These may import the public names from `agent_cache` itself, as anyone's code does, and what they need beside these
# from any module of their layer and below, private names too. `__init__` imports none of them: that would be a cycle.
USERS_OF_PUBLIC_NAMES = frozenset({"integrations", "relay", "pytest_plugin", "cli", "__main__"})

# Third-party module -> where it may stand. A name that is not here may stand in `integrations` only.
LEAVES: dict[str, tuple[str, ...]] = {
    "aiohttp": ("recording.http.aiohttp_seam",),  # and what it is made of, once the program has imported it
    "bokeh": ("report.page",),
    "cache": ("async_cache",),  # async-cache's top-level module
    "cryptography": ("remote.codecs",),
    "genai_prices": ("recording.prices",),
    "httpx2": ("relay",),
    "jinja2": ("report.page",),
    "langchain_core": ("resume.restore_hooks",),
    "langgraph": ("resume.restore_hooks",),
    "litellm": ("recording.litellm", "recording.outcomes"),
    "markupsafe": ("report.page",),
    "msgspec": (
        "values.copies",
        "values.typed",
        "remote",
        "recording",
        "resume",
        "advise",
        "relay",
        "service",
        "cli",
        "pytest_plugin",
    ),
    "multidict": ("recording.http.aiohttp_seam",),
    "opentelemetry": ("otel",),
    "prometheus_client": ("prometheus",),
    "pytest": ("pytest_plugin", "testing.fixtures"),
    "redis": ("remote.redis", "remote.deployments", "cli"),
    "rich": ("cli",),
    "starlette": ("relay", "service"),
    "uvicorn": ("relay",),
}

# What waits, looks at a clock or at the world. `core` is values and functions of values.
IMPURE_MODULES = frozenset({
    "_asyncio", "_thread", "asyncio", "concurrent", "contextvars", "ctypes", "fcntl", "getpass", "glob", "http", "io",
    "logging", "mmap", "multiprocessing", "platform", "queue", "random", "sched", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "tempfile", "time",
    "tracemalloc", "urllib", "webbrowser",
})  # fmt: skip
# Modules of which a part is pure: of `os` not even the names.
PERMITTED_OF = {"os": frozenset(), "threading": frozenset({"Lock", "RLock"})}
IMPURE_BUILTINS = frozenset({"breakpoint", "input", "open", "print"})
IMPURE_METHODS = frozenset({
    "now", "utcnow", "today", "uuid1", "uuid4",
    "exists", "is_file", "is_dir", "iterdir", "read_text", "read_bytes", "write_text", "write_bytes",
})  # fmt: skip
CLOCKS_AND_FILES = frozenset({"date", "datetime", "uuid", "Path", "PosixPath"})


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, and who imports it."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@cache
def trees_of(root: Path) -> dict[Path, ast.Module]:
    """The syntax tree of each file."""
    gc.disable()  # or most of the time goes into looks at the trees that are there already
    try:
        return {path: ast.parse(path.read_text("utf-8"), str(path)) for path in sorted(root.rglob("*.py"))}
    finally:
        gc.enable()


@cache
def modules(root: Path) -> dict[str, ast.Module]:
    """Dotted name -> syntax tree, the package itself included."""
    found = {}
    for path, tree in trees_of(root).items():
        parts = (PACKAGE, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = tree
    return found


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def imports(trees: dict[str, ast.Module], packages: set[str]) -> list[Import]:
    """Every import, also those inside functions and those by `import_module("a literal")`."""
    found = []

    def add(importer: str, imported: str, node: ast.AST) -> None:
        found.append(Import(importer, imported, line(node)))

    for importer, tree in trees.items():
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        add(importer, alias.name, node)
                case ast.ImportFrom(module=module, names=names, level=level):
                    base = module or ""
                    if level:
                        here = importer if importer in packages else importer.rpartition(".")[0]
                        for _ in range(level - 1):
                            here = here.rpartition(".")[0]
                        base = f"{here}.{module}" if module else here
                    for alias in names:
                        submodule = f"{base}.{alias.name}"
                        add(importer, submodule if submodule in trees else base, node)
                case ast.Call(
                    func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(name)), *_]
                ):
                    add(importer, name, node)
                case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                    add(importer, name, node)
    return found


@cache
def read(root: Path) -> tuple[dict[str, ast.Module], list[Import]]:
    trees = modules(root)
    packages = {PACKAGE} | {".".join((PACKAGE, *p.relative_to(root).parent.parts)) for p in root.rglob("__init__.py")}
    return trees, imports(trees, packages)


def unit(module: str) -> str:
    """What stands for a module in LAYERS: the first name below the package."""
    return module.split(".")[1] if "." in module else "__init__"


def is_within(module: str, places: tuple[str, ...]) -> bool:
    inner = module.removeprefix(f"{PACKAGE}.")
    return any(inner == place or inner.startswith(f"{place}.") for place in places)


def layer(module: str) -> int | None:
    return next((height for height, units in enumerate(LAYERS) if unit(module) in units), None)


def upward_imports(root: Path) -> list[str]:
    """Imports against the direction. One for types only counts too: to name a thing is to depend on it."""
    trees, found = read(root)
    wrong = [f"{module} has no layer: give it one in LAYERS" for module in trees if layer(module) is None]
    for each in found:
        if each.imported.split(".")[0] != PACKAGE:
            continue
        if each.imported == PACKAGE and unit(each.importer) in USERS_OF_PUBLIC_NAMES:
            continue
        above, below = layer(each.importer), layer(each.imported)
        if above is not None and below is not None and below > above:
            wrong.append(f"{each}, which stands above it")
    return wrong


def circles(root: Path) -> list[str]:
    """Modules that name each other, wherever the import stands and if for types only: no reader can begin with one."""
    trees, found = read(root)
    graph: dict[str, set[str]] = {module: set() for module in trees}
    for each in found:
        if each.imported in graph and each.imported != each.importer:
            graph[each.importer].add(each.imported)
    reached = {module: reachable(graph, module) for module in graph}
    together = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return sorted(" <> ".join(sorted(circle)) for circle in together if circle)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Every module that an import leads to, directly or through others."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def repeated_file_names(root: Path) -> list[str]:
    """File names that occur more than once. One integration may well have the parts of another."""
    places: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        if path.name != "__init__.py" and inner.parts[0] != "integrations":
            places.setdefault(path.name, []).append(inner.as_posix())
    return [f"{name} is the name of {', '.join(paths)}" for name, paths in places.items() if len(paths) > 1]


def strangers(root: Path) -> list[str]:
    """Third-party names outside their leaf."""
    _, found = read(root)
    wrong = []
    for each in found:
        top = each.imported.split(".")[0]
        if top == PACKAGE or top in sys.stdlib_module_names:
            continue
        if not is_within(each.importer, (*LEAVES.get(top, ()), "integrations")):
            wrong.append(f"{each}: {top} may stand in {', '.join(LEAVES.get(top, ())) or 'integrations'} only")
    return wrong


def impurities(root: Path) -> list[str]:
    """What in `core` waits, looks at a clock or at the world, or comes from outside the standard library."""
    trees, found = read(root)
    wrong = []
    for each in found:
        if unit(each.importer) != "core":
            continue
        top = each.imported.split(".")[0]
        if top in IMPURE_MODULES or (top != PACKAGE and top not in sys.stdlib_module_names):
            wrong.append(f"{each}")
    for module, tree in trees.items():
        if unit(module) == "core":
            wrong += [f"{module}:{line(node)} {what}" for node in ast.walk(tree) if (what := impurity(node))]
    return wrong


def impurity(node: ast.AST) -> str | None:
    match node:
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
            return "is asynchronous"
        case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
            return f"calls {name}()"
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name)) if (
            owner in CLOCKS_AND_FILES and name in IMPURE_METHODS
        ):
            return f"calls {owner}.{name}()"
        case ast.Attribute(value=ast.Name(id=module), attr=name) if name not in PERMITTED_OF.get(module, {name}):
            return f"uses {module}.{name}"
        case ast.Import(names=names) if any(alias.asname and alias.name in PERMITTED_OF for alias in names):
            return "renames a module of which only a part is permitted"
        case ast.ImportFrom(module=str(module), names=names):
            taken = {alias.name for alias in names}
            if forbidden := taken - PERMITTED_OF.get(module, taken):
                return f"takes {', '.join(sorted(forbidden))} from {module}"
    return None


def internals_imported(tests: Path, root: Path, pages: Path) -> dict[str, set[str]]:
    """Test file -> the modules it imports of which no page names a thing. What stands in the text of a program that a
    test starts does not count."""
    named = {
        name for page in pages.glob("*.md") for name in re.findall(rf"{PACKAGE}(?:\.\w+)*", page.read_text("utf-8"))
    }
    public = {
        ".".join(parts[:end]) for name in named for parts in [name.split(".")] for end in range(1, len(parts) + 1)
    }
    internal = modules(root).keys() - public - {f"{PACKAGE}.__main__"}  # the command
    found: dict[str, set[str]] = {}
    for path, tree in trees_of(tests).items():
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    imported = {alias.name for alias in names}
                case ast.ImportFrom(module=str(module), names=names):
                    imported = {module, *(f"{module}.{alias.name}" for alias in names)}
                case _:
                    continue
            if used := imported & internal:
                found.setdefault(path.relative_to(tests).as_posix(), set()).update(used)
    return found


def private_attributes(tests: Path, root: Path) -> dict[str, list[int]]:
    """Test file -> the lines with an attribute or a name that begins with one underscore and that the package gives to
    something of its own."""
    given = {name for tree in modules(root).values() for node in ast.walk(tree) for name in private_names(node)}
    given -= {"_asdict", "_fields", "_replace"}  # a named tuple's, which are public
    found: dict[str, list[int]] = {}
    for path, tree in trees_of(tests).items():
        lines = {
            line(node)
            for node in ast.walk(tree)
            if private_names(node) & given
            and not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self")
            and not isinstance(node, ast.Assign | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        if lines:
            found[path.relative_to(tests).as_posix()] = sorted(lines)
    return found


def private_names(node: ast.AST) -> set[str]:
    """The names with one underscore that a node defines, or takes from something."""
    match node:
        case ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            names = {name}
        case ast.ClassDef(name=name):
            names = {name}
        case ast.Assign(targets=targets):
            names = {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            names = {name}
        case ast.ImportFrom(module=str(module), names=aliases) if module.split(".")[0] == PACKAGE:
            names = {alias.name for alias in aliases}
        case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
            names = {name}
        case _:
            return set()
    return {name for name in names if re.match("_[^_]", name)}


RULES = [upward_imports, circles, repeated_file_names, strangers, impurities]
