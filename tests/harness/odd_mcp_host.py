"""A host over stdio that sends and gets bytes, in front of a relay and `odd_mcp_server`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.harness.forks import Piped
from tests.harness.mcp_host import RELAY, piped, text_of

ODD_SERVER = (sys.executable, str(Path(__file__).with_name("odd_mcp_server.py")))


class RawHost:
    """A host that parses nothing but what it is asked to."""

    def __init__(self, process: Piped | asyncio.subprocess.Process) -> None:
        self.process = process

    async def send(self, *lines: bytes) -> None:
        for line in lines:
            self.process.stdin.write(line + b"\n")
        await self.process.stdin.drain()

    async def line(self) -> bytes:
        """The next line that comes."""
        return (await self.process.stdout.readline()).rstrip(b"\n")

    async def response(self, id: bytes) -> bytes:
        """The next line with this id; those before it are dropped."""
        while b'"id":%b,' % id not in (line := await self.line()):
            assert line, "the relay has ended"
        return line

    async def call(self, tool: str, key: str = "", id: int = 1000) -> str:
        """The text that a tool answers with."""
        await self.send(call_of(tool, key, b"%d" % id))
        return text_of(json.loads(await self.response(b"%d" % id))["result"])

    async def seen(self) -> list[bytes]:
        """What the server has got."""
        return [each.encode("latin-1") for each in json.loads(await self.call("seen"))]


def call_of(tool: str, key: str, id: bytes | None, more: bytes = b"") -> bytes:
    """A call of a tool; without an id where that is None."""
    named = b"" if id is None else b'"id":%b,' % id
    arguments = b'{"key":"%b"%b}' % (key.encode(), more)
    params = b'{"name":"%b","arguments":%b}' % (tool.encode(), arguments)
    return b'{"jsonrpc":"2.0",%b"method":"tools/call","params":%b}' % (named, params)


@asynccontextmanager
async def raw_relay(*options: Any) -> AsyncIterator[RawHost]:
    """A relay in front of the server."""
    process = await piped((*RELAY, *options), limit=1 << 26, environment=os.environ)
    try:
        yield RawHost(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(process, Piped):
            process.close()
