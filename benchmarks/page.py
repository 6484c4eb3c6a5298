"""Tables in the documentation, put there by the benchmark that measured them and never by hand."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
BENCHMARKS = DOCS / "benchmarks.md"
LOOPS = DOCS / "explanation" / "loops.md"
FLEET = DOCS / "explanation" / "fleet.md"


def put(name: str, text: str, page: Path = BENCHMARKS) -> None:
    """Replace what stands between the two comments of this name, the only ones of it in the page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    old, _, after = rest.partition(end)
    if not old:
        message = f"{page.name} has no place for {name!r}: it needs the lines {begin!r} and {end!r}"
        raise SystemExit(message)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
