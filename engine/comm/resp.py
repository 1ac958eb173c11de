"""Talk to a Redis server: connections, their pool, and what to do when the server goes away.

A thin client of its own, because group start-up makes thousands of small calls from several threads
of a process that forks: one write a batch of commands, one connection a thread inside a call,
nothing shared across a fork, every wait bounded. Torch-free, so that the driver can use it.
"""

import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from engine.errors import MissingError, RecipeError

Word = str | bytes | int | float
Value = bytes | int | None | list["Value"]
Command = Sequence[Word]
_MAX_REPLY = 1 << 30
_MAX_PASSWORD = 4096
_AGAIN = ("LOADING", "MASTERDOWN", "READONLY", "BUSY", "TRYAGAIN")
"""Refusals that pass by themselves: the server is starting or changing roles."""


class Address(NamedTuple):
    """Where a server is and how to be let in."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    """A unix socket; host and port do not count then."""
    user: str = ""
    password: str = ""
    database: int = 0
    tls: bool = False

    @property
    def shown(self) -> str:
        """For messages: never with the password."""
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"


class ServerSaidNo(MissingError):
    """The server answered with an error; asking again gives the same."""


class Unreachable(MissingError):
    """The server did not answer within the time allowed."""


class _Again(Exception):
    """The server cannot serve now but will."""


def parse_url(url: str) -> Address:
    """`redis://[user]:password@host:port/0`, `rediss://...` or `unix:///path?password=...`.

    `?password_file=PATH` reads the password from a file, so that it stands on no command line.
    """
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        secret = _read_password(query["password_file"][0]) if "password_file" in query else ""
        if parts.scheme == "unix" and parts.path:
            given = query.get("password", [""])[0]
            return Address(path=unquote(parts.path), password=secret or given)
        if parts.scheme in ("redis", "rediss") and parts.hostname:
            return Address(
                host=parts.hostname,
                port=parts.port or 6379,
                user=unquote(parts.username or ""),
                password=secret or unquote(parts.password or ""),
                database=int(parts.path.strip("/") or 0),
                tls=parts.scheme == "rediss",
            )
    except ValueError:
        pass
    raise RecipeError(
        f"not the URL of a Redis server (password hidden): {url.rpartition('@')[2]}",
        remedy="write redis://:PASSWORD@HOST:6379/0, or unix:///PATH",
    )


def _read_password(path: str) -> str:
    """The first line of a file."""
    try:
        with open(path, "rb") as file:
            return file.readline(_MAX_PASSWORD).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{path}: the password of Redis cannot be read: {error}",
            remedy="write it into that file, readable by you alone (chmod 600)",
        ) from error


def pack(command: Command) -> bytes:
    """A command in the server's protocol."""
    out = [b"*%d\r\n" % len(command)]
    for word in command:
        data = word if isinstance(word, bytes) else str(word).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


class Connection:
    """One connection; not for two threads at a time. A broken one is thrown away."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self._socket = _dial(address, timeout_s)
        self._file = self._socket.makefile("rb", buffering=1 << 16)
        greeting: list[Command] = []
        if address.password:
            name = (address.user,) if address.user else ()
            greeting.append(("AUTH", *name, address.password))
        if address.database:
            greeting.append(("SELECT", address.database))
        if greeting:
            try:
                self.call(greeting, timeout_s=timeout_s)
            except BaseException:
                self.close()
                raise

    def call(self, commands: Sequence[Command], *, timeout_s: float) -> list[Value]:
        """Replies of a batch, sent in one write; OSError if the connection breaks or time ends."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(b"".join(pack(c) for c in commands))
        replies: list[Value] = []
        refusal = ""
        for _ in commands:
            reply = self._read()
            if isinstance(reply, _Refusal):
                refusal = refusal or reply.text
                continue
            replies.append(reply)
        if refusal:
            raise _refused(refusal)
        return replies

    def close(self) -> None:
        """Let go of the socket."""
        self._file.close()
        self._socket.close()

    def _read(self) -> "Value | _Refusal":
        line = self._file.readline(1 << 16)
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"-":
            return _Refusal(rest.decode("utf-8", "replace"))
        size = int(rest) if rest.lstrip(b"-").isdigit() else _MAX_REPLY + 1
        if size > _MAX_REPLY or kind not in (b"$", b"*"):
            raise ConnectionError(f"not an answer of a Redis server: {line[:40]!r}")
        if size < 0:
            return None
        if kind == b"$":
            data = self._file.read(size + 2)
            if len(data) < size + 2:
                raise ConnectionError("the server closed the connection")
            return data[:-2]
        items = [self._read() for _ in range(size)]
        return [item for item in items if not isinstance(item, _Refusal)]


class _Refusal(NamedTuple):
    text: str


def _dial(address: Address, timeout_s: float) -> socket.socket:
    if address.path:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        try:
            made.connect(address.path)
        except BaseException:
            made.close()
            raise
        return made
    made = socket.create_connection((address.host, address.port), timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if address.tls:
        return ssl.create_default_context().wrap_socket(made, server_hostname=address.host)
    return made


def _refused(text: str) -> Exception:
    """What a server's error means for the caller."""
    word = text.split(" ", 1)[0]
    if word in _AGAIN:
        return _Again(text)
    if word in ("NOAUTH", "WRONGPASS") or "invalid password" in text:
        return ServerSaidNo(
            f"Redis refused the password: {text}",
            remedy="give the right one in the URL: redis://:PASSWORD@HOST:PORT",
        )
    if word == "OOM":
        return ServerSaidNo(
            f"Redis is out of memory: {text}",
            remedy="raise its maxmemory, or empty it: `redis-cli config set maxmemory 1gb`",
        )
    return ServerSaidNo(
        f"Redis refused a command: {text}", remedy="use Redis 6.2 or Valkey 7.2 or later"
    )


class Client:
    """A pool of connections to one server that survives its restart, a freeze and a fork.

    `io_s` bounds the wait for one answer, `patience_s` how long a lost server is tried again. A
    batch may thus reach the server twice: callers send only what may be repeated.
    """

    def __init__(self, address: Address, *, io_s: float = 5.0, patience_s: float = 60.0) -> None:
        self.address = address
        self.io_s = io_s
        self.patience_s = patience_s
        self.calls = 0
        self._free: list[Connection] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def call(self, *commands: Command, block_s: float = 0.0,
             patience_s: float | None = None) -> list[Value]:  # fmt: skip
        """Replies of a batch. `block_s` is how long the commands themselves may wait.

        Unreachable after `patience_s` without an answer; ServerSaidNo if it refuses.
        """
        end = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        pause, why = 0.02, ""
        while True:
            try:
                return self._once(commands, block_s + self.io_s)
            except (OSError, _Again) as error:
                why = str(error) or type(error).__name__
            if time.monotonic() + pause >= end:
                raise Unreachable(
                    f"Redis at {self.address.shown} does not answer: {why}",
                    remedy="check that it runs and is reached from here: `redis-cli -u URL ping`",
                )
            time.sleep(pause)
            pause = min(1.0, pause * 2)

    def _once(self, commands: Sequence[Command], timeout_s: float) -> list[Value]:
        with self._lock:
            self.calls += 1
            if self._pid != os.getpid():  # forked: the parent's sockets are not ours
                self._free, self._pid = [], os.getpid()
            connection = self._free.pop() if self._free else None
        if connection is None:
            connection = Connection(self.address, timeout_s=self.io_s)
        try:
            replies = connection.call(commands, timeout_s=timeout_s)
        except ServerSaidNo:
            self._put_back(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._put_back(connection)
        return replies

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            self._free.append(connection)

    def close(self) -> None:
        """Close what is not in use."""
        with self._lock:
            free, self._free = self._free, []
        for connection in free:
            connection.close()
