"""Going back to a run: resume it after a crash, checkpoints of its state, and what restores them."""

from agent_cache.errors import CheckpointError, InDoubtError, JournalEnded, JournalError, RestoreError
from agent_cache.resume.checkpoints import Checkpoint, CustomState, LangChainState, OpenAIAgentsState, register_state
from agent_cache.resume.durable import Journal, NotDone, idempotency_key
from agent_cache.resume.event_replay import AutoReplayManager, ReplayReport
from agent_cache.resume.restore_hooks import register_restore_hook, restore

__all__ = [
    "AutoReplayManager",
    "Checkpoint",
    "CheckpointError",
    "CustomState",
    "InDoubtError",
    "Journal",
    "JournalEnded",
    "JournalError",
    "LangChainState",
    "NotDone",
    "OpenAIAgentsState",
    "ReplayReport",
    "RestoreError",
    "idempotency_key",
    "register_restore_hook",
    "register_state",
    "restore",
]
