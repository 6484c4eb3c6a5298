"""What loads show of their tools is noted here, for `recommendations()`: see `core.evidence`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from agent_cache.core.evidence import LastLoad
from agent_cache.core.store import Entry
from agent_cache.core.versions import VERSIONS
from agent_cache.engine.scope import Call
from agent_cache.values.canonical import is_large
from agent_cache.values.compare import fingerprint

__all__ = ["key_in_evidence", "note_load"]

_MOST: Final[dict[type, int]] = {**dict.fromkeys((str, bytes), 65_536), **dict.fromkeys((dict, list, set, tuple), 500)}
"""How long a result is that is compared: 0.1 ms for so many bytes of its copy, 1.5 ms for the members of a flat one."""


def key_in_evidence(call: Call) -> Hashable:
    """The key of a call with its session, if its answer belongs to one."""
    session = call.flight.store.session
    return call.key if session is None else (session, call.key)


def note_load(call: Call, value: object, stored: Entry | None, present: Entry | None, serial: int) -> None:
    """Note what a load shows about its tool: why it was needed, and whether its result differs from the one before.

    Args:
        value: its result.
        stored: its entry, None if it was not stored.
        present: the entry that was there before.
        serial: of the latest write before it was stored.
    """
    operation, key = call.operation, key_in_evidence(call)
    evidence = operation.evidence
    if not evidence.is_chosen(key) or (key not in evidence.latest and is_large(key)):
        return
    digest = _digest(call, value, stored) if stored is not None else None
    ends = call.started if stored is None else stored.expires
    load = LastLoad(call.started, ends, digest, serial, is_stored=stored is not None)
    written = max([VERSIONS.last(root) for root in operation.roots], default=0)
    expires = None if present is None else present.expires
    evidence.note(key, load, expires, written, is_miss=call.source == "miss" and not call.is_fresh)


def _digest(call: Call, value: object, stored: Entry) -> bytes | None:
    """What two results share that are the same, types included; None if that cannot be told, or takes long."""
    outcome_key = call.operation.policy.loop.outcome_key
    image: Any = next((part for part in getattr(stored.copy, "args", ()) if type(part) is bytes), value)
    if type(image) in _MOST and len(image) > _MOST[type(image)]:
        return None
    if outcome_key is not None:
        try:
            image = outcome_key(value)
        except Exception:  # noqa: BLE001 - the user's function; the loop guard logs that it raises
            return None
    return fingerprint(image)  # of the copy that is stored anyway: to walk the value takes a hundred times as long
