from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_cache.__main__ import main
from agent_cache.recording import intercept, record


@intercept(name="shop:ask")
def ask(question: str) -> Any:
    if question == "broken":
        raise TimeoutError("no answer")
    return {"answer": question.upper()}


@intercept(name="shop:outer")
def outer(question: str) -> Any:
    return ask(question)


@intercept(name="model", kind="llm")
def think(prompt: str) -> dict[str, Any]:
    return {"model": "m-1", "usage": {"input_tokens": 120, "output_tokens": 30}, "text": prompt}


@intercept(name="shop:chunks")
def chunks(count: int):
    yield from range(count)


@pytest.fixture
def cassette(tmp_path: Path) -> Callable[..., Path]:
    """Record some questions; "outer:x" asks inside of another call, "model:x" a model, "stream:n" yields."""

    def make(name: str, *questions: str, **options: Any) -> Path:
        path = tmp_path / name
        with record(path, **options):
            for question in questions:
                kind, _, rest = question.rpartition(":")
                match kind:
                    case "outer":
                        outer(rest)
                    case "model":
                        think(rest)
                    case "stream":
                        list(chunks(int(rest)))
                    case _:
                        try:
                            ask(question)
                        except TimeoutError:
                            pass
        return path

    return make


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `agent-cache cassette ...`: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["cassette", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def document(command) -> Callable[..., tuple[int, Any]]:
    """The same with ``--json``: exit code and document."""

    def run(*arguments: object) -> tuple[int, Any]:
        code, out, _ = command(*arguments, "--json")
        return code, json.loads(out)

    return run
