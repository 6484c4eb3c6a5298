"""What a check of the doctor's says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Check", "fine", "finding", "note"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        verdict: ``"fine"``, ``"finding"``, or ``"note"``: nobody can tell from here whether it is right.
        do: what to do about it, if anything.
    """

    name: str
    verdict: Literal["fine", "finding", "note"]
    says: str
    do: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "verdict": self.verdict, "says": self.says, "do": self.do or None}


def fine(name: str, says: str) -> Check:
    """It is as it should be."""
    return Check(name, "fine", says)


def finding(name: str, says: str, do: str) -> Check:
    """It is wrong."""
    return Check(name, "finding", says, do)


def note(name: str, says: str, do: str = "") -> Check:
    """It may be right or wrong."""
    return Check(name, "note", says, do)
