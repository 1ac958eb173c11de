"""Beats and orders through a real Redis, also while it dies and comes back."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.resp import Client
from engine.health.heartbeat import Heartbeat, decode_beat
from engine.job import link_redis
from engine.job.keeper import Join, write_join
from engine.job.lease import Lease, NotInCharge, beats_key, orders_key
from engine.job.link_redis import BeatHub, RedisExecutorLink, RedisNodeLink
from engine.job.order import ExecutorTask, Order
from tests.engine.job.redis import client, server

pytestmark = pytest.mark.multi
__all__ = ["client", "server"]


def wait_until(what: Callable[[], object], *, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


class Both:
    """A hub, and the executor's end of one node."""

    def __init__(self, server: EmbeddedRedis, client: Client, folder: Path) -> None:
        self.lease = Lease(client, "j")
        self.lease.take()
        self.hub = BeatHub(server.url, "j", self.lease)
        self.executor = RedisExecutorLink(
            ExecutorTask(
                node="n1", folder=str(folder), slots=1, redis=server.url, job="j", orphan_s=0.5
            )
        )
        self.node = RedisNodeLink(self.hub, "n1")
        self.got: list[int] = []

    def heard(self) -> list[int]:
        self.got += [decode_beat(data).seq for data in self.node.messages() or []]
        return self.got

    def orders(self) -> list[str]:
        return [order.id for order, _ in self.executor.orders() or []]

    def beat_until_heard(self, seq: int) -> None:
        def again() -> bool:
            self.executor.beat(Heartbeat(node="n1", seq=seq))
            return seq in self.heard()

        wait_until(again)


@pytest.fixture
def both(server: EmbeddedRedis, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link_redis, "_LOOK_S", 0.05)
    made = Both(server, client, tmp_path)
    yield made
    made.executor.close()
    made.hub.close()


def test_beats_and_orders_arrive(both: Both):
    both.beat_until_heard(1)
    assert both.hub.names() == ["n1"]
    for number in range(3):
        both.node.tell(Order(id=str(number), token=1, op="check"))
    found: list[str] = []
    wait_until(lambda: found.extend(both.orders()) or len(found) == 3)
    assert found == ["0", "1", "2"]


def test_orders_given_together_go_out_at_the_end_in_their_order(both: Both):
    calls = both.lease._client.calls
    with both.hub.together():
        for number in range(200):
            both.node.tell(Order(id=str(number), token=1, op="check"))
        assert both.orders() == []
    assert both.lease._client.calls - calls < 10
    found: list[str] = []
    wait_until(lambda: found.extend(both.orders()) or len(found) == 200)
    assert found == [str(number) for number in range(200)]


def test_nonsense_in_the_stream_or_the_queue_does_no_harm(both: Both, client: Client):
    both.beat_until_heard(1)
    for data in (b"", b"\xff", b"[" * 9000, b'{"node":5}', b'{"node":"n1"}'):
        client.call(("XADD", beats_key("j"), "*", "b", data))
        client.call(("RPUSH", orders_key("j", "n1"), data))
    both.node.tell(Order(id="good", token=1, op="check"))
    wait_until(lambda: both.orders() == ["good"])
    wait_until(lambda: b'{"node":"n1"}' in (both.node.messages() or []))


def test_a_server_that_dies_and_comes_back_loses_no_answer_and_no_order(
    both: Both, server: EmbeddedRedis
):
    both.beat_until_heard(1)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not server.is_alive)
    both.executor.beat(Heartbeat(node="n1", seq=2, answers={"1.1": "fit"}))
    both.executor.beat(Heartbeat(node="n1", seq=3))
    both.node.tell(Order(id="late", token=1, op="check"))
    wait_until(lambda: both.hub.is_down)
    server.restart()
    wait_until(lambda: "late" in both.orders())
    beats: list[Heartbeat] = []
    wait_until(
        lambda: (
            beats.extend(decode_beat(d) for d in both.node.messages() or [])
            or any(b.answers == {"1.1": "fit"} for b in beats)
            or both.executor.beat(Heartbeat(node="n1", seq=4))
        )
    )
    wait_until(lambda: not both.hub.is_down)


def test_a_driver_that_was_replaced_can_tell_nobody_anything(both: Both, client: Client):
    client.call(("DEL", "j:lease"))
    Lease(client, "j").take()
    with pytest.raises(NotInCharge):
        both.node.tell(Order(id="x", token=1, op="end"))
    assert both.orders() == []


def test_an_executor_without_work_and_without_a_driver_ends(both: Both):
    def ended() -> bool:
        both.executor.beat(Heartbeat(node="n1", seq=1, state="ready"))
        return both.executor.orders() is None

    wait_until(ended)


def test_a_job_that_was_started_anew_elsewhere_ends_its_old_executors(
    both: Both, server: EmbeddedRedis, tmp_path: Path
):
    both.beat_until_heard(1)

    def is_over() -> bool:
        both.executor.beat(Heartbeat(node="n1", seq=2, state="running"))
        return both.executor.orders() is None

    write_join(tmp_path, Join(redis=server.url, job="j"))
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert not is_over()
        time.sleep(0.01)
    write_join(tmp_path, Join(redis="redis://10.0.0.9:6400/0", job="j"))
    wait_until(is_over)
