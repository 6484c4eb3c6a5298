"""The reference of the journal format names every field and every kind of line, and no other."""

import re
from pathlib import Path

import pytest

from agent_cache.recording.file import Intent, OpenCall, OtherLine, RecordedCall
from agent_cache.resume.journal import JournalHeader

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "journal-format.md").read_text()


def named(after: str) -> set[str]:
    """Names in the first cells of the table that follows this text."""
    rows = []
    for line in PAGE[PAGE.index(after) :].splitlines():
        if line.startswith("|"):
            rows.append(line.split("|")[1])
        elif rows:
            break
    return set(re.findall(r'`(?:\{")?(\w+)', " ".join(rows[2:])))


def in_sentence(start: str) -> set[str]:
    [sentence] = re.findall(rf"{re.escape(start)}[^.|]*", PAGE)
    return set(re.findall(r"`(\w+)`", sentence.removeprefix(start)))


@pytest.mark.slow
def test_the_header_has_the_fields_of_its_table():
    assert named("## Header") == set(JournalHeader.__struct_fields__)


def test_every_kind_of_line_is_in_the_table():
    assert named("## Lines") == {"id", *OtherLine.__struct_fields__} - {"times"}


def test_every_field_of_a_line_is_named():
    assert named("A call has in addition") == {"place", "hidden"} < set(RecordedCall.__struct_fields__)
    assert in_sentence("`open` has") == set(OpenCall.__struct_fields__)
    own = named("An intent has")
    assert in_sentence("An intent has") | own == set(Intent.__struct_fields__)
