"""The environments of CI that were made for some tests fail if one of them is skipped."""

from __future__ import annotations

import pytest

from tests.harness.slow import slow_rows

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("source", "outcomes"),
    [
        ("import pytest\ndef test_it(): pytest.importorskip('no_such_library')", {"failed": 1}),
        ("import pytest\npytest.importorskip('no_such_library')\ndef test_it(): pass", {"errors": 1}),
        ("import pytest\n@pytest.mark.skip(reason='no_such_library')\ndef test_it(): pass", {"errors": 1}),
        ("import pytest\n@pytest.mark.xfail\ndef test_it(): assert False", {"xfailed": 1}),
        *slow_rows(("def test_it(): pass", {"passed": 1})),
    ],
    ids=["in a test", "in a module", "by a mark", "a failure that is expected", "nothing"],
)
def test_a_skipped_test_fails_and_says_why(
    source: str, outcomes: dict[str, int], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # most of the time of a run is that of other plugins
    pytester.makepyfile(source)
    pytester.runpytest_inprocess().assert_outcomes(**({"skipped": 1} if "no_such" in source else outcomes))
    result = pytester.runpytest_inprocess("-p", "tests.harness.no_skips")
    result.assert_outcomes(**outcomes)
    if "no_such" in source:
        result.stdout.fnmatch_lines(["*nothing may be skipped here: *no_such_library*"])
