"""The nursery: ranks that start at once, end with their codes, and never outlive it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from bench.ranks import ROOT
from engine.comm.listen import listening_socket
from engine.job.nursery import Report, Signal, Start
from engine.train.task import RankTask

pytestmark = pytest.mark.multi

START_LIMIT_S = 2.0
"""Eight ranks, from the request to the last one's word: the project's promise."""


def body(rank: int, task: RankTask, fd: int) -> int:
    """What a rank does here: as the task's `resume` says."""
    wish, _, number = task.resume.partition(" ")
    print(f"rank {rank} says {wish}", flush=True)
    if wish == "exit":
        return int(number)
    if wish == "raise":
        raise KeyError("lost key")
    if wish == "leave":
        raise SystemExit(9)
    if wish == "die":
        os.kill(os.getpid(), int(number))
    if wish == "fds":
        names = os.listdir("/proc/self/fd")
        kinds = [
            os.readlink(f"/proc/self/fd/{n}") for n in names if os.path.exists(f"/proc/self/fd/{n}")
        ]
        Path(task.folder, f"fds-{rank}").write_text("\n".join([str(fd), *sorted(kinds)]))
    if wish == "sleep":
        Path(task.folder, f"up-{rank}").touch()
        time.sleep(60)
    if wish == "stop":
        ended: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
        Path(task.folder, f"up-{rank}").touch()
        while not ended:
            time.sleep(0.01)
        Path(task.folder, f"stopped-{rank}").touch()
    return 0


class Pen:
    """A nursery and this test as its driver."""

    def __init__(self, folder: Path, function: str = f"{__name__}:body") -> None:
        self.folder = folder
        self.control, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.job.nursery", str(theirs.fileno()), function],
            pass_fds=[theirs.fileno()], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._buffer = b""
        self._reports: list[Report] = []

    def start(self, ranks: int, wish: str) -> None:
        task = RankTask(folder=str(self.folder), world=ranks, host="h", port=1, resume=wish)
        with listening_socket("127.0.0.1", 0) as meet:
            request = msgspec.json.encode(Start(ranks=tuple(range(ranks)), task=task)) + b"\n"
            socket.send_fds(self.control, [request], [meet.fileno()])

    def tell(self, number: int, *ranks: int) -> None:
        self.control.sendall(msgspec.json.encode(Signal(signal=number, ranks=ranks)) + b"\n")

    def wait(self, event: str, count: int, *, deadline_s: float = 60.0) -> list[Report]:
        """Reports of a kind, in order of their coming, each given once."""
        end = time.monotonic() + deadline_s
        while sum(r.event == event for r in self._reports) < count:
            self.control.settimeout(max(0.01, end - time.monotonic()))
            data = self.control.recv(1 << 16)
            assert data, "the nursery ended"
            self._buffer += data
            *lines, self._buffer = self._buffer.split(b"\n")
            self._reports += [msgspec.json.decode(line, type=Report) for line in lines]
        found = [r for r in self._reports if r.event == event][:count]
        self._reports = [r for r in self._reports if r not in found]
        return found

    def codes(self, ranks: int) -> list[int]:
        return [r.code for r in sorted(self.wait("exit", ranks), key=lambda r: r.rank)]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pen]:
    pen = Pen(tmp_path_factory.mktemp("pen"))
    pen.wait("ready", 1, deadline_s=120)
    yield pen
    pen.control.close()
    assert pen.process.wait(timeout=20) == 0


@pytest.fixture
def pen(nursery: Pen, tmp_path: Path) -> Pen:
    nursery.folder = tmp_path
    nursery._reports.clear()
    return nursery


def wait_until(what: Callable[[], bool], *, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("wish", "code"),
    [("exit 0", 0), ("exit 7", 7), ("raise", 1), ("leave", 1), ("die 9", -9), ("die 6", -6)],
)
def test_the_code_of_each_rank_is_reported(pen: Pen, wish, code):
    pen.start(2, wish)
    started = pen.wait("started", 2)
    assert [r.rank for r in started] == [0, 1]
    assert pen.codes(2) == [code, code]


def test_what_a_rank_prints_or_dies_of_is_in_its_log(pen: Pen):
    pen.start(2, "raise")
    pen.codes(2)
    for rank in range(2):
        log = (pen.folder / "log" / f"rank-{rank:05d}.log").read_text()
        assert f"rank {rank} says raise" in log
        assert "KeyError: 'lost key'" in log


def test_eight_ranks_start_quickly(pen: Pen):
    """The best of three, since the machine may be busy with something else."""
    lengths = []
    for _ in range(3):
        begin = time.monotonic()
        pen.start(8, "exit 0")
        pen.wait("started", 8)
        pen.codes(8)
        lengths.append(time.monotonic() - begin)
    assert min(lengths) <= START_LIMIT_S


def test_a_signal_reaches_the_ranks_it_is_for(pen: Pen):
    pen.start(3, "sleep")
    pids = {r.rank: r.pid for r in pen.wait("started", 3)}
    wait_until(lambda: all((pen.folder / f"up-{rank}").exists() for rank in range(3)))
    pen.tell(signal.SIGKILL, 1)
    (first,) = pen.wait("exit", 1)
    assert (first.rank, first.code, first.pid) == (1, -9, pids[1])
    pen.tell(signal.SIGTERM)
    assert sorted((r.rank, r.code) for r in pen.wait("exit", 2)) == [(0, -15), (2, -15)]


def test_ranks_hold_no_descriptor_of_the_nursery_and_rank_0_alone_the_stores_socket(pen: Pen):
    pen.start(2, "fds")
    assert pen.codes(2) == [0, 0]
    for rank in range(2):
        fd, *kinds = (pen.folder / f"fds-{rank}").read_text().splitlines()
        sockets = [kind for kind in kinds if kind.startswith("socket:")]
        assert (int(fd) >= 0, len(sockets)) == ((True, 1) if rank == 0 else (False, 0))
        assert not [kind for kind in kinds if kind.startswith("pipe:")]
        assert not [kind for kind in kinds if "eventpoll" in kind]


def test_when_the_driver_closes_ranks_are_asked_first_and_gone_afterwards(tmp_path: Path):
    pen = Pen(tmp_path)
    pen.wait("ready", 1, deadline_s=120)
    pen.start(2, "stop")
    pids = [r.pid for r in pen.wait("started", 2)]
    wait_until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(2)))
    pen.control.close()
    assert pen.process.wait(timeout=20) == 0
    assert all((tmp_path / f"stopped-{rank}").exists() for rank in range(2))
    assert not any(is_alive(pid) for pid in pids)


def test_a_killed_nursery_takes_its_ranks_along(tmp_path: Path):
    pen = Pen(tmp_path)
    pen.wait("ready", 1, deadline_s=120)
    pen.start(2, "sleep")
    pids = [r.pid for r in pen.wait("started", 2)]
    wait_until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(2)))
    pen.process.kill()
    pen.process.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))
    pen.control.close()
