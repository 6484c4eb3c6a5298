"""Where `AsyncCache` has its base class from: async-cache's own module, and no other one that is called ``cache``.

A fresh interpreter without site-packages has a path that is made for it: this package, an async-cache as an installer
would leave it, and a project with its own idea of what ``cache`` is, which must never be run by anyone but itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import agent_cache

STRANGER = "raise SystemExit('the stranger ran')"
FILES = {
    "site/cache/__init__.py": "from .async_cache import AsyncCache\n",
    "site/cache/async_cache.py": "class AsyncCache: ...\n",
    "site/async_cache-2.0.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: async-cache\nVersion: 2.0.3\n",
    "module/cache.py": STRANGER,
    "package/cache/__init__.py": STRANGER,
    "package/cache/async_cache.py": STRANGER,
}
REPORT = "import agent_cache as a; base = a.AsyncCache.__mro__[1]; print(base.__module__, base.__name__)"


@pytest.mark.parametrize(
    ("folders", "before", "base"),
    [
        (["site"], "", "cache.async_cache AsyncCache"),
        (["module", "site"], "", "builtins object"),
        (["package", "site"], "", "builtins object"),
        (["module"], "", "builtins object"),
        (["site"], "import sys, types; sys.modules['cache'] = types.ModuleType('cache')\n", "builtins object"),
    ],
)
def test_the_base_class_is_that_of_async_cache_alone(tmp_path: Path, folders: list[str], before: str, base: str):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "alone").mkdir()  # installed, the package stands beside the real async-cache
    (tmp_path / "alone/agent_cache").symlink_to(Path(agent_cache.__file__).parent, target_is_directory=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "COVERAGE_", "PYTHON"))}
    environment["PYTHONPATH"] = os.pathsep.join(str(tmp_path / name) for name in (*folders, "alone"))
    command = [sys.executable, "-S", "-W", "error", "-c", before + REPORT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == base, done.stderr
