"""The parts of the fleet protocol that can be taken out, one at a time, to see what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rules:
    """The whole protocol by default.

    Attributes:
        begins: a write announces itself before its side effect; else only afterwards.
        registry: who has a cell held, by the id of the write; or only how many have.
        renews: a running write keeps its lease.
        registers_again: a running write whose registration was lost begins once more.
        identity: a value counts only on the server it was stored under: known by its replication id, new with each
            promotion; by its run id, which a server keeps when it is demoted and promoted again; by the identity of the
            node that holds the value, not its cells; or not at all.
        rechecks: a value whose tags come from its result is stored only if S and D have not moved since before the load
            and were not held.
        arms: a write whose tags come from its result leaves S and D to expire if it dies.
        drops_on_resubscribe: after a subscription was lost, local copies are.
        waits_for_pending: while an invalidation of its own has not landed, a process does not use the shared tier.
        awaits_commits: which writes return only when their commit has landed: those with tags from their result, whose
            cells are not held before; or none.
        waits_for_own_commit: the lookups of a process wait for a commit of its own that is on its way.
        mints: a cell that is missing gets a fresh token before the load; else "missing" is a token like others.
        grace_ends_with_a_write: a value past its ttl counts only while its cells do.
        shares_under_hold: a load is shared between processes also while a cell is held.
        strong_reads_pass_over_armed: a strong read does not find what depends on an armed cell: its write may have
            returned, or died, without a commit.
        inherits: a read whose load makes other reads is stored under the versions that these were valid under; or, of a
            cell that two of them saw in two versions, under the later one; or under those fetched when it is stored.
        rechecks_covered: tags that its own result names are looked at again also if it inherits versions of their
            cells.
        trusts_all_roots: a local copy is trusted only while the subscriptions to all its roots are uninterrupted; else
            that to the first of them is enough.
        ends_trust_in_what_moves: with the slot of a root, the trust in what depends on it ends, though its connection
            stays.
        keeps_channels_of_copies: no channel is unsubscribed from while a copy or a load depends on it.
        splits_with_root_channel: who listens to parts of a root also listens to the channel of writes to all of it.
        parts_before_leaving: the channel of a whole root is left only when the channels of the parts are confirmed that
            its copies and loads depend on then.
        looks_for_marks: who listens to parts of a root looks with each heartbeat for the mark that a write of an
            earlier version deletes, which publishes on the channel of the root alone.
        trusts_from_sending: local copies are trusted from the sending of the PING that was answered; else from the
            arrival of its PONG.
        trusts_from_heartbeat: ... from the sending of the heartbeat that had been answered before that PING was sent;
            else of the PING itself.
        lookups_follow_heartbeats: a value on the server counts only for a lookup that was sent while the latest
            answered heartbeat was young.
        hands_over: what a write has to tell the server, and could not, is on its way over a connection that the server
            has accepted when the write returns; else only in the memory of its process.
    """

    begins: bool = True
    registry: Literal["ids", "counts"] = "ids"
    renews: bool = True
    registers_again: bool = True
    identity: Literal["replication id", "run id", "value's node", "none"] = "replication id"
    rechecks: bool = True
    arms: bool = True
    drops_on_resubscribe: bool = True
    waits_for_pending: bool = True
    awaits_commits: Literal["of results' tags", "of none"] = "of results' tags"
    waits_for_own_commit: bool = True
    mints: bool = True
    grace_ends_with_a_write: bool = True
    shares_under_hold: bool = False
    strong_reads_pass_over_armed: bool = True
    inherits: Literal["versions", "the later versions", "versions fetched anew"] = "versions"
    rechecks_covered: bool = True
    trusts_all_roots: bool = True
    ends_trust_in_what_moves: bool = True
    keeps_channels_of_copies: bool = True
    splits_with_root_channel: bool = True
    parts_before_leaving: bool = True
    looks_for_marks: bool = True
    trusts_from_sending: bool = True
    trusts_from_heartbeat: bool = True
    lookups_follow_heartbeats: bool = True
    hands_over: bool = True


WHOLE = Rules()
