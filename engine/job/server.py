"""The job's Redis, if its recipe wants one: started, kept alive, brought back when it dies.

A Redis that is gone stops nothing: ranks that have met do not need it. It is back before the next
start of ranks, with its data, on the same address.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.resp import Client, parse_url
from engine.errors import MissingError
from engine.spec.recipe import Recipe

_AGAIN_S = 0.5


class ServerLost(MissingError):
    """The server is gone with its address and data: this start of the job cannot go on."""


class Mendable(Protocol):
    """What brings a server back: the server itself, or the process that keeps it."""

    @property
    def pid(self) -> int:
        """Its process; 0 if it does not run."""

    @property
    def is_alive(self) -> bool:
        """Whether that process runs."""

    def restart(self) -> float:
        """Bring it back; returns seconds.

        Raises MissingError if that cannot be now, ServerLost if it can never be.
        """


class Server:
    """A private server, or one that somebody else looks after."""

    def __init__(self, url: str, own: Mendable | None) -> None:
        self.url, self._own = url, own
        self._tried = 0.0
        self.restarts = 0

    @property
    def pid(self) -> int:
        """Process of the private server; 0 if there is none."""
        return self._own.pid if self._own else 0

    def mend(self) -> str:
        """Bring the private server back if it died; says so, or what stands in the way.

        ServerLost if it is gone for good.
        """
        if self._own is None or self._own.is_alive or time.monotonic() - self._tried < _AGAIN_S:
            return ""
        self._tried = time.monotonic()
        try:
            seconds = self._own.restart()
        except ServerLost:
            raise
        except MissingError as error:
            return f"Redis is gone and does not come back: {error.what}"
        self.restarts += 1
        return f"Redis had ended and is back after {seconds:.2f} s; ranks went on without it"


@contextlib.contextmanager
def job_server(recipe: Recipe, folder: Path, *, host: str = "") -> Iterator[Server | None]:
    """The server that `train.store` names; None where ranks meet at rank 0."""
    wish = recipe.train.store
    if wish == "tcp":
        yield None
    elif wish == "redis":
        with EmbeddedRedis(host=host) as own:
            yield Server(own.url_by_file, own)
    else:
        client = Client(parse_url(wish), patience_s=10.0)
        client.call(("PING",))  # say at once what is wrong
        client.close()
        yield Server(wish, None)
