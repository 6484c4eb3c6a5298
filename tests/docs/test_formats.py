"""The references of cassettes and journals name every field and every kind of line that is written, and no other."""

import re
from pathlib import Path

import pytest

from agent_cache.cli.cassettes import _FORMS
from agent_cache.recording import Redaction
from agent_cache.recording.file import Header, Intent, OpenCall, OtherLine, RecordedCall, Trailer
from agent_cache.recording.outcomes import Failure, Stream, _Parts
from agent_cache.resume.journal import JournalHeader

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
CASSETTE, JOURNAL = ((FOLDER / f"{name}-format.md").read_text("utf-8") for name in ("cassette", "journal"))


def named(page: str, after: str) -> set[str]:
    """Names in the first cells of the table that follows this text, as ``name`` or as the key of what is shown."""
    rows = []
    for line in page[page.index(after) + len(after) :].splitlines():
        if line.startswith("|"):
            rows.append(line.split("|")[1])
        elif rows:
            break
    return set(re.findall(r'`(?:\{?")?(\w+)', " ".join(rows[2:])))


def test_every_line_has_the_fields_of_its_table():
    assert named(CASSETTE, "## Header") == set(Header.__struct_fields__)
    assert named(CASSETTE, "## A call") == set(RecordedCall.__struct_fields__) - {
        "place",
        "hidden",
    }  # which journals have
    assert named(CASSETTE, "## Trailer") == set(Trailer.__struct_fields__)
    assert named(CASSETTE, "in this order, with") < set(RecordedCall.__struct_fields__)
    assert named(CASSETTE, "An exception has") == set(Failure.__struct_fields__)
    assert named(CASSETTE, "and a stream") == set(Stream.__struct_fields__)


def test_every_form_of_an_outcome_is_named_and_what_may_stand_beside_it():
    assert named(CASSETTE, "### Outcomes") == _FORMS
    assert named(CASSETTE, "It may also have these fields:") > set(_Parts.__struct_fields__) - _FORMS


def test_what_a_redaction_is_described_by_is_named():
    described = Redaction(["a"], [re.compile("b")], lambda data: data, defaults=False).describe()
    row = next(line for line in CASSETTE.splitlines() if line.startswith("| `redact`"))
    assert set(described) <= set(re.findall(r"`(\w+)`", row))


def in_sentence(start: str) -> set[str]:
    [sentence] = re.findall(rf"{re.escape(start)}[^.|]*", JOURNAL)
    return set(re.findall(r"`(\w+)`", sentence.removeprefix(start)))


@pytest.mark.slow
def test_the_header_has_the_fields_of_its_table():
    assert named(JOURNAL, "## Header") == set(JournalHeader.__struct_fields__)


def test_every_kind_of_line_is_in_the_table():
    assert named(JOURNAL, "## Lines") == {"id", *OtherLine.__struct_fields__} - {"times"}


def test_every_field_of_a_line_is_named():
    assert named(JOURNAL, "A call has in addition") == {"place", "hidden"} < set(RecordedCall.__struct_fields__)
    assert in_sentence("`open` has") == set(OpenCall.__struct_fields__)
    own = named(JOURNAL, "An intent has")
    assert in_sentence("An intent has") | own == set(Intent.__struct_fields__)
