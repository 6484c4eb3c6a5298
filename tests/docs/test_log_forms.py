"""The examples of the page about forms of logs are read as it says."""

import re
from pathlib import Path

from agent_cache.advise.calls import UNKNOWN
from agent_cache.advise.logs import read_log

PAGE = (Path(__file__).parents[2] / "docs/reference/log-forms.md").read_text("utf-8")


def test_the_examples_are_read_as_calls(tmp_path):
    found = []
    for number, example in enumerate(re.findall(r"```(?:json|text)\n(.*?)```", PAGE, re.DOTALL)):
        path = tmp_path / str(number)
        path.write_text(example, "utf-8")
        log = read_log(path)
        found.append([(call.tool, call.arguments["order_id"], call.result, call.error) for call in log.calls])
        assert not log.problems
    missing = "LookupError: no such order"
    assert found == [
        [
            ("get_order", "W1", {"status": "late"}, None),
            ("refund", "W1", "refunded", None),
            ("get_order", "W9", UNKNOWN, missing),
        ],
        [("get_order", "W1", "late", None)],
        [("get_order", "W1", "late", None)],
    ]
