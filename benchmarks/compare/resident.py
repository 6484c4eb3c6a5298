"""What a cache makes a whole process grow by, extension modules included: `python -m benchmarks.compare.resident NAME`.

`tracemalloc` sees Python's own allocations only, and two of the peers keep a part of theirs in Rust. So each peer fills
a cache in a process of its own, and the growth of its resident memory is shared out among the entries. Linux only.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.compare.peers import PEERS, Peer

ENTRIES = 200_000
STATM = Path("/proc/self/statm")


def bytes_per_entry(peer: Peer) -> float | None:
    """Resident bytes per entry over key and value; None where the system does not say."""
    if not STATM.exists():
        return None
    command = [sys.executable, "-m", "benchmarks.compare.resident", peer.name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _resident() -> int:
    gc.collect()
    return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _growth(peer: Peer) -> float:
    keys = [f"user_{number:08d}" for number in range(ENTRIES)]
    values = {key: f"card {key}" for key in keys}

    async def get_card(user_id: str) -> str:
        return values[user_id]

    tool = peer.scalar(get_card, ENTRIES)
    await tool(keys[0])
    before = _resident()
    for key in keys:
        await tool(key)
    return (_resident() - before) / ENTRIES


if __name__ == "__main__":
    (chosen,) = [peer for peer in PEERS if peer.name == sys.argv[1]]
    print(asyncio.run(_growth(chosen)))
