"""The run as one JSON document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from agent_cache._demo.chronicle import Chronicle
from agent_cache._demo.spectator import Spectator

__all__ = ["Document"]


class Document(Spectator):
    """Writes everything at the end, on stdout."""

    def finished(self, chronicle: Chronicle) -> None:
        print(json.dumps(_facts(chronicle), indent=2), flush=True)


def _facts(chronicle: Chronicle) -> dict[str, Any]:
    """Times are in seconds. Of a `--fast` run they are simulated, and the same each time."""
    totals = chronicle.totals()
    return {
        "seed": chronicle.seed,
        "is_simulated": chronicle.is_simulated,
        "seconds": chronicle.clock(),
        "answers": {"checked": totals.checked, "right": totals.checked - totals.stale, "stale": totals.stale},
        "stopped": [call.agent for call in chronicle.calls if call.outcome == "stopped"],
        "metrics": chronicle.session.get_metrics(),
        "calls": [asdict(call) for call in chronicle.calls],
    }
