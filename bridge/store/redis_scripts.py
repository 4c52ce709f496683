"""The atomic steps of the Redis store, as Lua, and the names of its keys.

Two rules hold for every script, so that the same layout can be spread over a Redis Cluster and a step can be
sent again when its answer was lost:

* its keys share one hash tag, so they lie in one slot;
* doing it twice is doing it once: it writes what does not change by repeating, or it carries an operation's
  id that is kept for `OPERATION_SECONDS`.

Nothing is done by halves: a script runs alone, and Redis refuses it (for want of memory, or as a replica) at
its first write or not at all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import quote

Command: TypeAlias = tuple[str | int | float, ...]

#: How long an operation is remembered; a step is never sent again after so long.
OPERATION_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Script:
    """A script; calling it gives the command that runs it."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", sha)

    def __call__(self, keys: tuple[str, ...], *args: str | int | float) -> Command:
        return ("EVALSHA", self.sha, len(keys), *keys, *args)


def _part(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


class Keys:
    """The names of all keys. What stands in braces decides the slot in a Redis Cluster."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.format = f"{prefix}:format"
        self.numbers = f"{prefix}:numbers"  # counts messages over all sessions
        self.tokens = f"{prefix}:tokens"  # counts claims over all sessions
        self.waiting = f"{prefix}:{{index}}:waiting"  # session -> version of its inbox
        self.sessions = f"{prefix}:{{index}}:sessions"
        self.active = f"{prefix}:{{index}}:active"  # session -> Unix time
        self.calling = f"{prefix}:{{index}}:calling"  # session -> number of its last call
        self.days = f"{prefix}:usage:days"
        self.members = f"{prefix}:members"  # the names of the processes that are there

    def of_session(self, session: str, *parts: str) -> tuple[str, ...]:
        return tuple(f"{self._prefix}:{{{session}}}:{part}" for part in parts)

    def of_chat(self, channel: str, chat: str, *parts: str) -> tuple[str, ...]:
        tag = f"{_part(channel)}:{_part(chat)}"
        return tuple(f"{self._prefix}:{{{tag}}}:{part}" for part in parts)

    def of_log(self, channel: str, log: str, *parts: str) -> tuple[str, ...]:
        tag = f"log:{_part(channel)}:{_part(log)}"
        return tuple(f"{self._prefix}:{{{tag}}}:{part}" for part in parts)

    def of_day(self, day: str, *parts: str) -> tuple[str, ...]:
        return tuple(f"{self._prefix}:{{usage:{day}}}:{part}" for part in parts)

    def of_limits(self, *parts: str) -> tuple[str, ...]:
        return tuple(f"{self._prefix}:{{limits}}:{_part(part)}" for part in parts)

    def reply(self, session: str, id: str) -> str:
        return f"{self._prefix}:{{{session}}}:reply:{id}"

    def place_of(self, reply: str) -> str:
        return f"{self._prefix}:place:{reply}"

    def pending(self, channel: str) -> str:
        return f"{self._prefix}:pending:{channel}"

    def setting(self, scope: str) -> str:
        return f"{self._prefix}:setting:{scope}"

    def notes(self, channel: str) -> str:
        return f"{self._prefix}:note:{channel}"

    def member(self, name: str) -> str:
        return f"{self._prefix}:member:{name}"

    def lease(self, channel: str, key: str) -> str:
        return f"{self._prefix}:lease:{_part(channel)}:{key}"


# A worker's write carries the token of its claim; without one (a gateway, a single process) nothing is asked.
# KEYS[1] is the session's lease, ARGV[1] the token.
_FENCE = """
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
    return redis.error_reply('LOST the claim on this session')
end
"""

# Takes messages out of the inbox (KEYS: inbox, box, got). Returns the version of an inbox that is now empty.
_REMOVE = """
local function remove(inbox, box, got, first)
    for i = first, #ARGV do
        redis.call('ZREM', inbox, ARGV[i])
        redis.call('HDEL', box, ARGV[i], 'r' .. ARGV[i], 'k' .. ARGV[i])
    end
    if redis.call('ZCARD', inbox) > 0 then return '' end
    redis.call('DEL', box)
    return redis.call('ZREVRANGE', got, 0, 0, 'WITHSCORES')[2] or ''
end
"""

#: KEYS seen, begun, operation; ARGV id, now, oldest, seconds, what, operation id.
#: Marks a message as seen. `what` is what follows ("" nothing; "s:…" a session's inbox; "r:…" a reply) and
#: stays noted until that is done. Returns `what`, or that of an earlier delivery whose end is not known, or
#: nothing when the message was dealt with before.
MARK = Script("""
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[3])
local held = redis.call('HGET', KEYS[2], ARGV[1])
if redis.call('ZSCORE', KEYS[1], ARGV[1]) and not held then
    if ARGV[5] == '' and redis.call('EXISTS', KEYS[3]) == 1 then return '' end
    return false
end
if held and string.sub(held, 1, 2) == string.sub(ARGV[5], 1, 2) then return held end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[4])
if ARGV[5] == '' then
    redis.call('SET', KEYS[3], 1, 'EX', ARGV[6])
    redis.call('HDEL', KEYS[2], ARGV[1])
else
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[5])
    redis.call('EXPIRE', KEYS[2], ARGV[4])
end
return ARGV[5]
""")

#: KEYS inbox, box, got; ARGV key, number, body, cap, microseconds for which `got` remembers.
#: Puts a message into the inbox. Returns {1 put, 0 full, 2 was put before; the inbox's version, "" if empty}.
#: The version grows with every message, also over an inbox that was empty for long and a clock set back.
PUT = Script("""
local top = tonumber(redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] or 0)
if redis.call('ZSCORE', KEYS[3], ARGV[1]) then
    if redis.call('ZCARD', KEYS[1]) == 0 then return {2, ''} end
    return {2, string.format('%.0f', top)}
end
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then return {0, ''} end
local time = redis.call('TIME')
local version = math.max(tonumber(time[1]) * 1000000 + tonumber(time[2]), top + 1)
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3], 'k' .. ARGV[2], ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[2])
redis.call('ZADD', KEYS[3], string.format('%.0f', version), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.0f', version - tonumber(ARGV[5])))
redis.call('PEXPIRE', KEYS[3], string.format('%.0f', tonumber(ARGV[5]) / 1000))
return {1, string.format('%.0f', version)}
""")

#: KEYS lease, inbox, box; ARGV token, limit. Returns number, body, run ("" none) of each, in a row.
NEXT = Script(
    _FENCE
    + """
local found = {}
for _, number in ipairs(redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1)) do
    local got = redis.call('HMGET', KEYS[3], number, 'r' .. number)
    found[#found + 1] = number
    found[#found + 1] = got[1] or ''
    found[#found + 1] = got[2] or ''
end
return found
"""
)

#: KEYS lease, inbox, box; ARGV token, run, numbers…
TAKE = Script(
    _FENCE
    + """
for i = 3, #ARGV do
    if redis.call('ZSCORE', KEYS[2], ARGV[i]) then redis.call('HSET', KEYS[3], 'r' .. ARGV[i], ARGV[2]) end
end
return 1
"""
)

#: KEYS lease, inbox, box, got; ARGV token, numbers… Returns the version of an inbox that is now empty.
DROP = Script(_FENCE + _REMOVE + "return remove(KEYS[2], KEYS[3], KEYS[4], 2)")

#: KEYS inbox, box; ARGV key, body. Replaces the body of a waiting message that no run has taken.
AMEND = Script("""
for _, number in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local got = redis.call('HMGET', KEYS[2], 'k' .. number, 'r' .. number)
    if got[1] == ARGV[1] and not got[2] then
        redis.call('HSET', KEYS[2], number, ARGV[2])
        return 1
    end
end
return 0
""")

#: KEYS inbox, box. Returns the number of the oldest message and its key; nothing for an empty inbox.
HEAD = Script("""
local first = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if not first then return false end
return {first, redis.call('HGET', KEYS[2], 'k' .. first) or ''}
""")

#: KEYS waiting; ARGV session, version. An inbox that got something since keeps its place in the index.
UNWAIT = Script("""
local version = redis.call('ZSCORE', KEYS[1], ARGV[1])
if version and tonumber(version) <= tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
return 1
""")

#: KEYS lease, reply; ARGV token, over ("1": write over one that has not ended), operation id, seconds, then
#: field and value in turn. Returns 1 when it was written by this operation.
REPLY = Script(
    _FENCE
    + """
local state = redis.call('HGET', KEYS[2], 'state')
if state then
    if redis.call('HGET', KEYS[2], 'by') == ARGV[3] then return 1 end
    if ARGV[2] ~= '1' or state == 'delivered' or state == 'failed' then return 0 end
else
    local time = redis.call('TIME')
    local at = string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
    redis.call('HSET', KEYS[2], 'at', at, 'by', ARGV[3])
end
for i = 5, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 1
"""
)

#: KEYS lease, reply; ARGV token, field, value. Returns 0 when there is no such reply.
CHUNK = Script(
    _FENCE
    + """
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
"""
)

#: KEYS lease, reply, inbox, box, got; ARGV token, state, seconds, numbers…
#: Returns {the reply's channel, the version of an inbox that is now empty}.
SETTLE = Script(
    _FENCE
    + _REMOVE
    + """
local had = redis.call('HMGET', KEYS[2], 'state', 'channel')
if had[1] and had[1] ~= 'delivered' and had[1] ~= 'failed' then
    redis.call('HSET', KEYS[2], 'state', ARGV[2])
    redis.call('EXPIRE', KEYS[2], ARGV[3])
end
return {had[2] or '', remove(KEYS[3], KEYS[4], KEYS[5], 4)}
"""
)

#: KEYS lease, history, operation; ARGV token, seconds, entries…
APPEND = Script(
    _FENCE
    + """
if not redis.call('SET', KEYS[3], 1, 'NX', 'EX', ARGV[2]) then return 0 end
for i = 3, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
return 1
"""
)

#: KEYS lease, history; ARGV token.
CLEAR = Script(_FENCE + "return redis.call('DEL', KEYS[2])")

#: KEYS lease, history, inbox. Deletes the history of a session that nobody works on. Returns whether.
FORGET = Script("""
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('DEL', KEYS[2])
return 1
""")

#: KEYS active, sessions; ARGV session, before.
UNLIST = Script("""
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
if at and tonumber(at) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
""")

# A claim that has lapsed stays the worker's until another one takes it: whoever was only cut off goes on. So
# the time of its end is a field, and the key itself lasts for a day more.
_LAPSED = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function extend(milliseconds)
    redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + milliseconds))
    redis.call('PEXPIRE', KEYS[1], milliseconds + 86400000)
end
"""

#: KEYS lease; ARGV worker, a fresh token, milliseconds. Returns the token of the claim; nothing when another
#: worker has it.
CLAIM = Script(
    _LAPSED
    + """
local had = redis.call('HMGET', KEYS[1], 'worker', 'until')
if had[1] ~= ARGV[1] then
    if had[1] and tonumber(had[2] or 0) > now then return false end
    redis.call('HSET', KEYS[1], 'worker', ARGV[1], 'token', ARGV[2])
end
extend(tonumber(ARGV[3]))
return redis.call('HGET', KEYS[1], 'token')
"""
)

#: KEYS lease; ARGV token, milliseconds (0: give the claim back).
RENEW = Script(
    _LAPSED
    + """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else extend(tonumber(ARGV[2])) end
return 1
"""
)

#: KEYS lease. Returns the worker whose claim holds now; nothing when none does.
HOLDER = Script(
    _LAPSED
    + """
local had = redis.call('HMGET', KEYS[1], 'worker', 'until')
if had[1] and tonumber(had[2] or 0) > now then return had[1] end
return false
"""
)

#: KEYS lease, arrivals, called, operation; ARGV operation seconds, cap, version, item.
#: Puts something at the end of what has arrived for a session. Returns {the number of this call (at least
#: `version`), the worker that has the session ("" none)}; nothing when `cap` items wait already.
ARRIVE = Script(
    _LAPSED
    + """
local called = tonumber(redis.call('GET', KEYS[3]) or 0)
if redis.call('EXISTS', KEYS[4]) == 0 then
    if redis.call('LLEN', KEYS[2]) >= tonumber(ARGV[2]) then return false end
    called = math.max(called + 1, tonumber(ARGV[3]))
    redis.call('RPUSH', KEYS[2], ARGV[4])
    redis.call('SET', KEYS[3], string.format('%.0f', called), 'EX', 172800)
    redis.call('SET', KEYS[4], 1, 'EX', ARGV[1])
end
local had = redis.call('HMGET', KEYS[1], 'worker', 'until')
local worker = had[1] and tonumber(had[2] or 0) > now and had[1] or ''
return {string.format('%.0f', called), worker}
"""
)

#: KEYS lease, arrivals; ARGV token, limit. Returns the oldest items.
ARRIVED = Script(_FENCE + "return redis.call('LRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1)")

#: KEYS lease, arrivals, called, operation; ARGV token, operation seconds, how many.
#: Takes the oldest items away. Returns the number of the last call when none are left, else "".
CONSUME = Script(
    _FENCE
    + """
if redis.call('SET', KEYS[4], 1, 'NX', 'EX', ARGV[2]) then
    redis.call('LTRIM', KEYS[2], tonumber(ARGV[3]), -1)
end
if redis.call('EXISTS', KEYS[2]) == 1 then return '' end
return redis.call('GET', KEYS[3]) or '0'
"""
)

#: KEYS lease; ARGV holder, milliseconds.
LEASE = Script("""
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")

#: KEYS lease; ARGV holder.
UNLEASE = Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
""")

#: KEYS order, entries, number; ARGV id, value, most, seconds for which the last number is remembered.
LOG_APPEND = Script("""
local last = tonumber(redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or 0)
local number = math.max(tonumber(redis.call('GET', KEYS[3]) or 0), last) + 1
redis.call('SET', KEYS[3], string.format('%.0f', number), 'EX', ARGV[4])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[1], number, ARGV[1])
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1 - tonumber(ARGV[3]))) do
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
end
return string.format('%.0f', number)
""")

#: KEYS order, entries; ARGV after, limit. Returns number, id, value of each, the newest first.
LOG_READ = Script("""
local found = {}
local after = '(' .. ARGV[1]
local rows = redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', after, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for i = 1, #rows, 2 do
    found[#found + 1] = rows[i + 1]
    found[#found + 1] = rows[i]
    found[#found + 1] = redis.call('HGET', KEYS[2], rows[i]) or '{}'
end
return found
""")

#: KEYS order, entries; ARGV the last number that goes.
LOG_TRIM = Script("""
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])) do
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
end
return 1
""")

#: KEYS order, entries, operation; ARGV id, seconds. Returns 1 for the operation that found the entry there.
LOG_REMOVE = Script("""
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return redis.call('EXISTS', KEYS[3]) end
redis.call('SET', KEYS[3], 1, 'EX', ARGV[2])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
""")

#: KEYS sums, operation; ARGV operation seconds, seconds, then field and number in turn.
ADD = Script("""
if not redis.call('SET', KEYS[2], 1, 'NX', 'EX', ARGV[1]) then return 0 end
for i = 3, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
""")

#: KEYS tokens of the day, then a counter of messages for each bound; ARGV message, now, seconds, then of each
#: bound counter, messages, tokens (0: no limit). Counts the message, or returns {the number of the bound that
#: is reached, of what, the time of the oldest message}.
ADMIT = Script("""
local now, span = tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 2, #KEYS do
    if redis.call('ZSCORE', KEYS[i], ARGV[1]) then return false end
end
for i = 2, #KEYS do
    local at = 3 * i - 2
    local messages, tokens = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    if tokens > 0 and tonumber(redis.call('HGET', KEYS[1], ARGV[at]) or 0) >= tokens then
        return {i - 1, 'tokens'}
    end
    if messages > 0 then
        redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', string.format('%.6f', now - span))
        if redis.call('ZCARD', KEYS[i]) >= messages then
            return {i - 1, 'messages', redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')[2]}
        end
    end
end
for i = 2, #KEYS do
    if tonumber(ARGV[3 * i - 1]) > 0 then
        redis.call('ZADD', KEYS[i], ARGV[2], ARGV[1])
        redis.call('EXPIRE', KEYS[i], ARGV[3])
    end
end
return false
""")

ALL: tuple[Script, ...] = tuple(value for value in globals().values() if isinstance(value, Script))
