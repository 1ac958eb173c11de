"""The socket at which ranks meet: free ports, taken ports, addresses that are not here."""

import socket

import pytest

from engine.comm.listen import listening_socket
from engine.errors import MissingError


def test_port_0_takes_a_free_one_that_can_be_reached():
    with listening_socket("127.0.0.1", 0) as made:
        port = made.getsockname()[1]
        assert port > 0
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_it_crosses_a_fork_but_not_by_accident():
    with listening_socket("127.0.0.1", 0) as made:
        assert made.get_inheritable()


def test_a_taken_port_is_named_with_its_remedy():
    with listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(MissingError) as caught:
            listening_socket("127.0.0.1", port)
    assert f"train.port = {port}" in caught.value.what
    assert "train.port = 0" in caught.value.remedy


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_foreign_address_is_a_fault_of_the_host_not_of_the_port(host):
    with pytest.raises(MissingError) as caught:
        listening_socket(host, 0)
    assert f"train.host = {host}" in caught.value.what
    assert "train.host" in caught.value.remedy


def test_a_port_can_be_taken_again_at_once():
    with listening_socket("127.0.0.1", 0) as made:
        port = made.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            made.accept()[0].close()  # leaves a connection in TIME_WAIT
    listening_socket("127.0.0.1", port).close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_addresses_work():
    try:
        made = listening_socket("::1", 0)
    except MissingError:
        pytest.skip("no IPv6 loopback here")
    with made:
        assert made.family == socket.AF_INET6
