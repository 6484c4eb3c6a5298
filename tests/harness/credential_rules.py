"""Makes agent_cache/recording/credentials.json from the rules of Betterleaks (MIT), the successor of gitleaks:

    pip install regex && python -m tests.harness.credential_rules betterleaks.toml 2.0.0

Kept are the rules of credentials that are known by how they begin, such as ``ghp_`` or ``glsa_``. Not kept are those
that need the name of a service nearby, or a request to it.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import regex

TARGET = Path(__file__).resolve().parents[2] / "agent_cache" / "recording" / "credentials.json"

# What may follow a token, in Betterleaks' own spelling: it consumes what comes after the token.
_AFTER = (
    r"(?:$|[^A-Za-z0-9_-])",
    r"""(?:\\?['"\x60]|[\s;]|\\[nr]|$)""",
    r"""(?:[\x60'"\s;]|\\[nr]|$|\b)""",
    r"(?:[^\w-]|\z)",
    r"\b",
)
_NOT_PART_OF_IT = r"(?![\w-])"
# Signs of a rule that is no token alone: names and blanks around it, a URL, a choice of what may follow.
_MORE_THAN_A_TOKEN = (
    "|:{1,3}=", "[\\s\\S]", ".*", "[^{]", "(?:.|", "\\s", "://", "(?P<", "\\z", "(?s", "atlasv1", "incoming", "(?:^|",
)  # fmt: skip
_MOST_STARTS = 8


def main(source: Path, version: str) -> None:
    rules: list[dict[str, Any]] = tomllib.loads(source.read_text("utf-8"))["rules"]
    kept, mixed = {}, {}
    for rule in rules:
        pattern = rule.get("regex", "")
        if not pattern or rule.get("skipReport") or rule["confidence"] != "high" or "path" in rule:
            continue
        pattern = _in_python(pattern.replace(r"|s\.(?i:[a-z0-9]{24})", ""))  # it begins as any name may
        if any(part in pattern for part in _MORE_THAN_A_TOKEN) or len(rule["keywords"]) > _MOST_STARTS:
            continue
        form = regex.compile(pattern, regex.ASCII)
        whole = regex.compile(f"(?i:{pattern})", regex.ASCII)
        starts = sorted({word for word in rule["keywords"] if len(word) >= 3 and whole.match(word, partial=True)})
        starts = [word for word in starts if re.match(r"[a-z0-9]{3}|[a-z0-9]+[-_.]", word)]
        if starts and form.pattern and not regex.compile(f"(?i:{pattern})").match(""):
            # Whether the beginning of a token may have other characters in it than letters, digits, `_`, `-` and `.`.
            is_mixed = re.search(r"9\+/|[:~]|(?<!\\)/", pattern.replace("(?:", "").replace("(?i:", "")) is not None
            if is_mixed:
                mixed[rule["id"]] = {"marks": starts, "pattern": rf"(?a:(?<![\w-]){pattern})", "any": True}
            else:
                kept[rule["id"]] = {"starts": starts, "pattern": pattern}
    document = {
        "source": f"Betterleaks {version}, config/betterleaks.toml, MIT license (see credentials.license)",
        "tokens": kept,
        "forms": mixed,
    }
    TARGET.write_text(json.dumps(document, indent=0, ensure_ascii=False) + "\n", "utf-8")
    sys.stdout.write(f"{len(kept) + len(mixed)} of {len(rules)} rules\n")


def _in_python(pattern: str) -> str:
    """A pattern of Go that is matched at the first character of a token, and ends with it."""
    pattern = pattern.removeprefix("(?i)(?:^|[^a-z0-9-])")
    is_blind = pattern.startswith("(?i)")
    pattern = pattern.removeprefix("(?i)").removeprefix(r"\b").replace("[[:alnum:]]", "[A-Za-z0-9]")
    for after in _AFTER:
        if pattern.endswith(after):
            pattern = pattern.removesuffix(after)
            break
    pattern = _scoped(re.sub(r"\((?!\?)", "(?:", pattern))
    return (f"(?i:{pattern})" if is_blind else pattern) + _NOT_PART_OF_IT


def _scoped(pattern: str) -> str:
    """Flags of Go hold from where they stand to the end of the group."""
    while (found := re.search(r"\(\?i\)", pattern)) is not None:
        depth, end = 0, len(pattern)
        is_class = False
        for at in range(found.end(), len(pattern)):
            one = pattern[at]
            if pattern[at - 1] == "\\":
                continue
            is_class = (is_class or one == "[") and one != "]"
            if not is_class:
                depth += (one == "(") - (one == ")")
            if depth < 0:
                end = at
                break
        pattern = f"{pattern[: found.start()]}(?i:{pattern[found.end() : end]}){pattern[end:]}"
    return pattern


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
