"""Logs, and the advice that is mined from them, as data: the command prints texts, and nothing of this is public."""

from __future__ import annotations

from agent_cache.advise.calls import UNKNOWN, LoggedCall, is_failure
from agent_cache.advise.logs import read_log
from agent_cache.advise.mine import mine
from agent_cache.advise.paths import kind_by_name
from agent_cache.advise.replay_check import Outcome, Policy, replay_all, tags_of
from agent_cache.advise.tag_rules import BY_NAME, Advice, rules_of

__all__ = [
    "BY_NAME", "UNKNOWN", "Advice", "LoggedCall", "Outcome", "Policy", "is_failure", "kind_by_name", "mine", "read_log",
    "replay_all", "rules_of", "tags_of",
]  # fmt: skip
