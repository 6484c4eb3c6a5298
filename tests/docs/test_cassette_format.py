"""The reference of the cassette format names every field that a recording can write, and no other."""

import re
from pathlib import Path

from agent_cache.cli.cassettes import _FORMS
from agent_cache.recording import Redaction
from agent_cache.recording.file import Header, RecordedCall, Trailer
from agent_cache.recording.outcomes import Failure, Stream, _Parts

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cassette-format.md").read_text()


def named(line: str) -> set[str]:
    """Fields in the first cells of the table that follows this line, as ``name`` or as the key of what is shown."""
    rest = PAGE[PAGE.index(line) + len(line) :].splitlines()
    start = next(number for number, each in enumerate(rest) if each.startswith("| ---"))
    rows = rest[start + 1 : start + 1 + next(at for at, each in enumerate(rest[start + 1 :]) if each[:1] != "|")]
    return set(re.findall(r'`(?:\{?")?(\w+)', " ".join(each.split("|")[1] for each in rows)))


def test_every_line_has_the_fields_of_its_table():
    assert named("## Header") == set(Header.__struct_fields__)
    assert named("## A call") == set(RecordedCall.__struct_fields__) - {"place", "hidden"}  # which journals have
    assert named("## Trailer") == set(Trailer.__struct_fields__)
    assert named("in this order, with") < set(RecordedCall.__struct_fields__)
    assert named("An exception has") == set(Failure.__struct_fields__)
    assert named("and a stream") == set(Stream.__struct_fields__)


def test_every_form_of_an_outcome_is_named_and_what_may_stand_beside_it():
    assert named("### Outcomes") == _FORMS
    assert named("It may also have these fields:") > set(_Parts.__struct_fields__) - _FORMS


def test_what_a_redaction_is_described_by_is_named():
    described = Redaction(["a"], [re.compile("b")], lambda data: data, defaults=False).describe()
    row = next(line for line in PAGE.splitlines() if line.startswith("| `redact`"))
    assert set(described) <= set(re.findall(r"`(\w+)`", row))
