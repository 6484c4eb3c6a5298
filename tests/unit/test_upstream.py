"""Where `AsyncCache` has its base class from: async-cache's own module, and no other one that is called ``cache``.

Each test starts a fresh interpreter without site-packages, on a path that is made for it: this package, an async-cache
as an installer would leave it, and a project with its own idea of what ``cache`` is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_cache
from tests.harness.slow import slow

PACKAGE = Path(agent_cache.__file__).parent
REPORT = """
import sys
import agent_cache
base = agent_cache.AsyncCache.__mro__[1]
file = getattr(sys.modules[base.__module__], "__file__", "-")
print(base.__name__, file, "cache" in sys.modules, "importlib.metadata" in sys.modules)
"""
STRANGER = "print('the stranger ran'); raise SystemExit('the stranger ran')"


def install(root: Path) -> None:
    """Leave an async-cache there as pip does. Its class is where the real one is, and imports as the real one does."""
    (root / "cache").mkdir(parents=True)
    (root / "cache" / "__init__.py").write_text("from .async_cache import AsyncCache\n", "utf-8")
    (root / "cache" / "async_cache.py").write_text("class AsyncCache: ...\n", "utf-8")
    metadata = root / "async_cache-2.0.3.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: async-cache\nVersion: 2.0.3\n", "utf-8")


def run(script: str, *path: Path) -> list[str]:
    """The words that a fresh interpreter prints, `path` first on its path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_", "PYTHON"))}
    alone = path[0].parent / "alone"  # installed, the package stands beside the real async-cache
    if not alone.exists():
        alone.mkdir()
        (alone / "agent_cache").symlink_to(PACKAGE, target_is_directory=True)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (*path, alone)))
    command = [sys.executable, "-S", "-W", "error", "-c", script]
    # In a folder of its own: with -c, the working directory is first on the path.
    done = subprocess.run(command, cwd=path[0].parent, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture(params=["module", *slow("package")])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project whose own ``cache`` must never be run by anyone but itself."""
    folder = tmp_path / "project"
    if request.param == "module":
        folder.mkdir()
        (folder / "cache.py").write_text(STRANGER, "utf-8")
    else:
        (folder / "cache").mkdir(parents=True)
        (folder / "cache" / "__init__.py").write_text(STRANGER, "utf-8")
        (folder / "cache" / "async_cache.py").write_text(STRANGER, "utf-8")
    return folder


@pytest.mark.slow
def test_where_nothing_is_in_the_way_it_is_the_class_that_everyone_imports(site: Path):
    same = "import cache, agent_cache; print(agent_cache.AsyncCache.__mro__[1] is cache.AsyncCache)"
    assert run(same, site) == ["True"]
    # Without `importlib.metadata`, which would be a tenth of what importing the package may take.
    assert run(REPORT, site) == ["AsyncCache", str(site / "cache" / "async_cache.py"), "True", "False"]


def test_a_project_with_a_cache_of_its_own_is_left_alone(site: Path, project: Path):
    """Nobody there can expect async-cache's class."""
    assert run(REPORT, project, site)[::2] == ["object", "False"]
    use = "import asyncio, agent_cache as a; c = a.AsyncCache(); c.set(1, 2); print(asyncio.run(c.get(1)))"
    assert run(use, project, site) == ["2"]


@pytest.mark.parametrize("entry", ["types.ModuleType('cache')", "None"])
def test_a_cache_that_is_imported_already_is_left_alone(site: Path, entry: str):
    script = (
        f"import sys, types\nsys.modules['cache'] = entry = {entry}\n{REPORT}\nprint(sys.modules['cache'] is entry)"
    )
    words = run(script, site)
    assert (words[0], words[-1]) == ("object", "True")


def test_without_the_distribution_the_package_works_all_the_same(project: Path):
    assert run(REPORT, project)[::2] == ["object", "False"]
