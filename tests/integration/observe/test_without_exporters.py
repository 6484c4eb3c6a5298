"""Programs that export nothing, and environments in which there is nothing to export with."""

from __future__ import annotations

import pytest

from tests.harness.processes import run_python


def test_a_program_that_does_not_use_it_imports_nothing_of_it():
    code = """
import sys
from agent_cache import AgentCache, AgentCacheSession
@AgentCache("x")
def get(): return 1
with AgentCacheSession(): get(); get()
print([name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "prometheus_client")],
      "agent_cache.otel" in sys.modules)
"""
    assert run_python(code).split() == ["[]", "False"]


@pytest.mark.parametrize(("module", "package"), [("otel", "opentelemetry"), ("prometheus", "prometheus_client")])
def test_the_error_of_a_missing_package_names_the_extra(module, package):
    code = f"""
import sys
sys.modules["{package}"] = None
import agent_cache
try:
    agent_cache.{module}
except ImportError as error:
    print(error)
"""
    assert f'pip install "agent-cache[{module}]"' in run_python(code)
