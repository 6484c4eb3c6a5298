"""The scripts that move cells: begin, renew, commit, mint. Each works on one root, so on one slot.

All are idempotent by the writer's id: late, lost and doubled commands only kill entries. Each sweeps first: a writer
whose lease is over may have had its effect before it died, so all its cells get fresh tokens.

KEYS: the registry, then the cells named in the arguments (the sweep also touches cells of the same slot that are not
listed). ARGV: prefix of the cells, cell ttl in ms, a random text that fresh tokens are made of, the writer's id, lease
or hold in ms, and then lists, each with its length before it.

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

local writers = {}
local function enter(member, deadline)
  local owner, mode, names = string.match(member, '^([^|]*)|([^|]*)|(.*)$')
  if not owner then return end
  local cells = {}
  for name in string.gmatch(names, '[^ ]+') do cells[name] = true end
  writers[member] = {owner = owner, mode = mode, cells = cells, deadline = tonumber(deadline)}
end

local function shape(name, token)
  local mark, latest = '', nil
  for _, writer in pairs(writers) do
    if writer.cells[name] then
      if writer.mode == 'held' then mark = '!' elseif mark == '' then mark = '~' end
      if not latest or writer.deadline > latest then latest = writer.deadline end
    end
  end
  local value = mark .. token
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

local function register(mode, names)
  local member = id .. '|' .. mode .. '|' .. table.concat(names, ' ')
  redis.call('ZADD', registry, now + period, member)
  redis.call('PEXPIRE', registry, cell_ttl)
  enter(member, now + period)
end

local function announce(channel, message)
  if message ~= '' then redis.call('PUBLISH', channel, message) end
end

local known = redis.pcall('ZRANGE', registry, 0, -1, 'WITHSCORES')
if known.err then
  redis.call('DEL', registry)
  known = {}
end
local dead = {}
for i = 1, #known, 2 do
  if tonumber(known[i + 1]) <= now then
    redis.call('ZREM', registry, known[i])
    enter(known[i], known[i + 1])
    if writers[known[i]] then
      for name in pairs(writers[known[i]].cells) do dead[name] = true end
      writers[known[i]] = nil
    end
  else
    enter(known[i], known[i + 1])
  end
end
for name in pairs(dead) do shape(name, fresh()) end
"""

_BEGIN = """
local function begin(held, armed)
  if #armed > 0 then register('armed', armed) end
  if #held > 0 then register('held', held) end
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
local function is_known(mode, names)
  return #names == 0 or writers[id .. '|' .. mode .. '|' .. table.concat(names, ' ')] ~= nil
end
if is_known('held', held) and is_known('armed', armed) then
  if #held > 0 then register('held', held) end
  if #armed > 0 then register('armed', armed) end
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
local moved, doomed = list(), list()
local rest = {}
for member, writer in pairs(writers) do
  if writer.owner == id then
    redis.call('ZREM', registry, member)
    for name in pairs(writer.cells) do rest[name] = true end
    writers[member] = nil
  end
end
if period > 0 and #moved > 0 then register('held', moved) end
for _, name in ipairs(moved) do
  shape(name, fresh())
  rest[name] = nil
end
for name in pairs(rest) do shape(name, token_of(name) or fresh()) end
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
