"""Journals written by hand, line by line, as a run writes them: finished, killed, torn, or with what no run writes."""

from __future__ import annotations

import itertools
import json
import os
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent_cache.recording.file import RecordedCall, Trailer, call_line, digest_of, trailer_line
from agent_cache.resume.journal import journal_path, read_journal

_START = datetime(2026, 1, 1, tzinfo=UTC)
_minutes = itertools.count()


class WrittenJournal:
    """The journal of a session. Calls are one after another."""

    def __init__(self, directory: Path, session_id: str, **header: Any) -> None:
        self.session_id = session_id
        self.path = journal_path(directory, session_id)
        self.last_id = 0
        self.last_ended = 0
        self.sequence = 0
        self.run = os.urandom(16).hex()
        first = {
            "agent_cache_journal": 1,
            "session_id": session_id,
            "recorded_at": "2026-01-01T00:00:00Z",
            "run": self.run,
            "secret": os.urandom(16).hex(),
            "redact": {},
            **header,
        }
        self.append(json.dumps(first, separators=(",", ":")).encode() + b"\n")

    @classmethod
    def of(cls, path: Path) -> WrittenJournal:
        """A journal that is there, to go on with."""
        found = read_journal(path)
        made = cls.__new__(cls)
        made.session_id, made.run, made.path = found.session_id, found.run, path
        made.last_id = max([0, *(call.id for call in found.calls), *(one.id for one in found.in_doubt)])
        made.last_ended = found.calls[-1].id if found.calls else 0
        made.sequence = len(found.checkpoints)
        return made

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def _append(self, line: dict[str, Any]) -> None:
        self.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def read(self, name: str, value: Any = None, **arguments: Any) -> int:
        return self._call(name, arguments, {"value": value}, "miss")

    def write(self, name: str, value: Any = None, **arguments: Any) -> int:
        self.begin_write(name, **arguments)
        self.last_id -= 1
        return self._call(name, arguments, {"value": value}, "write")

    def now(self) -> int:
        return self._call("time", {}, {"value": 1.5}, "", kind="env")

    def ask(self, prompt: str, tokens: int) -> int:
        return self._call("think", {"prompt": prompt}, {"value": "so"}, "", kind="llm", input_tokens=tokens)

    def _call(self, name: str, arguments: dict[str, Any], outcome: dict[str, Any], source: str, **fields: Any) -> int:
        self.last_id += 1
        call = RecordedCall(
            id=self.last_id,
            name=name,
            arguments=arguments,
            digest=digest_of(name, arguments).hex(),
            after=self.last_ended,
            outcome=outcome,
            source=source,
            **{"kind": "tool", **fields},
        )
        place = os.urandom(16).hex().encode()
        self.append(call_line(call)[:-2] + b',"place":"%s"}\n' % place)
        self.last_ended = self.last_id
        return self.last_id

    def begin_write(self, name: str, **arguments: Any) -> str:
        """A write that has begun. Returns its key."""
        self.last_id += 1
        key = os.urandom(16).hex()
        intent = {"id": self.last_id, "kind": "tool", "name": name, "arguments": arguments, "place": key, "key": key}
        self._append({"intent": intent})
        return key

    def checkpoint(self, label: str = "", state: dict[str, Any] | None = None, **fields: Any) -> str:
        self.sequence += 1
        at = _START + timedelta(minutes=next(_minutes))
        checkpoint = {
            "id": uuid.uuid4().hex,
            "sequence": self.sequence,
            "after": self.last_ended,
            "label": label,
            "importance": 0.5,
            "created_at": at.isoformat().replace("+00:00", "Z"),
            "framework": "custom",
            "state": state or {},
            **fields,
        }
        self._append({"checkpoint": checkpoint})
        return str(checkpoint["id"])

    def seal(self) -> None:
        self.append(trailer_line(Trailer(calls=self.last_ended)))
