"""Counters from a recorded /proc and /sys, and from this machine."""

from pathlib import Path

from engine.health.heartbeat_counters import CounterReader, memory_free, network_bytes

NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0
  eth0: 1000 9 0 0 0 0 0 0 2000 8 0 0 0 0 0 0
  eth1:  500 9 0 0 0 0 0 0 700 8 0 0 0 0 0 0
  bad0: x y
"""


def test_cards_are_summed_loopback_left_out_and_rdma_counted_in_words(tmp_path: Path):
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/dev").write_text(NET)
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    port.mkdir(parents=True)
    (port / "port_rcv_data").write_text("10\n")
    (port / "port_xmit_data").write_text("nonsense\n")
    assert network_bytes(tmp_path) == (1540, 2700)


def test_memory_is_what_programs_can_still_have(tmp_path: Path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  4 kB\n")
    assert memory_free(tmp_path) == 4096


def test_a_machine_that_says_nothing_gives_zeros(tmp_path: Path):
    counters = CounterReader(tmp_path).read()
    assert (counters.received_bytes, counters.memory_free_bytes, counters.gpus) == (0, 0, 0)
    assert counters.gpu_temperature is None


def test_this_machine_has_memory():
    assert CounterReader(gpus=False).read().memory_free_bytes > 0
