"""The package without any extra: each module can be imported, or its error names the extra that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_cache

# Hides every package but the two that are always installed, imports each module, and prints the errors.
IMPORT_ALL = """
import importlib, json, pkgutil, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {"agent_cache", "cache", "msgspec"} or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import agent_cache
errors = {}
for module in pkgutil.walk_packages(agent_cache.__path__, "agent_cache.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
            errors[module.name] = None
        except ImportError as error:
            errors[module.name] = str(error)
print(json.dumps(errors))
"""
# Only imported by a module that has said what is missing, or by pytest.
BEHIND_OTHERS = (
    "agent_cache.pytest_plugin.",
    "agent_cache.relay.http_proxy",
    "agent_cache.remote.deployments",
    "agent_cache.testing.fixtures",
)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Every module, and what its import said without extras."""
    checkout = str(Path(agent_cache.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env=os.environ | {"PYTHONPATH": checkout},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str | None] = json.loads(run.stdout)
    return found


def test_a_module_that_needs_an_extra_names_it(errors: dict[str, str | None]):
    missing = {name: text for name, text in errors.items() if text and not name.startswith(BEHIND_OTHERS)}
    assert {name: text for name, text in missing.items() if 'pip install "agent-cache[' not in text} == {}
    assert "agent_cache.otel" in missing
    assert 'needs Starlette: pip install "agent-cache[service]"' in (missing["agent_cache.service"] or "")
    assert "agent_cache.remote.redis" in missing


@pytest.mark.parametrize(
    "name", ["tools", "session", "toolbox", "recording", "resume.durable", "remote.file", "relay.stdio", "cli.main"]
)
def test_what_needs_no_extra_can_be_imported(name: str, errors: dict[str, str | None]):
    assert errors[f"agent_cache.{name}"] is None


def test_a_module_that_is_behind_others_exists(errors: dict[str, str | None]):
    assert [start for start in BEHIND_OTHERS if not any(name.startswith(start) for name in errors)] == []


# One thread imports the package of a module, and another one the module itself: Python would call that a deadlock.
TWO_THREADS = """
import sys, threading, agent_cache
from importlib.machinery import PathFinder

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "agent_cache.session":
            spec = PathFinder.find_spec(name, path)
            spec.loader.create_module = lambda spec: other.start() or other.join(0.2)
            return spec

sys.meta_path.insert(0, Finder)
other = threading.Thread(target=lambda: agent_cache.LoopPolicy)
agent_cache.AgentCacheSession
"""


def test_two_threads_may_ask_for_public_names_at_once():
    environment = os.environ | {"PYTHONPATH": str(Path(agent_cache.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", TWO_THREADS], env=environment, capture_output=True, text=True)
    assert run.stderr == ""
