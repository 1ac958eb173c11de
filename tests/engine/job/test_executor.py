"""An executor by itself: refuses an old driver, ends ranks on order, ends with its driver."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.comm.listen import listening_socket
from engine.health.heartbeat import Heartbeat, decode_beat
from engine.job.link import DriverLink
from engine.job.order import ExecutorTask, Order
from engine.processes import family_of
from engine.spec.load import dump_recipe
from engine.train.task import RankTask
from tests.engine.train.single import recipe

pytestmark = pytest.mark.multi
ENDLESS = 1_000_000


class Hand:
    """An executor, and this test as its driver."""

    def __init__(self, folder: Path) -> None:
        made = recipe(train={"steps": ENDLESS}, data={"loader": "rank"})
        (folder / "recipe.toml").write_text(dump_recipe(made))
        self.folder = folder
        ours, theirs = socket.socketpair()
        task = ExecutorTask(node="n0", folder=str(folder), slots=1, link_fd=theirs.fileno(),
                            beat_s=0.1)  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine.job.executor"], stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
        theirs.close()
        with self.process.stdin as pipe:
            pipe.write(msgspec.json.encode(task) + b"\n")
        self.link, self.last = DriverLink(ours), None
        self.answers: dict[str, str] = {}

    def until(self, what: Callable[[Heartbeat], object], *, deadline_s: float = 120.0) -> None:
        end = time.monotonic() + deadline_s
        while self.last is None or not what(self.last):
            assert time.monotonic() < end, f"it never came: {self.last}"
            for data in self.link.messages() or []:
                self.last = decode_beat(data)
                self.answers |= self.last.answers

    def start(self, token: int, attempt: int) -> None:
        with listening_socket("127.0.0.1", 0) as meet:
            task = RankTask(folder=str(self.folder), world=1, host="127.0.0.1", attempt=attempt,
                            port=meet.getsockname()[1])  # fmt: skip
            order = Order(id=f"s{attempt}", token=token, op="start", ranks=(0,), task=task)
            self.link.tell(order, meet)


@pytest.fixture
def hand(tmp_path: Path):
    made = Hand(tmp_path)
    yield made
    made.link.close()
    made.process.kill()
    made.process.wait()


def test_a_node_s_life(hand: Hand):
    hand.start(5, 0)  # before its nursery is warm: it waits
    hand.until(lambda b: b.ranks and b.ranks[0].step >= 2)
    assert hand.last.state == "running"
    assert hand.last.attempt == 0
    hand.link.tell(Order(id="old", token=4, op="end"))
    hand.until(lambda b: "old" in hand.answers)
    assert "driver 5 is in charge" in hand.answers["old"]

    pid = hand.last.ranks[0].pid
    os.kill(pid, signal.SIGSTOP)
    hand.until(lambda b: b.ranks[0].health == "stopped")
    hand.link.tell(Order(id="d", token=5, op="dump"))
    hand.until(lambda b: "d" in hand.answers)
    assert "rank 0: no dump, state T" in hand.answers["d"]
    hand.link.tell(Order(id="k", token=5, op="signal", signal=signal.SIGKILL))
    hand.until(lambda b: b.ranks[0].code == -9)
    assert hand.last.state == "ready"

    warm = hand.last.warm_s
    hand.start(6, 1)
    hand.until(lambda b: b.attempt == 1 and b.ranks and b.ranks[0].step >= 1)
    assert hand.last.warm_s == warm, "the same nursery: nothing was imported again"
    pid, step = hand.last.ranks[0].pid, hand.last.ranks[0].step
    hand.start(6, 1)  # its driver lost the answer and sent it again
    hand.until(lambda b: b.ranks[0].step > step + 5)
    assert hand.last.ranks[0].pid == pid, "a second copy of an order is the same order"
    family = family_of(hand.process.pid)
    assert len(family) >= 3
    hand.link.close()
    assert hand.process.wait(timeout=60) is not None
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/fd").exists() and os.path.exists(f"/proc/{pid}/exe")
              for pid in family):  # fmt: skip
        assert time.monotonic() < end, "something outlives the executor"
        time.sleep(0.05)


def test_what_is_no_task_is_refused():
    ended = subprocess.run([sys.executable, "-m", "engine.job.executor"], input=b"{}\n",
                           capture_output=True, timeout=60, check=False)  # fmt: skip
    assert ended.returncode == 3
    assert b"not an executor's task" in ended.stderr
