"""Checkpoints over HTTP, as an ASGI app. Needs ``pip install "agent-cache[service]"``."""

from __future__ import annotations

try:
    import starlette as _starlette  # noqa: F401 - imported here for an error that names the extra
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('the service needs Starlette: pip install "agent-cache[service]"') from error

from agent_cache.service.restore_api import restore_app

__all__ = ["restore_app"]
