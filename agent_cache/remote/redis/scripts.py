"""The scripts that move cells: begin, renew, commit, mint. Each works on one root, so on one slot.

All are idempotent by the writer's id: late, lost and doubled commands only kill entries. Each sweeps first: a writer
whose lease is over may have had its effect before it died, so all its cells get fresh tokens.

Writers stand in the registry with all their cells, for the sweep, and once more under each cell, for its mark: nobody
looks at a writer that is not due and has other cells, however many hold on for `settle` or `doubt`. For the same reason
a sweep takes a hundred at most. A cell whose turn has not come gets its fresh token when it is touched, or is gone: it
expires with its last writer.

KEYS: the registry, then the cells named in the arguments (other keys of the same slot are touched as well). ARGV:
prefix of the cells, cell ttl in ms, a random text that fresh tokens are made of, the writer's id, lease or hold in ms,
and then lists, each with its length before it.

Tokens are random texts from the client: a server's own generator repeats itself. A script's effects are replicated, not
the script, so its use of the clock is the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1

__all__ = ["BEGIN", "COMMIT", "MINT", "RELEASE", "RENEW", "Script", "sharded"]

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

local function list()
  local items, first = {}, at
  at = at + 1 + ARGV[first]
  for i = first + 1, at - 1 do items[i - first] = ARGV[i] end
  return items
end

-- The reply, or nil if somebody else has put something of another type there.
local function tried(...)
  local reply = pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'WRONGTYPE') then return call(...) end  -- which raises
end

-- Among sorted sets of writers. What is none goes.
local function among(key, ...)
  local found = tried('ZRANGE', key, ...)
  if found then return found end
  call('DEL', key)
  return {}
end

-- The latest deadline of these writers, and whether one of them has died: those whose lease is over are forgotten.
local function latest_of(writers)
  local first = among(writers, 0, 1, 'WITHSCORES')  -- two, to see whether it is the only one, as it mostly is
  local deadline = tonumber(first[2])
  if not deadline then return nil, false end
  local is_dead = deadline <= now
  if is_dead then
    local dead = among(writers, '-inf', now, 'BYSCORE')
    for i = 1, #dead, 1000 do call('ZREM', writers, unpack(dead, i, math.min(i + 999, #dead))) end
  end
  if is_dead or first[3] then deadline = tonumber(among(writers, -1, -1, 'WITHSCORES')[2]) end
  return deadline, is_dead
end

local function shape(name, token)
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

-- What is no text is overwritten.
local function cell_of(name)
  local value = tried('GET', prefix .. name)
  return value and value ~= '' and value or nil
end

local due = among(registry, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
if #due > 0 then
  local dead = {}
  for _, member in ipairs(due) do
    call('ZREM', registry, member)
    for name in string.gmatch(string.match(member, '^[^|]*|[^|]*|(.*)$') or '', '[^ ]+') do dead[name] = true end
  end
  for name in pairs(dead) do shape(name, fresh()) end
end
"""

_WRITERS = """
local function token_of(name)
  local value = cell_of(name)
  return value and string.gsub(value, '^[!~]', '') or fresh()
end

local function enter(writers, member)
  local added = tried('ZADD', writers, 'GT', now + period, member)  -- a begin that comes late ends no doubt
  if not added then
    call('DEL', writers)
    added = call('ZADD', writers, 'GT', now + period, member)
  end
  call('PEXPIRE', writers, cell_ttl)
  return added == 0
end

-- Whether it was known already, under each of these cells.
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

local function announce(channel, message)
  if message ~= '' then call('PUBLISH', channel, message) end
end

local function begin(held, armed)
  register('armed', armed, '~')
  register('held', held, '')
  for _, name in ipairs(armed) do shape(name, token_of(name)) end
  for _, name in ipairs(held) do shape(name, fresh()) end
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
announce(ARGV[at], ARGV[at + 1])
return 1
""",
)
"""Register the writer, hold its cells, arm those of a root that its result will name, and say so."""

RENEW = Script.of(
    _PRELUDE,
    _WRITERS,
    """
local held, armed = list(), list()
local is_known = register('held', held, '')
is_known = register('armed', armed, '~') and is_known
if is_known then
  for _, name in ipairs(held) do shape(name, token_of(name)) end
  for _, name in ipairs(armed) do shape(name, token_of(name)) end
  return 1
end
begin(held, armed)
announce(ARGV[at], ARGV[at + 1])
return 0
""",
)
"""Prolong the lease. A writer that the server does not know, or no longer, begins again."""

COMMIT = Script.of(
    _PRELUDE,
    _WRITERS,
    """
local moved, held, armed, doomed = list(), list(), list(), list()
leave('held', held, '')
leave('armed', armed, '~')
if period > 0 then register('held', moved, '') end
local is_shaped = {}
for _, name in ipairs(moved) do
  shape(name, fresh())
  is_shaped[name] = true
end
for _, names in ipairs({held, armed}) do
  for _, name in ipairs(names) do
    if not is_shaped[name] then shape(name, token_of(name)) end
  end
end
for i = 1, #doomed, 1000 do redis.call('DEL', unpack(doomed, i, math.min(i + 999, #doomed))) end
announce(ARGV[at], ARGV[at + 1])
return 1
""",
)
"""End a write: what it touched gets fresh tokens, the rest of what it had is let go. In doubt it stays held a while."""

MINT = Script.of(
    _PRELUDE,
    """
local found = {}
for i, name in ipairs(list()) do
  found[i] = cell_of(name) or shape(name, fresh())
end
return found
""",
)
"""Give these cells as they are, those that are missing with a fresh token. "Missing" is no version: a cell that is gone
twice would make an old value count again.
"""

RELEASE = Script.of("return redis.pcall('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0")
"""Give up a claim, if it is still one's own: it may have expired, and be another's."""
