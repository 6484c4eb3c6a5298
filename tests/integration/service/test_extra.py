"""The service without Starlette."""

import subprocess
import sys


def test_without_starlette_the_error_names_the_extra():
    code = "import sys; sys.modules['starlette'] = None\nimport agent_cache.resume\nimport agent_cache.service"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith('the service needs Starlette: pip install "agent-cache[service]"')
