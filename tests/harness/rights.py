"""The rights that the documents list, read from them: what a test grants is what a reader is told to."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

__all__ = ["in_cluster", "least", "of_an_operator"]

_DOCS = Path(__file__).parents[2] / "docs"
_GUIDE = _DOCS / "how-to" / "run-a-fleet.md"


def least(namespace: str = "agent_cache", password: str = "secret") -> list[str]:
    """What a shell makes of the command of the guide: the rules of the user `agent`, for a namespace and a password."""
    command = re.sub(r"^valkey-cli ", r"printf '%s\\n' ", _block(_GUIDE, "## Access rights", "sh"))
    words = subprocess.run(["sh", "-c", command], capture_output=True, check=True, text=True).stdout.splitlines()
    assert words[:3] == ["ACL", "SETUSER", "agent"]
    return [f">{password}" if word == ">password" else word.replace("shop", namespace) for word in words[3:]]


def in_cluster(rights: list[str]) -> list[str]:
    """The same, as the guide has them for a cluster."""
    found = re.search(r"A cluster needs `([^`]+)` as well", _GUIDE.read_text("utf-8"))
    assert found is not None
    return [*rights, *found[1].split()]


def of_an_operator() -> list[str]:
    """Those beyond a tier's that the reference of the commands lists."""
    return _block(_DOCS / "reference" / "fleet-cli.md", "## Rights", "text").split()


def _block(page: Path, heading: str, language: str) -> str:
    """The first block of a section."""
    _, _, rest = page.read_text("utf-8").partition(f"\n{heading}\n")
    section = re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.search(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page.name} has no block of {language} under {heading!r}"
    return found[1]
