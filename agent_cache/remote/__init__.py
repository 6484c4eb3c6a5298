"""The border to caches outside this process: what the pipeline asks of a tier, and no more."""

from agent_cache.remote.protocols import Found, Listener, Request, Ticket, Tier, Touched, WriteIntent

__all__ = ["Found", "Listener", "Request", "Ticket", "Tier", "Touched", "WriteIntent"]
