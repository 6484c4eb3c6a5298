"""Going back to a run: checkpoints of its state, and what restores them."""

from agent_cache.errors import CheckpointError, RestoreError
from agent_cache.resume.checkpoints import Checkpoint, CustomState, LangChainState, OpenAIAgentsState, register_state

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CustomState",
    "LangChainState",
    "OpenAIAgentsState",
    "RestoreError",
    "register_state",
]
