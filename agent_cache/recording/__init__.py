"""Recording and replay: an agent's run, recorded once, is a deterministic test for ever."""

from agent_cache.errors import (
    CassetteError,
    CassetteNotFound,
    DivergenceError,
    MissingFixture,
    RecordedError,
    ReplayExhausted,
    WorldMovedError,
)
from agent_cache.recording.api import now, random, record, replay, uuid4
from agent_cache.recording.branch import Branch, Saved, fork
from agent_cache.recording.cassette import Cassette, CassetteDiff, diff_cassettes
from agent_cache.recording.cassette_file import RecordedCall
from agent_cache.recording.drift import Baseline, DriftDetector, DriftEvent, DriftReport, DriftSeverity, Tolerance
from agent_cache.recording.edits import Raised
from agent_cache.recording.exceptions import register
from agent_cache.recording.functions import cached_llm_call, intercept
from agent_cache.recording.http.exchange import Http
from agent_cache.recording.observer import CallListener, observe
from agent_cache.recording.player import Player
from agent_cache.recording.prices import Savings
from agent_cache.recording.recorder import Recorder
from agent_cache.recording.redaction import Redaction

__all__ = [
    "Baseline",
    "Branch",
    "CallListener",
    "Cassette",
    "CassetteDiff",
    "CassetteError",
    "CassetteNotFound",
    "DivergenceError",
    "DriftDetector",
    "DriftEvent",
    "DriftReport",
    "DriftSeverity",
    "Http",
    "MissingFixture",
    "Player",
    "Raised",
    "RecordedCall",
    "RecordedError",
    "Recorder",
    "Redaction",
    "ReplayExhausted",
    "Saved",
    "Savings",
    "WorldMovedError",
    "Tolerance",
    "cached_llm_call",
    "diff_cassettes",
    "fork",
    "intercept",
    "now",
    "observe",
    "random",
    "record",
    "register",
    "replay",
    "uuid4",
]
