"""Streams, chunk by chunk: recorded while they pass, given back as they were, closed early where they were."""

from agent_cache.recording.streams.faces import played_stream, recorded_stream
from agent_cache.recording.streams.kinds import is_stream
from agent_cache.recording.streams.relays import relay

__all__ = ["is_stream", "played_stream", "recorded_stream", "relay"]
