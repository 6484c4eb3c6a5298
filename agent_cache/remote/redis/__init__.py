"""The remote tier on Redis and Valkey. Needs ``pip install "agent-cache[redis]"``."""

from __future__ import annotations

try:
    import redis as _redis  # noqa: F401 - imported here for an error that names the extra
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('the remote tier needs redis-py: pip install "agent-cache[redis]"') from error

from agent_cache.remote.redis.tier import RedisTier

__all__ = ["RedisTier"]
