"""Who is in charge of a job: a lease in Redis with a token that only grows (fencing).

A driver that holds the lease renews it; one that could not for too long is no longer in charge, and
what it sends afterwards carries an old token. Orders are written by a script that looks at the
lease in the same instant, so a driver that slept cannot slip one in; executors look at the token
once more. Times are the server's, not those of any machine.
"""

import time
from collections.abc import Sequence

import msgspec

from engine.comm.resp import Client
from engine.errors import MissingError
from engine.job.order import Order

LEASE_S = 5.0
_TAKE = (
    "if redis.call('GET',KEYS[1]) then return -1 end "
    "local t=redis.call('INCR',KEYS[2]) redis.call('SET',KEYS[1],t,'PX',ARGV[1]) return t"
)
_RENEW = (
    "local l=redis.call('GET',KEYS[1]) "
    "if l==ARGV[1] then redis.call('PEXPIRE',KEYS[1],ARGV[2]) return 1 end "
    "local t=redis.call('GET',KEYS[2]) "
    "if l or (t and t~=ARGV[1]) then return 0 end "
    "redis.call('SET',KEYS[1],ARGV[1],'PX',ARGV[2]) redis.call('SET',KEYS[2],ARGV[1]) return 1"
)
"""Also an expired lease that nobody has taken since, or one that the server lost, is renewed."""
_TELL = (
    "if redis.call('GET',KEYS[1])~=ARGV[1] then return 0 end "
    "redis.call('RPUSH',KEYS[2],ARGV[2]) redis.call('EXPIRE',KEYS[2],3600) return 1"
)
_WRITE = (
    "if redis.call('GET',KEYS[1])~=ARGV[1] then return 0 end redis.call('SET',KEYS[2],ARGV[2]) "
    "return 1"
)
_GIVE = "if redis.call('GET',KEYS[1])==ARGV[1] then redis.call('DEL',KEYS[1]) end return 1"


class NotInCharge(MissingError):
    """Another driver holds the lease."""


class Lease:
    """One driver's claim on one job."""

    def __init__(self, client: Client, job: str, *, length_s: float = LEASE_S) -> None:
        self._client, self._job = client, job
        self.length_s, self._length_ms = length_s, int(length_s * 1000)
        self.token = 0
        self.renewed_s = 0.0

    @property
    def _key(self) -> str:
        return f"{self._job}:lease"

    def take(self, *, within_s: float = 0.0) -> int:
        """Become the one in charge; waits for a dead one's lease to end. Returns the token.

        NotInCharge if somebody else holds it all the time.
        """
        end = time.monotonic() + within_s
        while True:
            keys = (self._key, f"{self._job}:token")
            reply = self._client.call(("EVAL", _TAKE, 2, *keys, self._length_ms))[0]
            if isinstance(reply, int) and reply > 0:
                self.token, self.renewed_s = reply, time.monotonic()
                return reply
            if time.monotonic() >= end:
                raise NotInCharge(
                    f"job {self._job} has a driver that is alive",
                    remedy="follow it with `msctl train --follow`, or end it first",
                )
            time.sleep(0.05)

    def renew(self) -> None:
        """Stay in charge. NotInCharge if it was lost; Unreachable passes if the server is gone."""
        keys = (self._key, f"{self._job}:token")
        words = ("EVAL", _RENEW, 2, *keys, self.token, self._length_ms)
        if self._client.call(words, patience_s=0.0)[0] != 1:
            raise self._lost()
        self.renewed_s = time.monotonic()

    def tell(self, orders: Sequence[tuple[str, Order]]) -> None:
        """Put orders into their nodes' queues, all in one message, if still in charge.

        One that had to be sent twice may come twice.
        """
        left = [
            ("EVAL", _TELL, 2, self._key, orders_key(self._job, node), order.token,
             msgspec.json.encode(order))
            for node, order in orders
        ]  # fmt: skip
        for again in (False, True):
            replies = self._client.call(*left, patience_s=1.0)
            left = [words for words, reply in zip(left, replies, strict=True) if reply != 1]
            if not left:
                return
            if not again:
                self.renew()
        raise self._lost()

    def write(self, name: str, data: bytes) -> None:
        """Keep something for the driver after this one, if still in charge."""
        words = ("EVAL", _WRITE, 2, self._key, f"{self._job}:{name}", self.token, data)
        if self._client.call(words, patience_s=1.0)[0] != 1:
            self.renew()

    def give_back(self) -> None:
        """Leave, so that the next need not wait."""
        self._client.call(("EVAL", _GIVE, 1, self._key, self.token), patience_s=0.0)

    def _lost(self) -> NotInCharge:
        return NotInCharge(
            f"another driver has taken job {self._job} over (token {self.token} is old)",
            remedy="follow it with `msctl train --follow`; this one ends without touching anything",
        )


def orders_key(job: str, node: str) -> str:
    """The queue of a node's orders."""
    return f"{job}:orders:{node}"


def beats_key(job: str) -> str:
    """The stream of all beats of a job."""
    return f"{job}:beats"


def nodes_key(job: str) -> str:
    """Node -> its newest beat."""
    return f"{job}:nodes"
