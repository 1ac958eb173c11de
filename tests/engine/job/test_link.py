"""Driver and executor over a socket pair: lines arrive whole, sockets arrive with their order."""

import os
import socket

from engine.comm.listen import listening_socket
from engine.health.heartbeat import MAX_BYTES, Heartbeat, decode_beat
from engine.job.link import DriverLink, ExecutorLink, Lines
from engine.job.order import Order


def pair() -> tuple[DriverLink, ExecutorLink]:
    ours, theirs = socket.socketpair()
    return DriverLink(ours), ExecutorLink(theirs)


def test_lines_are_put_together_and_a_flood_without_an_end_is_dropped():
    lines = Lines()
    assert lines.feed(b"ab") == []
    assert lines.feed(b"c\nd\n") == [b"abc", b"d"]
    assert lines.feed(b"x" * (MAX_BYTES + 1)) == []
    assert lines.feed(b"y\nz\n") == [b"y", b"z"]


def test_a_beat_and_an_order_arrive():
    driver, executor = pair()
    executor.beat(Heartbeat(node="a", seq=1))
    (data,) = driver.messages()
    assert decode_beat(data).node == "a"
    driver.tell(Order(id="1", token=1, op="check"))
    ((order, fd),) = list(executor.orders())
    assert (order.op, fd) == ("check", -1)


def test_the_listening_socket_comes_with_the_start_of_rank_0():
    driver, executor = pair()
    with listening_socket("127.0.0.1", 0) as meet:
        driver.tell(Order(id="1", token=1, op="signal"))
        driver.tell(Order(id="2", token=1, op="start", ranks=(0, 1)), meet)
        got = []
        while len(got) < 2:
            got += list(executor.orders())
        assert got[0][1] == -1
        with socket.socket(fileno=got[1][1]) as same:
            assert same.getsockname() == meet.getsockname()


def test_a_driver_or_executor_that_is_gone_is_noticed():
    driver, executor = pair()
    driver.close()
    assert executor.orders() is None
    executor.beat(Heartbeat(node="a", seq=2))  # into the void
    driver, executor = pair()
    os.close(os.dup(executor.fileno()))
    executor._control.close()
    assert driver.messages() is None
    driver.tell(Order(id="3", token=1, op="end"))
