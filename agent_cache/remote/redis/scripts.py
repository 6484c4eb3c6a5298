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
local registry, prefix, cell_ttl = KEYS[1], ARGV[1], tonumber(ARGV[2])
local id, period = ARGV[4], tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local minted, at = 0, 6

local function fresh()
  minted = minted + 1
  return ARGV[3] .. minted
end

local function list()
  local items = {}
  for i = 1, tonumber(ARGV[at]) do items[i] = ARGV[at + i] end
  at = at + 1 + #items
  return items
end

-- Among sorted sets of writers. What is none was put there by somebody else, and goes.
local function among(key, ...)
  local found = redis.pcall('ZRANGE', key, ...)
  if not found.err then return found end
  redis.call('DEL', key)
  return {}
end

local function writers_of(name, mode)
  return registry .. ':' .. name .. (mode == 'armed' and '~' or '')
end

local function member_of(mode, names)
  return id .. '|' .. mode .. '|' .. table.concat(names, ' ')
end

-- Whether a writer of this cell has died: those whose lease is over are forgotten.
local function bury(key)
  local dead = among(key, '-inf', now, 'BYSCORE')
  for i = 1, #dead, 1000 do redis.call('ZREM', key, unpack(dead, i, math.min(i + 999, #dead))) end
  return #dead > 0
end

local function shape(name, token)
  local mark, latest, is_dead = '', nil, false
  for _, mode in ipairs({'held', 'armed'}) do
    if mode == 'held' or name == 'S' or name == 'D' then
      local key = writers_of(name, mode)
      is_dead = bury(key) or is_dead
      local deadline = tonumber(among(key, -1, -1, 'WITHSCORES')[2])
      if deadline then
        if mark == '' then mark = mode == 'held' and '!' or '~' end
        if not latest or deadline > latest then latest = deadline end
      end
    end
  end
  local value = mark .. (is_dead and fresh() or token)
  redis.call('SET', prefix .. name, value, 'PX', math.max(1, latest and (latest - now) or cell_ttl))
  return value
end

-- What is no text was put there by somebody else, and is overwritten.
local function cell_of(name)
  local value = redis.pcall('GET', prefix .. name)
  return type(value) == 'string' and value ~= '' and value or nil
end

local function token_of(name)
  local value = cell_of(name)
  if not value then return nil end
  return (string.gsub(value, '^[!~]', ''))
end

local function enter(key, member)
  among(key, -1, -1)
  local added = redis.call('ZADD', key, 'GT', now + period, member)  -- a begin that comes late ends no doubt
  redis.call('PEXPIRE', key, cell_ttl)
  return added == 0
end

-- Whether it was known already, under each of these cells.
local function register(mode, names)
  if #names == 0 then return true end
  local is_known = enter(registry, member_of(mode, names))
  for _, name in ipairs(names) do is_known = enter(writers_of(name, mode), id) and is_known end
  return is_known
end

local function leave(mode, names)
  if #names == 0 then return end
  redis.call('ZREM', registry, member_of(mode, names))
  for _, name in ipairs(names) do redis.pcall('ZREM', writers_of(name, mode), id) end
end

local function announce(channel, message)
  if message ~= '' then redis.call('PUBLISH', channel, message) end
end

local dead = {}
for _, member in ipairs(among(registry, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)) do
  redis.call('ZREM', registry, member)
  for name in string.gmatch(string.match(member, '^[^|]*|[^|]*|(.*)$') or '', '[^ ]+') do dead[name] = true end
end
for name in pairs(dead) do shape(name, fresh()) end
"""

_BEGIN = """
local function begin(held, armed)
  register('armed', armed)
  register('held', held)
  for _, name in ipairs(armed) do shape(name, token_of(name) or fresh()) end
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
    _BEGIN,
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
    _BEGIN,
    """
local held, armed = list(), list()
local is_known = register('held', held)
is_known = register('armed', armed) and is_known
if is_known then
  for _, names in ipairs({held, armed}) do
    for _, name in ipairs(names) do shape(name, token_of(name) or fresh()) end
  end
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
    """
local moved, held, armed, doomed = list(), list(), list(), list()
leave('held', held)
leave('armed', armed)
if period > 0 then register('held', moved) end
local is_shaped = {}
for _, name in ipairs(moved) do
  shape(name, fresh())
  is_shaped[name] = true
end
for _, names in ipairs({held, armed}) do
  for _, name in ipairs(names) do
    if not is_shaped[name] then shape(name, token_of(name) or fresh()) end
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
