"""What the pages of the service show is what happens, with a real server and a real client."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")
pytest.importorskip("openapi_spec_validator")

import msgspec

from agent_cache.service import restore_api
from tests.harness.checkpoint_service import running

DOCS = Path(__file__).parents[3] / "docs"
HOW_TO = DOCS / "how-to" / "serve-checkpoints.md"
REFERENCE = DOCS / "reference" / "service.md"


def test_the_example_of_the_page_works(capsys):
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = re.findall(r"^```python(?: no-run)?\n(.*?)^```$", HOW_TO.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks[:2]:
        exec(block, namespace)
    assert capsys.readouterr().out == "['pay', 'ship']\n"
    with running(namespace["app"]) as url:
        for block in blocks[2:]:
            exec(block.replace("http://127.0.0.1:8000", url), namespace)
    namespace["client"].close()


@pytest.mark.parametrize("kind", [restore_api.RestoreRequest, restore_api.RestoreResponse])
def test_the_reference_names_every_field(kind: type[msgspec.Struct]):
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", REFERENCE.read_text(), re.MULTILINE))))
    assert set(kind.__struct_fields__) <= named


def test_the_reference_names_every_status():
    described = msgspec.json.decode(Path(restore_api.__file__).with_name("openapi.json").read_bytes())["components"][
        "responses"
    ]
    assert set(re.findall(r"^\| (\d{3}) \|", REFERENCE.read_text(), re.MULTILINE)) == {*described, "405"}
