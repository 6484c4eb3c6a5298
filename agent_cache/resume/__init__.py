"""Going back to a run: resume it after a crash, checkpoints of its state, and what restores them."""

from agent_cache.errors import CheckpointError, InDoubtError, JournalError, RestoreError
from agent_cache.resume.checkpoints import Checkpoint, CustomState, LangChainState, OpenAIAgentsState, register_state
from agent_cache.resume.durable import Journal, NotDone, idempotency_key

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CustomState",
    "InDoubtError",
    "Journal",
    "JournalError",
    "LangChainState",
    "NotDone",
    "OpenAIAgentsState",
    "RestoreError",
    "idempotency_key",
    "register_state",
]
