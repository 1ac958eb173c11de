"""Never two drivers in charge: the lease, its token, and that an old driver can do nothing."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.resp import Client, parse_url
from engine.job.lease import Lease, NotInCharge, orders_key
from engine.job.order import Order
from tests.engine.job.redis import client, server

pytestmark = pytest.mark.multi
__all__ = ["client", "server"]

SHORT_S = 0.2


def order(token: int, number: str = "1") -> Order:
    return Order(id=number, token=token, op="check")


def test_a_second_driver_is_refused_while_the_first_lives(client: Client):
    first, second = Lease(client, "j"), Lease(client, "j")
    assert first.take() == 1
    with pytest.raises(NotInCharge, match="alive"):
        second.take()
    first.give_back()
    assert second.take() == 2


def test_a_dead_driver_s_lease_ends_and_its_orders_are_refused_from_then_on(client: Client):
    old, new = Lease(client, "j", length_s=SHORT_S), Lease(client, "j")
    old.take()
    begin = time.monotonic()
    assert new.take(within_s=5.0) == 2
    assert time.monotonic() - begin >= SHORT_S / 2
    with pytest.raises(NotInCharge, match="token 1 is old"):
        old.tell([("n", order(1))])
    with pytest.raises(NotInCharge):
        old.renew()
    new.tell([("n", order(2))])
    waiting = client.call(("LRANGE", orders_key("j", "n"), 0, -1))[0]
    assert [msgspec.json.decode(data, type=Order).token for data in waiting] == [2]
    old.give_back()
    new.renew()


def test_a_driver_that_slept_goes_on_if_nobody_took_its_place(client: Client):
    lease = Lease(client, "j", length_s=SHORT_S)
    lease.take()
    time.sleep(2 * SHORT_S)
    lease.tell([("n", order(1))])
    with pytest.raises(NotInCharge):
        Lease(client, "j").take()


def test_orders_to_many_nodes_are_one_message_and_all_arrive_after_the_lease_ended(client: Client):
    lease = Lease(client, "j", length_s=SHORT_S)
    lease.take()
    calls = client.calls
    lease.tell([(f"n{i}", order(1, str(i))) for i in range(300)])
    assert client.calls == calls + 1
    time.sleep(2 * SHORT_S)
    lease.tell([(f"n{i}", order(1, str(i + 300))) for i in range(300)])
    for i in (0, 150, 299):
        waiting = client.call(("LRANGE", orders_key("j", f"n{i}"), 0, -1))[0]
        assert isinstance(waiting, list)
        ids = [msgspec.json.decode(data, type=Order).id for data in waiting]  # type: ignore[type-var]
        assert ids == [str(i), str(i + 300)]


def test_two_threads_of_one_driver_do_not_take_each_other_for_another_driver(
    server: EmbeddedRedis, client: Client
):
    lease = Lease(client, "j")
    lease.take()
    clients = [Client(parse_url(server.url), patience_s=5.0) for _ in range(2)]
    both = [Lease(one, "j") for one in clients]
    with ThreadPoolExecutor(2) as pool:
        for one in both:
            one.token = lease.token
        for _ in range(300):
            client.call(("DEL", "j:lease"))  # it slept and its lease ended
            list(pool.map(Lease.renew, both))
    for one in clients:
        one.close()


def test_a_server_that_lost_everything_gives_the_lease_back_to_its_holder(client: Client):
    lease = Lease(client, "j")
    lease.take()
    client.call(("FLUSHALL",))
    lease.renew()
    with pytest.raises(NotInCharge):
        Lease(client, "j").take()


def test_a_restarted_server_still_knows_who_is_in_charge(server: EmbeddedRedis, client: Client):
    lease = Lease(client, "j")
    lease.take()
    os.kill(server.pid, signal.SIGKILL)
    while server.is_alive:
        time.sleep(0.01)
    server.restart()
    with pytest.raises(NotInCharge):
        Lease(client, "j").take()
    lease.renew()
