"""`RedisTier`: one coherent cache for a fleet, on Redis or Valkey, over redis-py.

All keys of a namespace share one hash slot, so each operation is one script on one server:

=================  ===================================================================================
``{ns}:n``         the number of the newest step
``{ns}:f``         the feed: a stream whose ids are these numbers
``{ns}:c:CELL``    the version of a cell: the number of the step that changed it last
``{ns}:h:CELL``    the writers that hold or arm it
``{ns}:w``, ``r``  when the lease of each writer ends, and the cells of each
``{ns}:v:ENTRY``   a value, behind its head
``{ns}:l:NAME``    a claim
``{ns}:t``         the ttls that are set at run time
``{ns}:p``         written with each question for the feed
``{ns}:none``      never exists: a node that gives or gets the slot refuses what names it beside another key
=================  ===================================================================================

Numbers are never used again: a counter that is lost begins with the time in microseconds. They mean something only
together with the replication id of the server, which each script reads: it changes with a failover, a failback and a
restart, so versions of another history match nothing. A server that is no primary refuses.

The feed of a process is complete until `max_staleness` after it has *sent* the last question for it that was
answered. That question writes a key as well, so an old primary that has lost its replicas refuses it, if it is
configured to. Only while that holds are local copies and values served.

A server may be stopped, and go on for moments. What it was sent over connections that it has accepted is executed
then, in any order, before anything that it is sent later. So a write that it does not answer is on its way to it when
it returns, over a connection that is kept for that, and on which the server has answered: the system takes connections
to one that is stopped. And copies count from the question *before* the one that was answered last: see
`VersionedTier.catch_up`, and the model `tests/properties/stopped_server.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from functools import cache
from hashlib import sha1
from typing import Any, Final, Self, TypeVar

import msgspec

try:
    from redis.exceptions import NoPermissionError, NoScriptError, RedisClusterException, RedisError, ResponseError
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('RedisTier needs redis-py: pip install "agent-cache[redis]"') from error

from agent_cache.clock import boottime
from agent_cache.core.options import seconds
from agent_cache.errors import ConfigurationError
from agent_cache.remote.backend import IDLE, Reading, Refused, State, open_head
from agent_cache.remote.cells import EVERYTHING, STORE, Cell, SomeCells
from agent_cache.remote.codecs import Codec
from agent_cache.remote.deployments import Deployment
from agent_cache.remote.feed import LOST, News
from agent_cache.remote.versioned import VersionedTier

__all__ = ["RedisTier"]

T = TypeVar("T")
Command = Callable[[Any], Awaitable[T]]

_HALF_A_DAY: Final = 43_200.0
_OPTIONS: Final = frozenset({"namespace", "max_staleness", "timeout", "lease", "remote_ttl", "codec", "max_value_size"})
_MOST_HANDED_OVER: Final = 1_000  # writes that are sent to a server that does not answer
_SPARE_LASTS: Final = 60.0  # seconds: servers, and what lies before them, end connections that are idle for long
_AT_ONCE: Final = 50
"""Values that one command looks up or deletes: more of them, if they are large, take longer than the timeout."""
_CONNECTIONS: Final = 16  # of each event loop: lookups of one moment share commands, and writes have one each

_COMMON: Final = """
local P, TTL = string.sub(KEYS[1], 1, -5), '@TTL'
local N, W, R, F, T = P .. 'n', P .. 'w', P .. 'r', P .. 'f', P .. 't'
local store = string.match(redis.call('INFO', 'replication'), 'role:master.*master_replid:(%x+)')
if not store then return redis.error_reply('READONLY it is a replica, or says no master_replid') end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6 + @SHIFT
local function newest()
  local n = redis.call('GET', N)
  if not n then
    n = time[1] .. string.format('%06d', tonumber(time[2]))
    redis.call('SET', N, n)
  end
  return n
end
local function step(cells, message)
  newest()
  local n = string.format('%.0f', redis.call('INCR', N))
  for _, cell in ipairs(cells) do redis.call('SET', P .. 'c:' .. cell, n, 'PX', TTL) end
  redis.call('XADD', F, 'MAXLEN', '~', 10000, n .. '-0', 'm', message)
  return n
end
local function unregister(writer)
  local packed = redis.call('HGET', R, writer)
  if not packed then return {} end
  local cells = cjson.decode(packed)
  for _, cell in ipairs(cells) do redis.call('HDEL', P .. 'h:' .. cell, writer) end
  redis.call('HDEL', R, writer)
  redis.call('ZREM', W, writer)
  return cells
end
local function register(writer, held, armed, deadline)
  local all = {}
  for mode, cells in pairs({[1] = armed, [2] = held}) do
    for _, cell in ipairs(cells) do
      redis.call('HSET', P .. 'h:' .. cell, writer, mode)
      redis.call('PEXPIRE', P .. 'h:' .. cell, TTL)
      all[#all + 1] = cell
    end
  end
  if #all == 0 then return end
  redis.call('HSET', R, writer, cjson.encode(all))
  redis.call('ZADD', W, string.format('%.6f', deadline), writer)
  redis.call('PEXPIRE', R, 2 * TTL)
  redis.call('PEXPIRE', W, 2 * TTL)
end
for _, writer in ipairs(redis.call('ZRANGEBYSCORE', W, '-inf', string.format('%.6f', now), 'LIMIT', 0, 100)) do
  step(unregister(writer), '')
end
"""

_READ: Final = """
local busy = redis.call('ZCARD', W) > 0
local function state(cell)
  local key, mode = P .. 'c:' .. cell, 0
  local version = redis.call('GET', key)
  if not version then
    version = newest()
    redis.call('SET', key, version, 'PX', TTL)
  end
  if busy then
    for _, held in ipairs(redis.call('HVALS', P .. 'h:' .. cell)) do mode = math.max(mode, tonumber(held)) end
  end
  return {version, mode}
end
local answers = {}
for _, asked in ipairs(cjson.decode(ARGV[1])) do
  local states, value = {}, false
  for _, cell in ipairs(asked[1]) do states[cell] = state(cell) end
  if asked[2] then
    value = redis.call('GET', P .. 'v:' .. asked[2])
    local is_read, head = pcall(cjson.decode, value and string.match(value, '^([^\\n]*)\\n') or '')
    if is_read and type(head) == 'table' and type(head[1]) == 'table' then
      for cell in pairs(head[1]) do
        if type(cell) == 'string' and cell ~= '#' then states[cell] = states[cell] or state(cell) end
      end
    end
  end
  answers[#answers + 1] = {cjson.encode(states), value}
end
return {store, string.format('%.6f', now), answers}
"""

_BEGIN: Final = """
local writer, deadline = ARGV[1], now + tonumber(ARGV[4])
if ARGV[6] ~= '' and redis.call('HEXISTS', R, writer) == 1 then
  redis.call('ZADD', W, string.format('%.6f', deadline), writer)
  return {store, '0'}
end
local held, armed = cjson.decode(ARGV[2]), cjson.decode(ARGV[3])
register(writer, held, armed, deadline)
return {store, step(held, ARGV[5])}
"""

_COMMIT: Final = """
local writer, moved, hold = ARGV[1], cjson.decode(ARGV[2]), tonumber(ARGV[3])
unregister(writer)
if hold > 0 then register(writer, moved, {}, now + hold) end
return {store, step(moved, ARGV[4])}
"""

_CLAIM: Final = """
local key, who, lease = P .. 'l:' .. ARGV[1], ARGV[2], tonumber(ARGV[3])
local present = redis.call('HMGET', key, 'who', 'ends')
if present[1] and tonumber(present[2]) > now and present[1] ~= who then
  return present[1]
end
redis.call('HSET', key, 'who', who, 'ends', string.format('%.6f', now + lease))
redis.call('PEXPIRE', key, string.format('%.0f', math.max(1, lease * 1000)))
return who
"""

_FEED: Final = """
redis.call('SET', P .. 'p', '', 'PX', 10000)
if ARGV[1] ~= '' and tonumber(newest()) < tonumber(ARGV[1]) then -- an older copy of the keys was put back
  redis.call('SET', N, ARGV[1])
  return {store, step({'*'}, '?'), {}}
end
local found = {}
if ARGV[1] ~= '' then found = redis.call('XRANGE', F, '(' .. ARGV[1] .. '-0', '+') end
return {store, newest(), found}
"""

_TTL: Final = """
redis.call('HDEL', T, ARGV[1])
if ARGV[2] ~= '' then redis.call('HSET', T, ARGV[1], ARGV[2]) end
return {store, step({}, ARGV[3])}
"""

_TEXTS: Final = {
    "read": _READ, "begin": _BEGIN, "commit": _COMMIT, "claim": _CLAIM, "feed": _FEED, "ttl": _TTL,
    "ttls": "return redis.call('HGETALL', T)",
}  # fmt: skip


@cache
def _scripts_of(cell_ttl: int, shift: float = 0.0) -> dict[str, tuple[str, str]]:
    """The scripts of a tier by name, each with its digest. They hold what is the same in all calls.

    Args:
        cell_ttl: milliseconds that the version of a cell lives.
        shift: seconds that are added to the server's clock.
    """
    texts = {name: _COMMON + text for name, text in _TEXTS.items()}
    filled = {name: text.replace("@TTL", str(cell_ttl)).replace("@SHIFT", repr(shift)) for name, text in texts.items()}
    return {name: (text, sha1(text.encode()).hexdigest()) for name, text in filled.items()}  # noqa: S324 - the server names it so


_encode: Final = msgspec.json.Encoder().encode


class _Loop:
    """What one event loop has: a client, and the lookups that go with the next command."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.asked: list[tuple[list[Cell], Cell | None, asyncio.Future[Reading]]] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.turns, self.delivering = asyncio.Semaphore(_CONNECTIONS), asyncio.Lock()
        self.spare: Any = None
        self.ending = self._end()
        self.is_closed = False

    async def _end(self) -> Any:
        """Closes the client when the event loop shuts its generators down, or nobody has it any more."""
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Close all connections that there are."""
        self.is_closed = True
        with suppress(RedisError, OSError, RuntimeError):
            if self.spare is not None:
                await self.spare.disconnect()
            await Deployment.close(self.client)
            for _ in range(3):  # a transport that was given up closes its socket in a later step of the loop
                await asyncio.sleep(0)


class _Rejected(Refused):
    """The server has answered, and does not do what was asked."""


class _RedisBackend:
    """A `Backend` on a server.

    Args:
        deployment: the servers.
        namespace: what the keys begin with.
        timeout: seconds for all waiting of one operation.
        cell_ttl: seconds that the version of a cell lives. Twice the longest ttl of values, since a server that runs
            out of memory evicts short ttls first.

    Attributes:
        failure: why the server is not asked now; None if it is.
        shift: seconds that are added to the server's clock, for tests.
        loops: what is open, of each event loop.
    """

    def __init__(self, deployment: Deployment, *, namespace: str, timeout: float, cell_ttl: float) -> None:
        self.deployment = deployment
        self.prefix = f"{{{namespace}}}:"
        self.failure: str | None = None
        self.shift = 0.0
        self.batches = 0
        self.loops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop]()
        self._timeout = timeout
        self._cell_ttl = int(cell_ttl * 1000)
        self._keys = f"{self.prefix}none", f"{self.prefix}n"
        self.is_over = False
        self._spare: tuple[asyncio.AbstractEventLoop, Any] | None = None  # its event loop, and the connection
        self._spare_ends = 0.0
        self._handed_over: set[str] = set()
        self._is_full = False  # that connection takes no more for now

    # Commands

    async def own_loop(self) -> _Loop:
        """What is open of the running event loop.

        Raises:
            ConnectionError: if the tier was closed.
        """
        if self.is_over:
            raise Refused("the tier was closed")
        loop = asyncio.get_running_loop()
        own = self.loops.get(loop)
        if own is None:
            for other in self.loops.keyrefs():  # what one of them has open would keep it
                if (ended := other()) is not None and ended.is_closed():
                    self.loops.pop(ended, None)
            own = self.loops[loop] = _Loop(self.deployment.connect(self._timeout))
            await anext(own.ending)  # from now on the loop knows of it
        return own

    async def _in_time(self, own: _Loop, command: Command[T], seconds_left: float) -> T:
        try:
            async with asyncio.timeout(seconds_left):
                # For a connection that is closed: asyncio in Python 3.12 and 3.13, and uvloop.
                with suppress(AttributeError, RuntimeError):
                    return await command(own.client)
                return await command(own.client)
        finally:
            if own.is_closed:  # while the command was under way: the client has opened its connection again
                await own.close()

    async def _guarded(self, command: Command[T], *, patience: float = 0.0, probes: bool = False) -> T:
        """Run a command when it is its turn: how long it waits for others of its event loop says nothing of the server.
        Only the process's own thread asks one that has not answered.

        Raises:
            ConnectionError: if it fails, or takes too long.
        """
        own, loop = await self.own_loop(), asyncio.get_running_loop()
        async with own.turns:
            if self.failure is not None and not probes:
                raise Refused(self.failure)
            begun = time.monotonic()
            try:
                # In an empty context: a connection that is opened meanwhile keeps that, and not its caller's.
                return await loop.create_task(self._in_time(own, command, self._timeout + patience), context=Context())
            except ResponseError as error:  # it has answered; ASK and MOVED name a node
                text = "it is a node of a cluster: say cluster=True" if hasattr(error, "node_addr") else str(error)
                raise _Rejected(text.partition(" script: ")[0]) from error
            except (RedisError, RedisClusterException, OSError, TimeoutError, RuntimeError) as error:
                cause: BaseException = error  # that of redis-py says of a missing right that there is no cluster
                while isinstance(cause, RedisClusterException) and (inner := cause.__cause__ or cause.__context__):
                    cause = inner
                reason = str(cause) or f"no answer within {self._timeout:g} s"
                if time.monotonic() < begun + patience + 1.5 * self._timeout:  # else its event loop was blocked
                    self.failure = reason
                raise Refused(reason) from error

    async def _run(self, name: str, *arguments: Any, probes: bool = False) -> Any:
        text, sha = _scripts_of(self._cell_ttl, self.shift)[name]
        values = *self._keys, *arguments

        async def command(client: Any) -> Any:
            try:
                return await client.evalsha(sha, 2, *values)
            except NoScriptError:
                return await client.eval(text, 2, *values)

        return await self._guarded(command, probes=probes)

    # Steps that the server does not answer

    async def keep_spare(self) -> None:
        """Have a connection that the server has accepted. Called while it answers."""
        if self._spare is None or self._handed_over or boottime() > self._spare_ends:
            own = await self.own_loop()
            own.spare = await self._guarded(self._connected, probes=True)
            former, self._spare = self._spare, (asyncio.get_running_loop(), own.spare)
            self._spare_ends, self._handed_over, self._is_full = boottime() + _SPARE_LASTS, set(), False
            if former is not None:
                await former[1].disconnect(nowait=True)

    async def _connected(self, client: Any) -> Any:
        if hasattr(client, "get_node_from_key"):
            await client.initialize()
            servers = client.get_node_from_key(self._keys[1])
        else:
            servers = client.connection_pool
        connection = servers.connection_class(**servers.connection_kwargs)
        try:
            await connection.connect()
            await connection.send_command("PING")  # the system takes connections to a server that is stopped
            await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _hand_over(self, writer: str, *values: Any) -> None:
        """Send the end of a write once over that connection, and return when it is on its way. It stays pending."""
        if self._spare is None or self._is_full or writer in self._handed_over:
            return
        loop, connection = self._spare
        if loop is asyncio.get_running_loop() or not connection.is_connected:
            return
        text, _ = _scripts_of(self._cell_ttl, self.shift)["commit"]
        self._handed_over.add(writer)
        sending = connection.send_command("EVAL", text, 2, *self._keys, writer, *values, check_health=False)
        try:
            sent = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(sending, loop))
        except RuntimeError:  # that loop has ended
            sending.close()
        else:
            _, late = await asyncio.wait([asyncio.gather(sent, return_exceptions=True)], timeout=self._timeout)
            self._is_full = bool(late) or len(self._handed_over) >= _MOST_HANDED_OVER

    # Backend

    async def read(self, cells: SomeCells, address: Cell | None) -> Reading:
        """See `Backend`. What is asked for in one moment shares commands."""
        own = await self.own_loop()
        future: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()
        own.asked.append(([cell for cell in cells if cell != STORE], address, future))
        if len(own.asked) == 1:
            await asyncio.sleep(0)
            asked, own.asked = own.asked, []
            if len(asked) == 1:
                await self._answer(asked)
            else:
                task = asyncio.get_running_loop().create_task(self._answer_all(asked))
                own.tasks.add(task)
                task.add_done_callback(own.tasks.discard)
        return await future

    async def _answer_all(self, asked: list[tuple[list[Cell], Cell | None, asyncio.Future[Reading]]]) -> None:
        for start in range(0, len(asked), _AT_ONCE):
            await self._answer(asked[start : start + _AT_ONCE])

    async def _answer(self, asked: list[tuple[list[Cell], Cell | None, asyncio.Future[Reading]]]) -> None:
        self.batches += 1
        try:
            questions = _encode([(cells, address or False) for cells, address, _ in asked])
            store, now, answers = await self._run("read", questions)
        except BaseException as error:
            failure = error if isinstance(error, ConnectionError) else Refused(f"its lookup has ended: {error!r}")
            for _, _, future in asked:
                if not future.done():
                    future.set_exception(failure)
                    future.exception()  # who was cancelled will not ask for it, and asyncio would log that
            if not isinstance(error, Exception):
                raise
            return
        for (_, _, future), answer in zip(asked, answers, strict=True):
            if not future.done():
                future.set_result(_reading(store.decode(), float(now), *answer))

    async def put(self, address: Cell, head: bytes, payload: bytes, *, keep: float | None) -> None:
        key, life = f"{self.prefix}v:{address}", int(max(0.001, keep or _HALF_A_DAY) * 1000)
        await self._guarded(lambda client: client.set(key, head + b"\n" + payload, px=life))

    async def begin(
        self, writer: str, held: SomeCells, armed: SomeCells, lease: float, message: bytes, *, renew: bool = False
    ) -> int:
        options = _encode(list(held)), _encode(list(armed)), repr(lease), message, "renew" if renew else ""
        return int((await self._run("begin", writer, *options))[1])

    async def commit(self, writer: str, moved: SomeCells, hold: float, message: bytes) -> int:
        values = writer, _encode(list(moved)), repr(hold), message
        try:
            return int((await self._run("commit", *values))[1])
        except ConnectionError as error:
            if not isinstance(error, _Rejected):
                await self._hand_over(*values)
            raise

    async def claim(self, name: str, who: str, lease: float) -> str:
        found: bytes = await self._run("claim", name, who, repr(lease))
        return found.decode()

    async def feed(self, since: int | None) -> News:
        """See `Backend`. It asks a server also that has not answered before."""
        asked = "" if since is None else str(since)
        try:
            store, number, rows = await self._run("feed", asked, probes=True)
        except _Rejected as error:  # it is a replica, may not write, is full, or knows this user otherwise
            self.failure = str(error)
            raise
        self.failure = None
        newest, messages = int(number), [(int(key.partition(b"-")[0]), fields[1]) for key, fields in rows]
        # Without a number there are none: a loss for who has learned one from another answer meanwhile.
        is_whole = since is not None and len(messages) == newest - since
        return News(store.decode(), newest, messages if is_whole else None)

    async def wait_for_news(self, since: int, patience: float) -> None:
        """Return when there is a step after a number, or after some seconds."""
        block, streams = max(1, int(patience * 1000)), {f"{self.prefix}f": f"{since}-0"}
        try:
            await self._guarded(lambda client: client.xread(streams, count=1, block=block), patience=patience)
        except _Rejected:  # by a user's rights, or a proxy: it has not waited
            await asyncio.sleep(patience)

    async def set_ttl(self, tool: str, ttl: float | None, message: bytes) -> int:
        return int((await self._run("ttl", tool, "" if ttl is None else repr(ttl), message))[1])

    async def ttls(self) -> dict[str, float]:
        flat = await self._run("ttls")
        return {tool.decode(): float(ttl) for tool, ttl in zip(flat[::2], flat[1::2], strict=True)}

    async def clear(self) -> int:
        # The values first: a server that is full takes the step after that.
        count: int = sum([await client.unlink(*keys) async for client, keys in self._keys_of_values()])
        await self._run("commit", "clear", _encode([EVERYTHING]), "0", LOST)
        return count

    async def _keys_of_values(self) -> AsyncIterator[tuple[Any, list[bytes]]]:
        """The client of this event loop, and the keys of all values, some at a time."""
        await self._run("ttls")  # which a replica refuses, and is not answered for ever
        client = (await self.own_loop()).client
        pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", self.prefix) + "v:*"
        keys = [key async for key in client.scan_iter(match=pattern, count=1_000)]
        for start in range(0, len(keys), _AT_ONCE):
            yield client, keys[start : start + _AT_ONCE]

    async def values(self) -> AsyncIterator[list[tuple[Cell, bytes, int, float | None]]]:
        """All values, some at a time: address, head, size, and seconds until it ends."""
        async for client, keys in self._keys_of_values():
            async with client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.strlen(key).pttl(key).getrange(key, 0, 1 << 18)
                found = await pipeline.execute(raise_on_error=False)
            if denied := [one for one in found if isinstance(one, NoPermissionError)]:
                raise denied[0]
            names = [key[len(self.prefix) + 2 :].decode("utf-8", "replace") for key in keys]
            rows = zip(names, found[::3], found[1::3], found[2::3], strict=True)
            yield [
                (name, value.partition(b"\n")[0], size, left / 1000 if left >= 0 else None)
                for name, size, left, value in rows
                if isinstance(value, bytes) and size
            ]

    async def aclose(self) -> None:
        """See `Backend`. Other event loops close their own connections when they end."""
        self.is_over = True
        own = self.loops.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.ending.aclose()

    def after_fork(self) -> None:
        """In the child: connections of the parent are not touched."""
        _INHERITED.extend(self.loops.values())
        self.loops.clear()
        self.failure = self._spare = None


_INHERITED: list[_Loop] = []


def _reading(store: str, now: float, known: bytes, value: bytes | None) -> Reading:
    found = msgspec.json.decode(known.decode("utf-8", "replace"), type=dict[str, tuple[str, int]])
    states: dict[Cell, State] = {**found, STORE: (store, IDLE)}
    raw_head, _, payload = (value or b"").partition(b"\n")
    head = open_head(raw_head) if raw_head else None
    if head is not None and not head.versions.keys() <= states.keys():
        head = None
    return Reading(states, now, head, raw_head, payload)


class RedisTier(VersionedTier):
    """A tier on a server that a fleet shares: Redis 6.2 or later (a cluster: 7.0), Valkey 7.2 or later.

    After a write has ended, other processes stop serving what was loaded before it within `max_staleness` seconds,
    whatever happens to their network; without a fault, as soon as its message arrives. A server that is down, slow or
    hung costs one call at most `timeout`; tools run without it until it answers again.

    One tier serves any number of event loops and threads, and may be used after a fork. Each loop has connections of
    its own, and each process one daemon thread that follows what others write. In a cluster all keys of a namespace
    are on one node.

    Args:
        client: an existing client of `redis.asyncio`: single, Sentinel or Cluster. Its settings are taken over; its
            connections, timeouts and retries are not used. See also `from_url`.
        namespace: what all keys begin with. Fleets that share a server and no data have one each.
        max_staleness: seconds that a process serves local copies without hearing from the server: from when it has
            sent the last but one of its questions for news that were answered.
        timeout: seconds that the server may take to connect or to answer. Less than `max_staleness`.
        lease: seconds after which a writer that is not heard of any more counts as dead.
        remote_ttl: seconds that a value lives whose tool has no ttl. None lives for longer than this, or half a day.
        codec: how values are written; the default is MessagePack.
        max_value_size: bytes of the longest value that is stored. None is as much as the codec allows, which is 1 MiB
            for the default.

    Raises:
        ConfigurationError: if any of this cannot work.
    """

    backend: _RedisBackend

    def __init__(
        self,
        client: Any,
        *,
        namespace: str = "agent_cache",
        max_staleness: float | timedelta = 1.0,
        timeout: float | timedelta = 0.25,
        lease: float | timedelta = 10.0,
        remote_ttl: float | timedelta = 3600.0,
        codec: Codec | None = None,
        max_value_size: int | None = None,
    ) -> None:
        self._deployment = client if isinstance(client, Deployment) else Deployment.of_client(client)
        staleness, patience = seconds(max_staleness, "RedisTier: max_staleness"), seconds(timeout, "RedisTier: timeout")
        if patience >= staleness:
            raise ConfigurationError(
                f"RedisTier: timeout must be less than max_staleness, for a lookup that is shared gives up within it; "
                f"got timeout={patience:g}, max_staleness={staleness:g}"
            )
        life = seconds(remote_ttl, "RedisTier: remote_ttl")
        self.longest_ttl = longest = max(_HALF_A_DAY, life)
        backend = _RedisBackend(self._deployment, namespace=namespace, timeout=patience, cell_ttl=2 * longest)
        super().__init__(
            backend, namespace=namespace, lease=lease, remote_ttl=life, codec=codec, max_value_size=max_value_size,
            max_staleness=staleness,
        )  # fmt: skip

    @classmethod
    def from_url(cls, url: str, *, cluster: bool = False, **options: Any) -> Self:
        """A tier on the server at ``redis://user:password@host:6379/0``, ``rediss://...`` (TLS) or ``unix://path``.

        Args:
            url: as redis-py reads it, parameters included (``?ssl_ca_certs=...``). Parameters for timeouts, retries,
                pools and decoding of other clients that use the same URL are ignored.
            cluster: the server is a node of a cluster.
            options: those of the class, and further settings of redis-py's connections: ``username``,
                ``ssl_ca_certs``, ``credential_provider``... A setting without effect, such as a timeout of redis-py's,
                is refused.
        """
        own = {name: options.pop(name) for name in _OPTIONS & options.keys()}
        return cls(Deployment.of_url(url, cluster=cluster, options=options), **own)

    def __repr__(self) -> str:
        return f"<RedisTier {', '.join(self._deployment.names)}>"

    def stats(self) -> dict[str, Any]:
        """Counts of this process and its present state: a plain copy, to be logged or exported.

        Returns:
            Those of `VersionedTier.stats`, and ``batches`` (commands for lookups), ``servers`` (address to ``"ok"``, or
            why it is not asked).
        """
        state = "the tier was closed" if self.is_closed else self.backend.failure or "ok"
        return super().stats() | {
            "batches": self.backend.batches,
            "servers": dict.fromkeys(self._deployment.names, state),
        }

    async def catch_up(self) -> None:
        """See `VersionedTier`."""
        if self.keeper is not None and self.keeper.is_here():
            await self.backend.keep_spare()  # before copies are served
        await super().catch_up()
        term = self.trust.term
        if term is not None and self.feed.listeners and not (term.is_running() or self.is_closed):
            await super().catch_up()  # copies count from the question before: they need not wait for the next period

    async def flush(self) -> None:
        """See `VersionedTier`. One caller of an event loop delivers for the others, which wait."""
        async with (await self.backend.own_loop()).delivering:
            await super().flush()

    def wait_for_news(self, period: float) -> Awaitable[object]:
        """See `VersionedTier`."""
        return self.backend.wait_for_news(self.feed.number or 0, period)

    async def aclose(self) -> None:
        """Close all connections, and end the thread. Nothing is trusted any more.

        What is pending is delivered first, if that takes no longer than the timeout. From then on a write cannot be
        announced, and a read finds nothing.
        """
        self.backend.failure = None  # one attempt more
        await super().aclose()
