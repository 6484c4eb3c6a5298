"""Examples of a page that need a package which most environments do not have.

Such a block is not run with the page. It stands below ``<!-- needs: PACKAGE -->`` as ```python no-run, and below it, as
```text, stands what it prints. The tests that have the package run it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
_EXAMPLE = r"^<!-- needs: {} -->\n```python no-run\n(.*?)^```\n\n```text\n(.*?)^```$"


def examples(page: str, package: str) -> list[tuple[str, str]]:
    """The code and the output of each example of a page that needs a package."""
    text = (DOCS / page).read_text("utf-8")
    return re.findall(_EXAMPLE.format(re.escape(package)), text, re.MULTILINE | re.DOTALL)


def run(code: str, names: dict[str, Any]) -> None:
    """Run an example, as a module with these names."""
    exec(compile(code, "page", "exec", dont_inherit=True), names)
