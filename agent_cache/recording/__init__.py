"""Recording and replay: an agent's run, recorded once, is a deterministic test for ever."""

from agent_cache.errors import (
    CassetteError,
    CassetteNotFound,
    DivergenceError,
    MissingFixture,
    RecordedError,
    ReplayExhausted,
)
from agent_cache.recording.api import Recorder, record, replay
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.classes import register
from agent_cache.recording.diff import CassetteDiff, diff_cassettes
from agent_cache.recording.format import RecordedCall
from agent_cache.recording.intercept import intercept
from agent_cache.recording.llm import cached_llm_call
from agent_cache.recording.player import Player
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.world import now, random, uuid4

__all__ = [
    "Cassette",
    "CassetteDiff",
    "CassetteError",
    "CassetteNotFound",
    "DivergenceError",
    "MissingFixture",
    "Player",
    "RecordedCall",
    "RecordedError",
    "Recorder",
    "Redaction",
    "ReplayExhausted",
    "cached_llm_call",
    "diff_cassettes",
    "intercept",
    "now",
    "random",
    "record",
    "register",
    "replay",
    "uuid4",
]
