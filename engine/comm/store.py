"""A torch.distributed store in Redis: rendezvous that outlives every rank (paper 3.5).

Keys, all under one prefix per attempt of a job:

    d:KEY   the value, a plain string, so that INCRBY and APPEND work on it
    w:KEY   a stream of one entry, written when the key comes to be; a waiter blocks on it
    q:KEY   a queue
    o:ID    the answer to a request that must not run twice, kept for ten minutes
    m:NAME  who has come to a meeting, rank -> node

A waiter reads the stream from its start: it returns at once if the key is there, and otherwise the
server wakes it. Nothing is polled, and no wake-up can fall between a look and a wait.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from engine.comm.meeting import absent
from engine.comm.resp import Client, Command, Value, parse_url
from engine.errors import MissingError

_SLICE_S = 5.0
"""Longest single wait on the server, so that a dead one is noticed."""
_KEPT_S = 600
_SHOWN = 8
T = TypeVar("T")

# A request id makes these safe to repeat after a lost connection.
_ONCE = """local o=redis.call('GET',KEYS[3]) if o then return o end """
_KEEP = f" redis.call('SET',KEYS[3],r,'EX',{_KEPT_S}) return r"
_WAKE = " redis.call('XADD',KEYS[2],'MAXLEN','1','*','x','1')"
_ADD = _ONCE + "local r=tostring(redis.call('INCRBY',KEYS[1],ARGV[1]))" + _WAKE + _KEEP
_APPEND = _ONCE + "local r=tostring(redis.call('APPEND',KEYS[1],ARGV[1]))" + _WAKE + _KEEP
_PUSH = _ONCE + "local r=tostring(redis.call('RPUSH',KEYS[1],ARGV[1]))" + _WAKE + _KEEP
_CAS = (
    _ONCE + "local c=redis.call('GET',KEYS[1]) local r=c or ARGV[1] "
    "if (not c and ARGV[1]=='') or c==ARGV[1] then "
    "redis.call('SET',KEYS[1],ARGV[2])" + _WAKE + " r=ARGV[2] end" + _KEEP
)
_POP = (
    "local o=redis.call('GET',KEYS[3]) if o then return o end local r=redis.call('LPOP',KEYS[1]) "
    "if redis.call('LLEN',KEYS[1])==0 then redis.call('DEL',KEYS[2]) end "
    f"if r then redis.call('SET',KEYS[3],r,'EX',{_KEPT_S}) end return r"
)
SCRIPTS = (_ADD, _APPEND, _CAS, _PUSH, _POP)
"""For the native form, which sends the same."""
_COME = (
    "redis.call('HSET',KEYS[1],ARGV[1],ARGV[2]) local n=redis.call('HLEN',KEYS[1]) "
    "if n==tonumber(ARGV[3]) then redis.call('XADD',KEYS[2],'MAXLEN','1','*','x','1') end return n"
)

_alive: list["RedisStore"] = []  # see RedisStore: C++ holds only half of the object


class RedisStore(dist.Store):
    """The operations of torch's stores on Redis 6.2 or later, or Valkey.

    Survives a restart of the server and a fork. An operation that cannot be done raises
    DistStoreError, as torch expects. Every instance stays referenced for the life of the process:
    torch keeps only the C++ half, and without the Python half its calls would find nothing.
    """

    def __init__(self, url: str, *, prefix: str = "", timeout_s: float = 300.0,
                 client: Client | None = None) -> None:  # fmt: skip
        super().__init__()
        self._url, self._prefix = url, prefix
        self.client = client or Client(parse_url(url), patience_s=timeout_s)
        self.set_timeout(timedelta(seconds=timeout_s))
        self._ids = f"{uuid.uuid4().hex}:"
        self._next, self._lock = 0, threading.Lock()
        _alive.append(self)

    # -- what torch calls

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value and wake who waits for it."""
        self._call(("SET", self._d(key), value), self._wake(key))

    def get(self, key: str) -> bytes:
        """The value; waits for it up to the store's time-out."""
        value = self._call(("GET", self._d(key)))[0]
        if value is None:
            self.wait([key])
            value = self._call(("GET", self._d(key)))[0]
        if value is None:
            raise dist.DistStoreError(f"key {key!r} was deleted while it was waited for")
        return _bytes(value)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; returns its value. Counted once even if the connection breaks."""
        if amount == 0:
            value = self._call(("GET", self._d(key)))[0]
            if value is not None:
                return int(_bytes(value))
        return int(_bytes(self._once(_ADD, self._d(key), key, amount)))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write if the value is as expected (empty: absent); returns what is there afterwards."""
        return _bytes(self._once(_CAS, self._d(key), key, expected, desired))

    def append(self, key: str, value: str | bytes) -> None:
        """Write at the end of a value."""
        self._once(_APPEND, self._d(key), key, value)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there now."""
        if not keys:
            return True
        return self._call(("EXISTS", *map(self._d, dict.fromkeys(keys))))[0] == len(set(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are there; DistStoreError names those that did not come."""
        limit = self._limit_s if timeout is None else timeout.total_seconds()
        left = self._await(list(dict.fromkeys(keys)), limit)
        if left:
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            raise dist.DistStoreError(
                f"wait timeout after {limit * 1000:.0f}ms, keys: "
                + ", ".join(left[:_SHOWN]) + f"{more}; {len(keys) - len(left)} of {len(keys)} came"
            )  # fmt: skip

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Values of all keys in one call; waits for those that are missing."""
        found = self._list(("MGET", *map(self._d, keys)))
        missing = [k for k, v in zip(keys, found, strict=True) if v is None]
        if missing:
            self.wait(missing)
            found = self._list(("MGET", *map(self._d, keys)))
        return [_bytes(v) for v in found]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write many values in one call."""
        if keys:
            pairs = [w for k, v in zip(keys, values, strict=True) for w in (self._d(k), v)]
            self._call(("MSET", *pairs), *map(self._wake, keys))

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        names = (self._d(key), self._w(key), self._q(key))
        return any(n for n in self._call(*(("DEL", name) for name in names)))

    def num_keys(self) -> int:
        """How many keys there are under the prefix."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """All keys under the prefix."""
        found, cursor = set(), b"0"
        pattern = _literal(self._d("")) + "*"
        while True:
            reply = self._list(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
            cursor, names = _bytes(reply[0]), reply[1]
            assert isinstance(names, list), f"SCAN answered {names!r}"
            found |= {_bytes(n).decode()[len(self._d("")) :] for n in names}
            if cursor == b"0":
                return sorted(found)

    # torch looks these up under their C++ names
    deleteKey = delete_key
    getNumKeys = num_keys

    def has_extended_api(self) -> bool:
        """Append and the multi operations are there."""
        return True

    def clone(self) -> "RedisStore":
        """The same store with connections of its own."""
        return RedisStore(self._url, prefix=self._prefix, timeout_s=self._limit_s)

    # -- queues: torch's C++ side does not ask a Python store for them, Python callers do

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Put a value at the end of a queue."""
        self._once(_PUSH, self._q(key), key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value; DistQueueEmptyError if there is none and `block` is off."""
        end = time.monotonic() + self._limit_s
        while True:
            value = self._once(_POP, self._q(key), key)
            if value is not None:
                return _bytes(value)
            left = end - time.monotonic()
            if not block or left <= 0 or self._await([key], left):
                kind = getattr(dist, "QueueEmptyError", dist.DistStoreError)
                raise kind(f"queue {key!r} is empty")

    def queue_len(self, key: str) -> int:
        """How many values a queue holds."""
        value = self._call(("LLEN", self._q(key)))[0]
        return value if isinstance(value, int) else 0

    # -- beyond torch: O(n) meetings

    def meet(
        self,
        name: str,
        rank: int,
        world: int,
        *,
        node: str = "",
        nodes: Mapping[int, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Return when all ranks have come: two calls a rank, nothing polled.

        RunFailed after the time-out says how many came and who is missing; `nodes` tells where a
        rank that never came should be.
        """
        limit = self._limit_s if timeout_s is None else timeout_s
        keys = (self._prefix + "m:" + name, self._w("m:" + name))
        self._call(("EVAL", _COME, 2, *keys, rank, node, world))
        if not self._await(["m:" + name], limit):
            return
        came = {int(_bytes(r)) for r in self._list(("HKEYS", keys[0]))}
        missing = sorted(set(range(world)) - came)
        raise absent(name, missing, world, nodes or {}, limit)

    def exchange(self, name: str, mine: Mapping[str, bytes], wanted: Sequence[str], *,
                 rank: int, world: int) -> dict[str, bytes]:  # fmt: skip
        """Give all my values, meet once, take what I need: O(n) calls for all groups together."""
        self.multi_set(list(mine), list(mine.values()))
        self.meet(name, rank, world)
        return dict(zip(wanted, self.multi_get(wanted), strict=True)) if wanted else {}

    def clock_offset_s(self) -> float:
        """How far this clock is ahead of the server's; half the round trip is its error."""
        before = time.time()
        reply = self._list(("TIME",))
        after = time.time()
        return (before + after) / 2 - (int(_bytes(reply[0])) + int(_bytes(reply[1])) / 1e6)

    @property
    def _limit_s(self) -> float:
        """The store's time-out, which torch may have changed."""
        return float(self.timeout.total_seconds())  # type: ignore[attr-defined] # pybind only

    # -- inside

    def _await(self, keys: list[str], limit_s: float) -> list[str]:
        """Wait for keys; returns those that did not come in time."""
        end = time.monotonic() + limit_s
        left = keys
        while left:
            remaining = end - time.monotonic()
            if remaining <= 0:
                return left
            slice_s = min(_SLICE_S, remaining)
            streams = [self._w(k) for k in left]
            command: Command = (
                "XREAD",
                "COUNT",
                1,
                "BLOCK",
                max(1, int(slice_s * 1000)),
                "STREAMS",
                *streams,
                *["0"] * len(left),
            )
            reply = self._call(command, block_s=slice_s, patience_s=remaining)[0]
            if isinstance(reply, list):
                came = {_bytes(entry[0]) for entry in reply if isinstance(entry, list)}
                left = [k for k, s in zip(left, streams, strict=True) if s.encode() not in came]
        return left

    def _once(self, script: str, name: str, key: str, *arguments: str | bytes | int) -> Value:
        with self._lock:
            self._next += 1
            request = f"{self._prefix}o:{self._ids}{self._next}"
        return self._call(("EVAL", script, 3, name, self._w(key), request, *arguments))[0]

    def _call(self, *commands: Command, block_s: float = 0.0,
              patience_s: float | None = None) -> list[Value]:  # fmt: skip
        """As the client's, with torch's kind of error."""
        return _as_store_error(
            lambda: self.client.call(*commands, block_s=block_s, patience_s=patience_s)
        )

    def _list(self, command: Command) -> list[Value]:
        reply = self._call(command)[0]
        return reply if isinstance(reply, list) else []

    def _wake(self, key: str) -> Command:
        return ("XADD", self._w(key), "MAXLEN", 1, "*", "x", "1")

    def _d(self, key: str) -> str:
        return f"{self._prefix}d:{key}"

    def _w(self, key: str) -> str:
        return f"{self._prefix}w:{key}"

    def _q(self, key: str) -> str:
        return f"{self._prefix}q:{key}"


def _as_store_error(function: Callable[[], T]) -> T:
    try:
        return function()
    except MissingError as error:
        raise dist.DistStoreError(f"{error.what}; {error.remedy}") from error


def _bytes(value: Any) -> bytes:
    """A reply as bytes; numbers come from scripts of older servers."""
    return value if isinstance(value, bytes) else str(value).encode()


def _literal(text: str) -> str:
    """Text whose special characters a SCAN pattern takes as they are."""
    return "".join(f"\\{c}" if c in "*?[]^-\\" else c for c in text)
