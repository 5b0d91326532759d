"""What the instances of a proxy share in Redis: keys, scripts, and errors turned into ours. Knows no bridges."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...core.errors import BadRequest
from .app_session import NO_SUCH_SESSION, AppRegistration, SessionGone, StoreDown
from .limits import RateBucket, SessionLimits
from .quotas import too_many_bytes, too_many_sessions

PREFIX: Final = "openclaw:proxy:"
ANSWER_WAIT: Final = 5.0  # seconds Redis may take to answer before it counts as away
CONNECT_WAIT: Final = 2.0
MAX_CONNECTIONS: Final = 16  # to Redis at once; further questions wait for one of them
LEASE: Final = 30_000  # milliseconds an instance owns a bridge without renewing it
PEER_COUNT_TTL: Final = (
    3_600_000  # milliseconds a peer's sessions are counted without a word of any; at least their own life
)
PARCEL_LIFE: Final = 60  # seconds a large message waits to be fetched

_COUNT_FUNCTIONS = """
-- Bytes are counted as they come and go. What expires is not: a count that leaves no room is made exact, but not too
-- often; so is one that is missing. A list's count is beside it, and a session names the list of its peer as `own`.
local function size(key)
  return redis.call('HSTRLEN', key, 'tools') + redis.call('HSTRLEN', key, 'session')
end
local function fits(list, most, more, now, sessions)
  local counter = list .. ':bytes'
  local kept = redis.call('HMGET', counter, 'bytes', 'at')
  local used = tonumber(kept[1] or 0)
  if not kept[1] or (used + more > most and now > tonumber(kept[2] or 0) + 5000) then
    used = 0
    for _, id in ipairs(redis.call('ZRANGE', list, 0, -1)) do used = used + size(sessions .. id) end
    redis.call('HSET', counter, 'bytes', used, 'at', now)
    redis.call('PEXPIRE', counter, 3600000)
  end
  return used + more <= most
end
local function charge(list, bytes)
  local counter = list .. ':bytes'
  if redis.call('EXISTS', counter) == 1 then redis.call('HINCRBY', counter, 'bytes', bytes) end
end
local function forget(id, all, sessions)
  local key = sessions .. id
  local own = redis.call('HGET', key, 'own')
  for _, list in ipairs({all, own or nil}) do
    charge(list, 0 - size(key))
    redis.call('ZREM', list, id)
  end
  redis.call('DEL', key)
end
"""
_ADD = (
    _COUNT_FUNCTIONS
    + """
local session, all, own = unpack(KEYS)
local made, tools, id, sessions, bridges = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now, ttl, unclaimed = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local most, most_own, most_bytes, most_own_bytes = unpack(ARGV, 9, 12)
local more = #made + #tools
if redis.call('EXISTS', session) == 1 then forget(id, all, sessions) end -- registered again, with other words
-- Oldest first, a peer's own or all: forgets those that are gone, ends one that has no app, skips the others.
local function make_room(list)
  for _, other in ipairs(redis.call('ZRANGE', list, 0, 255)) do
    local key = sessions .. other
    local since = redis.call('HGET', key, 'since')
    if not since and redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', list, other)
      return true
    elseif redis.call('EXISTS', bridges .. other) == 1 then
      if list == own then redis.call('ZADD', list, now, other) end
    elseif tonumber(since or now) < now - unclaimed then
      forget(other, all, sessions)
      redis.call('ZREM', list, other)
      return true
    end
  end
  return false
end
redis.call('ZREMRANGEBYSCORE', all, 0, now)
while redis.call('ZCARD', own) >= tonumber(most_own) do
  if not make_room(own) then return -1 end
end
while redis.call('ZCARD', all) >= tonumber(most) do
  if not make_room(all) then return -2 end
end
while not fits(own, tonumber(most_own_bytes), more, now, sessions) do
  if not make_room(own) then return -3 end
end
while not fits(all, tonumber(most_bytes), more, now, sessions) do
  if not make_room(all) then return -4 end
end
redis.call('HSET', session, 'session', made, 'tools', tools, 'since', now, 'own', own)
redis.call('PEXPIRE', session, ttl)
redis.call('ZADD', all, now + ttl, id)
redis.call('ZADD', own, now, id)
for _, list in ipairs({own, all}) do charge(list, more) end
for _, key in ipairs({own, own .. ':bytes', all .. ':bytes'}) do
  redis.call('PEXPIRE', key, math.max(ttl, 3600000))
end
return 1
"""
)
_REPLACE_TOOLS = (
    _COUNT_FUNCTIONS
    + """
local session, all, own = unpack(KEYS)
if redis.call('EXISTS', session) == 0 then return 0 end
local tools, sessions, now, most_bytes, most_own_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local more = #tools - redis.call('HSTRLEN', session, 'tools')
if more > 0 then
  if not fits(own, tonumber(most_own_bytes), more, now, sessions) then return -3 end
  if not fits(all, tonumber(most_bytes), more, now, sessions) then return -4 end
end
redis.call('HSET', session, 'tools', tools)
for _, list in ipairs({own, all}) do charge(list, more) end
return 1
"""
)
_REMOVE = (
    _COUNT_FUNCTIONS
    + """
local all, bridge = unpack(KEYS)
local id, sessions = ARGV[1], ARGV[2]
local there = redis.call('EXISTS', sessions .. id)
forget(id, all, sessions)
redis.call('DEL', bridge)
return there
"""
)
_CLAIM = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {-1, ''} end
local owner = redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[1] and owner ~= ARGV[3] then return {0, owner} end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {redis.call('HINCRBY', KEYS[1], 'bridges', 1), ''}
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HSET', KEYS[2], 'since', ARGV[2]) end
return redis.call('DEL', KEYS[1])
"""
_RENEW_CLAIM = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HSET', KEYS[2], 'since', ARGV[3]) end
return 1
"""
_TAKE_TOKENS = """
local t = redis.call('TIME')
local now = t[1] + t[2] / 1000000
local levels, wait = {}, 0
for i, key in ipairs(KEYS) do
  local rate, burst = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local kept = redis.call('HMGET', key, 'level', 'at')
  local level = tonumber(kept[1]) or burst
  level = math.min(burst, level + (now - (tonumber(kept[2]) or now)) * rate)
  levels[i] = level
  wait = math.max(wait, (1 - level) / rate)
end
if wait > 0 then return tostring(wait) end
for i, key in ipairs(KEYS) do
  local rate, burst = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  redis.call('HSET', key, 'level', tostring(levels[i] - 1), 'at', tostring(now))
  redis.call('PEXPIRE', key, math.ceil(burst / rate * 1000) + 1000)
end
return '0'
"""


class StoredAppSession(Struct, frozen=True):
    """A session as the store holds it."""

    registration: AppRegistration
    tools: bytes
    owner: str | None


class RedisSessionStore:
    """Every question the proxy asks Redis. Raises StoreDown when it gets no answer."""

    def __init__(self, url: str, *, ttl: float, limits: SessionLimits) -> None:
        # Once more, for a kept connection that Redis has closed; ears never: who missed something must know it.
        self._redis = _connect(url, Retry(NoBackoff(), 1))
        self._pubsub_redis = _connect(url, Retry(NoBackoff(), 0))
        self._ttl = int(ttl * 1000)
        self._limits = limits
        self._add_script = self._redis.register_script(_ADD)
        self._replace_tools_script = self._redis.register_script(_REPLACE_TOOLS)
        self._remove_script = self._redis.register_script(_REMOVE)
        self._claim_script = self._redis.register_script(_CLAIM)
        self._release_script = self._redis.register_script(_RELEASE)
        self._renew_claim_script = self._redis.register_script(_RENEW_CLAIM)
        self._take_tokens_script = self._redis.register_script(_TAKE_TOKENS)

    async def aclose(self) -> None:
        await self._redis.aclose()
        await self._pubsub_redis.aclose()

    def open_pubsub(self) -> PubSub:
        return self._pubsub_redis.pubsub()

    async def run_command(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        # `Any`: the client's own types leave open whether its answers are text or bytes.
        try:
            return await command(self._redis)
        except (RedisError, OSError, TimeoutError):
            raise StoreDown("the proxy's shared store is out of reach; try again shortly") from None

    # ---- sessions ----

    async def add(self, registration: AppRegistration, tools: bytes, now: float) -> None:
        made, room = msgspec.json.encode(registration), self._limits
        values: list[bytes | str | int] = [
            made,
            tools,
            registration.id,
            _session_key(""),
            _bridge_key(""),
            int(now * 1000),
            self._ttl,
            int(room.unclaimed_timeout * 1000),
            room.sessions,
            room.sessions_per_peer,
            room.bytes,
            room.bytes_per_peer,
        ]
        self._raise_for_code(await self.run_command(lambda _: self._add_script(_quota_keys(registration), values)))

    def _raise_for_code(self, code: int) -> None:
        """Raises what a script's answer says."""
        room = self._limits
        match code:
            case 0:
                raise SessionGone(NO_SUCH_SESSION)
            case -1:
                raise too_many_sessions(room.sessions_per_peer, per_peer=True)
            case -2:
                raise too_many_sessions(room.sessions, per_peer=False)
            case -3:
                raise too_many_bytes(room.bytes_per_peer, per_peer=True)
            case -4:
                raise too_many_bytes(room.bytes, per_peer=False)

    async def find(self, id: str, now: float) -> StoredAppSession | None:
        """A session, renewed by being asked for."""

        async def question(redis: Any) -> Any:
            async with redis.pipeline(transaction=False) as many:
                many.hmget(_session_key(id), "session", "tools")
                many.get(_bridge_key(id))
                return await many.execute()

        (session, tools), owner = await self.run_command(question)
        kept = _parse_stored(session, tools, owner)
        return kept if kept is not None and await self.renew(kept.registration, now) else None

    async def renew(self, registration: AppRegistration, now: float) -> bool:
        """Whether the session is still there. What it counts against lasts as long as it does."""

        async def question(redis: Any) -> Any:
            async with redis.pipeline(transaction=False) as many:
                many.pexpire(_session_key(registration.id), self._ttl)
                many.zadd(_ALL_SESSIONS, {registration.id: int(now * 1000) + self._ttl}, xx=True)
                many.pexpire(_peer_key(registration), max(self._ttl, PEER_COUNT_TTL))
                many.pexpire(f"{_peer_key(registration)}:bytes", max(self._ttl, PEER_COUNT_TTL))
                return await many.execute()

        return bool((await self.run_command(question))[0])

    async def exists(self, ids: Sequence[str]) -> set[str]:
        """Which of these sessions are there; nothing is renewed."""

        async def question(redis: Any) -> Any:
            async with redis.pipeline(transaction=False) as many:
                for id in ids:
                    many.exists(_session_key(id))
                return await many.execute()

        found: list[int] = await self.run_command(question) if ids else []
        return {id for id, there in zip(ids, found, strict=True) if there}

    async def remove(self, id: str) -> bool:
        return bool(
            await self.run_command(
                lambda _: self._remove_script([_ALL_SESSIONS, _bridge_key(id)], [id, _session_key("")])
            )
        )

    async def replace_tools(self, registration: AppRegistration, tools: bytes, now: float) -> None:
        """Raises TooManySessions, SessionGone."""
        values: list[bytes | str | int] = [
            tools,
            _session_key(""),
            int(now * 1000),
            self._limits.bytes,
            self._limits.bytes_per_peer,
        ]
        self._raise_for_code(
            await self.run_command(lambda _: self._replace_tools_script(_quota_keys(registration), values))
        )

    async def read_tools(self, id: str) -> bytes | None:
        found: bytes | None = await self.run_command(lambda redis: redis.hget(_session_key(id), "tools"))
        return found

    async def list_all(self) -> list[StoredAppSession]:
        ids: list[bytes] = await self.run_command(lambda redis: redis.zrange(_ALL_SESSIONS, 0, -1))

        async def question(redis: Any) -> Any:
            async with redis.pipeline(transaction=False) as many:
                for id in ids:
                    many.hmget(_session_key(id.decode()), "session", "tools")
                    many.get(_bridge_key(id.decode()))
                return await many.execute()

        answers: list[Any] = await self.run_command(question) if ids else []
        pairs = zip(answers[::2], answers[1::2], strict=True)
        found = [_parse_stored(session, tools, owner) for (session, tools), owner in pairs]
        return [kept for kept in found if kept is not None]

    async def count(self, now: float) -> int:
        async def question(redis: Any) -> Any:
            async with redis.pipeline(transaction=False) as many:
                many.zremrangebyscore(_ALL_SESSIONS, 0, int(now * 1000))
                many.zcard(_ALL_SESSIONS)
                return await many.execute()

        return int((await self.run_command(question))[1])

    # ---- bridges ----

    async def claim(self, id: str, instance: str, *, instead_of: str = "") -> tuple[int, str]:
        """How many bridges the session has had, this one included; 0 and its owner when one is attached; -1 = gone."""
        keys = [_session_key(id), _bridge_key(id)]
        number, owner = await self.run_command(lambda _: self._claim_script(keys, [instance, LEASE, instead_of]))
        return int(number), owner.decode()

    async def release(self, id: str, instance: str, now: float) -> None:
        keys = [_bridge_key(id), _session_key(id)]
        await self.run_command(lambda _: self._release_script(keys, [instance, int(now * 1000)]))

    async def renew_claim(self, id: str, instance: str, now: float) -> bool:
        """Renew an instance's claim; False when another has taken it over."""
        keys = [_bridge_key(id), _session_key(id)]
        return bool(
            await self.run_command(lambda _: self._renew_claim_script(keys, [instance, LEASE, int(now * 1000)]))
        )

    async def owner(self, id: str) -> str | None:
        found: bytes | None = await self.run_command(lambda redis: redis.get(_bridge_key(id)))
        return None if found is None else found.decode()

    # ---- messages ----

    async def publish(self, channel: str, data: bytes) -> int:
        """The number of instances that received it."""
        return int(await self.run_command(lambda redis: redis.publish(channel, data)))

    async def has_subscribers(self, channel: str) -> bool:
        found = await self.run_command(lambda redis: redis.pubsub_numsub(channel))
        return bool(found and found[0][1])

    async def put_parcel(self, name: str, data: bytes) -> None:
        await self.run_command(lambda redis: redis.set(PREFIX + "parcel:" + name, data, ex=PARCEL_LIFE))

    async def fetch_parcel(self, name: str) -> bytes | None:
        found: bytes | None = await self.run_command(lambda redis: redis.getdel(PREFIX + "parcel:" + name))
        return found

    # ---- limits, and which life this is ----

    async def take_tokens(self, buckets: Sequence[RateBucket]) -> float:
        keys = [f"{PREFIX}rate:{bucket.name}" for bucket in buckets]
        values = [number for bucket in buckets for number in (bucket.rate.per_second, bucket.rate.burst)]
        return float(await self.run_command(lambda _: self._take_tokens_script(keys, values)))

    async def server_run_id(self) -> str:
        """Names this run of the Redis server: another name means it was restarted, and may have forgotten things."""
        found: dict[str, Any] = await self.run_command(lambda redis: redis.info("server"))
        return str(found.get("run_id", ""))


_ALL_SESSIONS: Final = PREFIX + "all"


def _connect(url: str, retry: Retry) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=ANSWER_WAIT,
            socket_timeout=ANSWER_WAIT,
            socket_connect_timeout=CONNECT_WAIT,
            retry=retry,
        )
    except ValueError:
        raise BadRequest(
            "OPENCLAW_PROXY_REDIS_URL is no address of a Redis; give one like redis://127.0.0.1:6379/0"
        ) from None
    return Redis.from_pool(pool)


def _session_key(id: str) -> str:
    return f"{PREFIX}session:{id}"


def _bridge_key(id: str) -> str:
    return f"{PREFIX}bridge:{id}"


def _quota_keys(registration: AppRegistration) -> list[str]:
    """The keys of a session and of what it counts against."""
    return [_session_key(registration.id), _ALL_SESSIONS, _peer_key(registration)]


def _peer_key(registration: AppRegistration) -> str:
    """The sessions of the owner of this one."""
    return f"{PREFIX}peer:{registration.peer}"


def _parse_stored(session: bytes | None, tools: bytes | None, owner: bytes | None) -> StoredAppSession | None:
    if session is None or tools is None:
        return None
    made = msgspec.json.decode(session, type=AppRegistration)
    return StoredAppSession(made, tools, None if owner is None else owner.decode())
