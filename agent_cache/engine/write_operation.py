"""One decorated write tool: how a call enters its plan, and which answers it names."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

from agent_cache.core.policies import WritePolicy
from agent_cache.engine.assemble import write_plan
from agent_cache.engine.cache_key import CacheKey
from agent_cache.engine.call import Call
from agent_cache.engine.operation import Operation
from agent_cache.engine.scope import SCOPE, Plan, Scope
from agent_cache.engine.state import log_once
from agent_cache.engine.tape import TapedCall
from agent_cache.errors import ConfigurationError

__all__ = ["WriteOperation"]


class WriteOperation(Operation[WritePolicy]):
    """A tool whose calls invalidate."""

    __slots__ = ()

    def compile(self, scope: Scope) -> Plan:
        return write_plan(self, scope)

    def is_successful(self, value: Any) -> bool:
        """Whether a call that returned has done what it was called for; `settle` holds only then."""
        ok = self.policy.ok
        if ok is None:
            return True
        try:
            return bool(ok(value))
        except Exception as error:  # noqa: BLE001 - the user's function; the call goes on without it
            log_once("ok= raised, so the write was taken for successful", self.name, error)
            return True

    def write(self, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """Run a write through its plan."""
        if scope.tape is not None:
            return scope.tape.play(TapedCall(self, scope, None, args, kwargs))
        plan = scope.plan(self)
        return self._run(Call(self, plan, None, args, kwargs, "write"), plan.run)

    async def invoke(self, /, *args: Any, **kwargs: Any) -> Any:
        return await self.write(SCOPE.get(), *self.parameters.split(self.parameters.bind(args, kwargs)))

    def keys_named_by(self, call: Call) -> tuple[CacheKey, ...]:
        """What `key_fn` names.

        Raises:
            ConfigurationError: if that is anything but `tool.cache_key(...)` or several of them.
        """
        key_fn = self.policy.key_fn
        assert key_fn is not None
        named = key_fn(call.args, call.kwargs)
        keys = (named,) if isinstance(named, CacheKey) else named
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise ConfigurationError(_no_key(self.name, named))
        listed = tuple(keys)
        for key in listed:
            if not isinstance(key, CacheKey):
                raise ConfigurationError(_no_key(self.name, key))
        return listed


def _no_key(tool: str, found: object) -> str:
    return (
        f"{tool}: key_fn(args, kwargs) must return tool.cache_key(...) of a tool decorated with AgentCache, or a list "
        f"of them; it returned {type(found).__name__}"
    )
