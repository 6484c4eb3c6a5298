"""What the seam of aiohttp relies on: a version without it is told, or fails here first."""

from __future__ import annotations

import pytest

from agent_cache.recording.http import aiohttp_seam


def test_an_aiohttp_without_middlewares_is_left_alone():
    class Session:
        async def _request(self, method: str, url: str) -> None: ...

    class Library:
        ClientSession = Session

    with pytest.raises(LookupError, match=r"aiohttp 3\.12"):
        aiohttp_seam.patches(Library)
