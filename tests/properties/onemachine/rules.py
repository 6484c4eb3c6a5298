"""The parts of the one-machine protocol that can be taken out, one at a time, to see what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole protocol by default.

    Attributes:
        sequence_after_slots: a writer changes the slots, then the sequence; else the sequence first.
        locks_page: slots and sequence are changed by who holds the write lock; else before it is taken.
        has_busy_bit: a slot shows whether a write that runs has a cell of it.
        keeps_others_busy: a commit leaves a slot busy in which another write has a cell.
        marks_armed: the slots of armed cells are busy; else they are changed only.
        repairs: a slot that is busy for no write is set idle.
        sequence_before_slots: a local hit reads the sequence, then the slots; else the slots first.
        words_before_slots: ... and the suspensions between the two; else after the slots.
        slots_before_database: a lookup reads the slots, then the database; else the database first.
        rechecks_insertion: a local copy is inserted only if its slots are as they were at its lookup.
        first_stamp: the stamp of a copy that is inserted: none, so that its first hit reads the slots; or the sequence.
        keeps_idle_only: which cells of a local copy must have been idle at its lookup: all; all but armed ones; or
            none.
        holds_for_dead: the cells of a dead writer stay held for a lease; else they are moved and released at once.
        keeps_expired: the row of a write that has expired stays while its process lives; else it is deleted.
        strong_passes_over_armed: a strong lookup does not find what depends on an armed cell.
        rechecks: a value whose tags come from its result is stored only if S and D are as before its load.
        moves_root: the write of an entity moves D of its root.
        arms: a write whose tags come from its result arms S and D; else it begins without any cell.
        raises_floor: a cell that is pruned gets another version; else that of every missing cell is the same.
        suspends: how it is seen that an invalidation is not in the database. Each process has a word with the number of
            its own. By a mark that each suspension raises anew, and another one that is set to what was raised before
            all words were read and were zero; by reading the words each time; or by a hint, which is cleared before the
            words are read, only if they were zero and set again if they are not, or without reading them.
        jumps: who suspends the page changes the sequence.
        looks_after_snapshot: a lookup also looks for suspensions after its snapshot.
        looks_before_snapshot: ... and before it.
        looks_at_store: a store looks for suspensions.
        flushes_for_dead: when a process has died with invalidations that are not in the database, all values are
            deleted and all cells moved; else only its word is cleared.
        flush_ends_copies: ... and the slots of all cells are changed.
        flush_waits: ... not before a lease has passed.
    """

    sequence_after_slots: bool = True
    locks_page: bool = True
    has_busy_bit: bool = True
    keeps_others_busy: bool = True
    marks_armed: bool = True
    repairs: bool = True
    sequence_before_slots: bool = True
    words_before_slots: bool = True
    slots_before_database: bool = True
    rechecks_insertion: bool = True
    first_stamp: Literal["none", "sequence"] = "none"
    keeps_idle_only: Literal["all", "not held", "any"] = "all"
    holds_for_dead: bool = True
    keeps_expired: bool = True
    strong_passes_over_armed: bool = True
    rechecks: bool = True
    moves_root: bool = True
    arms: bool = True
    raises_floor: bool = True
    suspends: Literal["marks", "words", "hint", "hint after words", "hint without words"] = "marks"
    jumps: bool = True
    looks_after_snapshot: bool = True
    looks_before_snapshot: bool = True
    looks_at_store: bool = True
    flushes_for_dead: bool = True
    flush_ends_copies: bool = True
    flush_waits: bool = True


WHOLE = Rules()
