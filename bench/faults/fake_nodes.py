"""Executors of thousands of nodes in one process: they speak as real ones do and train nothing.

`python -m bench.faults.fake_nodes RUN_FOLDER NODES RANKS STEP_S` joins the job of a run
folder and serves until its driver ends it. Commands come on standard input: `exit NODE` ends one
rank of a node with code 1, `silence NODE` lets the node say nothing any more, `hang NODE` stops one
rank, and all others wait.
"""

import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path

import msgspec

from engine.comm.resp import Client, parse_url
from engine.errors import MissingError
from engine.health.heartbeat import Counters, Health, Heartbeat, RankBeat, encode_beat
from engine.job.join import wait_for_join
from engine.job.keeper import Join
from engine.job.lease import beats_key, nodes_key, orders_key
from engine.job.order import Order, decode_order
from engine.train.metrics import StepMetrics

BEAT_S = 0.5
_BATCH = 256
_KEPT_BEATS = 20_000
_START_S = 1.0
"""From the order to start ranks to the beginning of their first step."""


class FakeNode:
    """What one executor would know."""

    def __init__(self, index: int) -> None:
        self.name = f"node-{index}"
        self.attempt, self.token, self.seq = -1, 0, 0
        self.ranks: tuple[int, ...] = ()
        self.codes: dict[int, int] = {}
        self.answers: dict[str, str] = {}
        self.is_silent = self.has_left = False
        self.hung = -1
        self.due = 0.0
        self.told = 0

    def beat(self, step: int, age_s: float, works: int, step_s: float) -> bytes:
        """Its next message; works: how many of the newest steps it has not told of."""
        self.seq += 1
        running = any(rank not in self.codes for rank in self.ranks)
        done = tuple((step - i, step_s, 0.8 * step_s) for i in range(works))
        beats = tuple(
            RankBeat(
                rank=rank, pid=1000 + rank, health=self._health(rank),
                step=step + 1, doing="step/wait", age_s=age_s,
                actions=self.seq if self.hung < 0 else 0, works=done, code=self.codes.get(rank),
            )
            for rank in self.ranks
        )  # fmt: skip
        answers, self.answers = self.answers, {}
        return encode_beat(
            Heartbeat(
                node=self.name, seq=self.seq, boot="fake", address=self.name, pid=1,
                attempt=self.attempt, token=self.token, state="running" if running else "ready",
                warm_s=1.0, wall_s=time.time(), ranks=beats, answers=answers,
                counters=Counters(load=9.5, memory_free_bytes=1 << 40, received_bytes=self.seq,
                                  sent_bytes=self.seq, gpus=len(self.ranks)),
            )
        )  # fmt: skip

    def _health(self, rank: int) -> Health:
        if rank in self.codes:
            return "ended"
        return "stopped" if rank == self.hung else "runs"

    def obey(self, order: Order) -> None:
        """Carry an order out, at once."""
        self.token = order.token
        if order.op == "end":
            self.has_left = True
        elif order.op == "start":
            assert order.task is not None, "a start has a task"
            self.attempt, self.ranks, self.codes = order.task.attempt, order.ranks, {}
            self.hung, self.told = -1, 0
        elif order.op == "signal" and order.signal in (signal.SIGKILL, signal.SIGTERM):
            code = -9 if order.signal == signal.SIGKILL else 0
            self.codes = {rank: self.codes.get(rank, code) for rank in self.ranks}
        elif order.op == "check":
            self.answers[order.id] = "fit"
        else:
            self.answers[order.id] = "done"
        self.due = 0.0


class FakeNodes:
    """All of them, their steps, and their way to Redis."""

    def __init__(self, folder: Path, count: int, world: int, step_s: float) -> None:
        self.folder, self.world, self.step_s = folder, world, step_s
        self.nodes = {f"node-{i}": FakeNode(i) for i in range(count)}
        self.join: Join = wait_for_join(folder, 60.0)
        self.step, self._began, self._attempt = 0, 0.0, -1
        self._orders: deque[tuple[FakeNode, Order]] = deque()
        for at, node in enumerate(self.nodes.values()):  # as real ones: not all at once
            node.due = time.monotonic() + BEAT_S * at / count
        threading.stack_size(1 << 18)
        for node in self.nodes.values():
            threading.Thread(target=self._listen, args=(node,), daemon=True).start()
        threading.Thread(target=self._hear_commands, daemon=True).start()

    def serve(self) -> None:
        """Beat and step until all were told to end."""
        client = Client(parse_url(self.join.redis), io_s=10.0, patience_s=60.0)
        while not all(node.has_left for node in self.nodes.values() if not node.is_silent):
            while self._orders:
                node, order = self._orders.popleft()
                node.obey(order)
            self._advance()
            now = time.monotonic()
            due = [n for n in self.nodes.values() if now >= n.due and not n.is_silent]
            commands = []
            for node in [n for n in due if not n.has_left][:_BATCH]:
                node.due = max(node.due + BEAT_S, now)
                works = min(self.step - node.told, 8) if node.attempt == self._attempt else 0
                node.told = self.step
                age_s = max(0.0, now - self._began) if self._began else 0.0
                data = node.beat(self.step, age_s, max(0, works), self.step_s)
                key = beats_key(self.join.job)
                commands += [("XADD", key, "MAXLEN", "~", _KEPT_BEATS, "*", "b", data),
                             ("HSET", nodes_key(self.join.job), node.name, data)]  # fmt: skip
            try:
                if commands:
                    client.call(*commands)
                else:
                    time.sleep(0.002)
            except MissingError:
                return  # the job is over, and so is its Redis

    def _advance(self) -> None:
        """A step ends when its time is over and nobody is dead, hung or silent."""
        newest = max(node.attempt for node in self.nodes.values())
        mine = [n for n in self.nodes.values() if n.attempt == newest]
        if newest < 0 or sum(len(n.ranks) for n in mine) < self.world:
            return  # not all have heard of it
        now = time.monotonic()
        if newest != self._attempt:
            self._attempt, self._began = newest, now + _START_S
            for node in mine:
                node.told = self.step
        stuck = any(n.codes or n.hung >= 0 or n.is_silent for n in mine)
        if not stuck and now - self._began >= self.step_s:
            self.step += 1
            self._began = now
            line = StepMetrics(
                step=self.step, loss=2.0, grad_norm=1.0, lr=1e-4, tokens=self.step, mfu=0.5,
                tokens_per_s=1.0, step_s=self.step_s, memory_bytes=0,
            )  # fmt: skip
            with (self.folder / "metrics.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")

    def _listen(self, node: FakeNode) -> None:
        """Orders of one node, as its executor waits for them."""
        client = Client(parse_url(self.join.redis), io_s=10.0, patience_s=60.0)
        key = orders_key(self.join.job, node.name)
        while not node.has_left:
            try:
                reply = client.call(("BLPOP", key, 2.0), block_s=2.0)[0]
            except MissingError:
                return
            if isinstance(reply, list) and isinstance(reply[1], bytes):
                self._orders.append((node, decode_order(reply[1])))

    def _hear_commands(self) -> None:
        for line in sys.stdin:
            word, name = line.split()
            node = self.nodes[name]
            if word == "exit":
                node.codes[node.ranks[0]] = 1
            elif word == "silence":
                node.is_silent = True
            else:
                for other in self.nodes.values():
                    other.hung = node.ranks[3]
            node.due = 0.0
            print(f"{time.time():.3f} {word} {name}", flush=True)


def main() -> None:
    """See the module's docstring."""
    folder, count, world, step_s = sys.argv[1:]
    FakeNodes(Path(folder), int(count), int(world), float(step_s)).serve()


if __name__ == "__main__":
    main()
