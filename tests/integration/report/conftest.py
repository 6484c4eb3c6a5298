from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_cache.__main__ import main

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium: that of the system, driven by Playwright's wheel. Of a module, since it runs an event loop."""
    api = pytest.importorskip("playwright.sync_api", reason='a browser is driven by pip install "agent-cache[browser]"')
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium on the PATH: apt-get install chromium")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file in a browser without a network. The page must make no request, and have no error in its console."""
    contexts, troubles = [], []

    def is_trouble(message: Any) -> bool:  # Chromium advises those who read a canvas, which only the tests do
        return message.type in ("error", "warning") and "willReadFrequently" not in message.text

    def open_page(path: Path, *, waits: bool = True, **options: Any) -> Any:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        url = path.as_uri()

        def refuse(route: Any) -> None:
            if route.request.url == url:
                route.continue_()
            else:
                troubles.append(f"a request: {route.request.url}")
                route.abort()

        context.route("**/*", refuse)
        page.on("request", lambda request: request.url == url or troubles.append(f"a request: {request.url}"))
        page.on("websocket", lambda socket: troubles.append(f"a websocket: {socket.url}"))
        page.on("pageerror", lambda error: troubles.append(f"an error: {error}"))
        page.on("dialog", lambda dialog: (troubles.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda message: is_trouble(message) and troubles.append(f"{message.type}: {message.text}"))
        page.goto(url)
        if waits:
            page.wait_for_selector("html[data-ready=yes]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command. Returns its exit code, and what it printed to stdout and to stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run
