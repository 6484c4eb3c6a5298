"""Lua scripts: begin, renew, commit and mint change cells. Each works on one root, so on one hash slot.

All are idempotent by the writer's id: a late, lost or doubled command only invalidates entries. Each sweeps first: a
writer whose lease has expired may have had its side effect before it died, so all its cells get fresh tokens.

A writer is registered with all its cells, for the sweep, and once more under each cell, for the cell's mark: so a
script reads only the writers that are due or share a cell, however many others hold cells for `settle` or `doubt`. For
the same reason a sweep takes a hundred writers at most. A cell that the sweep has not reached yet gets its fresh token
when it is next touched, or is gone: it expires with its last writer.

KEYS: the registry, then the cells named in the arguments (other keys of the same slot are touched as well). ARGV:
prefix of the cells, cell ttl in ms, a random text that fresh tokens are made of, the writer's id, lease or hold in ms,
and then lists, each preceded by its length.

Tokens are random texts from the client: a server's own generator repeats itself. A script's effects are replicated, not
the script, so its use of the clock is the same on every replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1

__all__ = [
    "BEGIN", "COMMIT", "MARK", "MINT", "RELEASE", "RENEW", "RESTORE_TTLS", "SET_TTLS", "Script", "sharded",
]  # fmt: skip

_PRELUDE = """
local call, pcall = redis.call, redis.pcall
local registry, prefix, cell_ttl, id, period = KEYS[1], ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[5])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local minted, at = 0, 6

local function fresh()
  minted = minted + 1
  return ARGV[3] .. minted
end

-- The next list of arguments.
local function list()
  local items, first = {}, at
  at = at + 1 + ARGV[first]
  for i = first + 1, at - 1 do items[i - first] = ARGV[i] end
  return items
end

-- The reply, or nil if the key has a value of another type, which somebody else has put there.
local function try(...)
  local reply = pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE') then return call(...) end  -- raises the error
end

-- A range of a sorted set of writers. A key of another type is deleted.
local function range(key, ...)
  local found = try('ZRANGE', key, ...)
  if found then return found end
  call('DEL', key)
  return {}
end

-- The latest deadline of these writers, and whether one of them has died. Dead writers are removed.
local function latest_of(writers)
  local first = range(writers, 0, 1, 'WITHSCORES')  -- two, to see whether there is only one, as is usual
  local deadline = tonumber(first[2])
  if not deadline then return nil, false end
  local is_dead = deadline <= now
  if is_dead then
    local dead = range(writers, '-inf', now, 'BYSCORE')
    for i = 1, #dead, 1000 do call('ZREM', writers, unpack(dead, i, math.min(i + 999, #dead))) end
  end
  if is_dead or first[3] then deadline = tonumber(range(writers, -1, -1, 'WITHSCORES')[2]) end
  return deadline, is_dead
end

-- Set a cell to a token, marked by its writers: ! held, ~ armed. It expires with its last writer.
local function set_cell(name, token)
  local writers = registry .. ':' .. name
  local latest, is_dead = latest_of(writers)
  local mark = latest and '!' or ''
  if name == 'S' or name == 'D' then
    local armed, is_dead_too = latest_of(writers .. '~')
    is_dead = is_dead or is_dead_too
    if armed and not latest then mark = '~' end
    if armed and armed > (latest or 0) then latest = armed end
  end
  local value = mark .. (is_dead and fresh() or token)
  call('SET', prefix .. name, value, 'PX', latest and latest - now or cell_ttl)
  return value
end

-- The value of a cell, or nil. A value of another type or length counts as missing, and is overwritten.
local function cell_of(name)
  local value = try('GET', prefix .. name)
  return value and value ~= '' and #value < 256 and value or nil
end

local due = range(registry, '(0', now, 'BYSCORE', 'LIMIT', 0, 100)  -- 0: see MARK
if #due > 0 then
  local dead = {}
  for _, member in ipairs(due) do  -- "id|mode|cells"
    call('ZREM', registry, member)
    for name in string.gmatch(string.match(member, '^[^|]*|[^|]*|(.*)$') or '', '[^ ]+') do dead[name] = true end
  end
  for name in pairs(dead) do set_cell(name, fresh()) end
end
"""

_WRITERS = """
-- The token of a cell without its mark, a fresh one if it is missing.
local function token_of(name)
  local value = cell_of(name)
  return value and string.gsub(value, '^[!~]', '') or fresh()
end

local function enter(writers, member)
  local added = try('ZADD', writers, 'GT', now + period, member)  -- a late begin does not shorten a hold
  if not added then
    call('DEL', writers)
    added = call('ZADD', writers, 'GT', now + period, member)
  end
  call('PEXPIRE', writers, cell_ttl)
  return added == 0
end

-- Register the writer under each of these cells. Whether it was registered under all of them before.
local function register(mode, names, mark)
  if #names == 0 then return true end
  local is_known = enter(registry, id .. '|' .. mode .. '|' .. table.concat(names, ' '))
  for _, name in ipairs(names) do is_known = enter(registry .. ':' .. name .. mark, id) and is_known end
  return is_known
end

local function leave(mode, names, mark)
  if #names == 0 then return end
  call('ZREM', registry, id .. '|' .. mode .. '|' .. table.concat(names, ' '))
  for _, name in ipairs(names) do pcall('ZREM', registry .. ':' .. name .. mark, id) end
end

-- The last list of arguments: channels, each followed by its message.
local function announce()
  local messages = list()
  for i = 1, #messages, 2 do call('PUBLISH', messages[i], messages[i + 1]) end
end

local function begin(held, armed)
  register('armed', armed, '~')
  register('held', held, '')
  for _, name in ipairs(armed) do set_cell(name, token_of(name)) end
  for _, name in ipairs(held) do set_cell(name, fresh()) end
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """Source and digest of one script."""

    source: bytes
    digest: bytes

    @classmethod
    def of(cls, *parts: str) -> Script:
        """Join the parts."""
        source = "".join(parts).encode()
        return cls(source, sha1(source, usedforsecurity=False).hexdigest().encode())


@cache
def sharded(script: Script) -> Script:
    """The same script for a cluster, where a message stays on the shard of its root."""
    return Script.of(script.source.replace(b"'PUBLISH'", b"'SPUBLISH'").decode())


BEGIN = Script.of(
    _PRELUDE,
    _WRITERS,
    """
local held, armed = list(), list()
begin(held, armed)
announce()
return 1
""",
)
"""Register the writer, hold its cells, arm those of a root whose entities its result will name, and publish that."""

RENEW = Script.of(
    _PRELUDE,
    _WRITERS,
    """
local held, armed = list(), list()
local is_known = register('held', held, '')
is_known = register('armed', armed, '~') and is_known
if is_known then
  for _, name in ipairs(held) do set_cell(name, token_of(name)) end
  for _, name in ipairs(armed) do set_cell(name, token_of(name)) end
  return 1
end
begin(held, armed)
announce()
return 0
""",
)
"""Extend the lease. A writer that is not registered, or not any more, begins again."""

COMMIT = Script.of(
    _PRELUDE,
    _WRITERS,
    """
local moved, held, armed, values = list(), list(), list(), list()
leave('held', held, '')
leave('armed', armed, '~')
if period > 0 then register('held', moved, '') end
local is_written = {}
for _, name in ipairs(moved) do
  set_cell(name, fresh())
  is_written[name] = true
end
for _, names in ipairs({held, armed}) do
  for _, name in ipairs(names) do
    if not is_written[name] then set_cell(name, token_of(name)) end
  end
end
for i = 1, #values, 1000 do redis.call('DEL', unpack(values, i, math.min(i + 999, #values))) end
announce()
return 1
""",
)
"""End a write: its cells get fresh tokens, other cells it held or armed lose their mark, its values are deleted. With a
hold period, the written cells stay held for so long."""

MINT = Script.of(
    _PRELUDE,
    """
local found = {}
for i, name in ipairs(list()) do
  found[i] = cell_of(name) or set_cell(name, fresh())
end
return found
""",
)
"""Return these cells, creating missing ones with a fresh token. "Missing" cannot be a version itself: a cell that
expires twice would make an old value valid again."""

MARK = Script.of("""
local found = redis.call('ZRANGE', KEYS[1], 0, 0, 'BYSCORE')
if not found[1] then
  found = {ARGV[1] .. '||'}
  redis.call('ZADD', KEYS[1], 0, found[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return found[1]
""")
"""Return the mark in the registry of a root, which every sweep of an earlier version deletes: these publish nothing
about the parts of a root. Without a mark, add this one. It looks like a writer without cells, whose lease has ended.
"""

CLAIM = Script.of("""
local claimant = redis.pcall('GET', KEYS[1])
if type(claimant) ~= 'string' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return ARGV[1]
end
return claimant
""")
"""Claim a load for so many milliseconds, unless it is claimed. Returns whose it is, so that who waits can tell a load
from the next one: `SET NX` has told that only since Redis 7."""

RENEW_CLAIM = Script.of(
    "return redis.pcall('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0"
)
"""Extend a claim if it is still one's own."""

RELEASE = Script.of("return redis.pcall('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0")
"""Delete a claim if it is still one's own: it may have expired and belong to another process by now."""

_TTLS = """
local hash, version, channel = KEYS[1], ARGV[1], ARGV[2]
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', hash, ARGV[i]) else redis.call('HSET', hash, ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', hash, '', version)
redis.call('PUBLISH', channel, version)
return redis.call('HGETALL', hash)
"""

SET_TTLS = Script.of(_TTLS)
"""Set fields of the hash of ttls, or delete those without a value, and publish that. KEYS: the hash. ARGV: the new
version, the channel, and then fields and values. Returns all fields and values."""

RESTORE_TTLS = Script.of(
    "if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('HGETALL', KEYS[1]) end\n", _TTLS
)
"""The same, unless the hash exists."""
