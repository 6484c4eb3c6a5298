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
from agent_cache.recording.api import now, observe, random, record, replay, uuid4
from agent_cache.recording.branch import Branch, Raised, Saved, fork
from agent_cache.recording.call_log import CallListener
from agent_cache.recording.cassette import Cassette
from agent_cache.recording.differences import CassetteDiff, diff_cassettes
from agent_cache.recording.drift import Baseline, DriftDetector, DriftEvent, DriftReport, DriftSeverity, Tolerance
from agent_cache.recording.file import RecordedCall
from agent_cache.recording.functions import cached_llm_call, intercept
from agent_cache.recording.http.identity import Http
from agent_cache.recording.outcomes import register
from agent_cache.recording.prices import Savings
from agent_cache.recording.redaction import Redaction
from agent_cache.recording.tape import Tape

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
    "Raised",
    "RecordedCall",
    "RecordedError",
    "Redaction",
    "ReplayExhausted",
    "Saved",
    "Savings",
    "WorldMovedError",
    "Tape",
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
