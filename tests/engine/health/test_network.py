"""RDMA ports and cards, one value at a time: state, rate, growth of counters, firmware."""

import pytest

from engine.errors import MissingError
from engine.health import network
from engine.health.network import Port
from tests.engine.health.machines import brief, look_at

ROOT = "/sys/class/infiniband"
DOWNED = "mlx5_3/1/link_downed"


def one(values, kind="h100", before=None, flaps=None, **more):
    """A machine of which card mlx5_3 has other values, and counters of an hour ago."""
    change = {"rnics": {"mlx5_3": values}, "flaps_s": flaps or {}}
    return look_at(kind, change | ({} if before is None else {"before": before}), **more)


def test_ports_are_what_the_kernel_lists():
    found = network.ports(one({"state": "1: DOWN", "rate": "nonsense", "link_layer": None}))
    assert len(found) == 8
    port = found[3]
    assert port == Port("mlx5_3", "1", "DOWN", "LinkUp", 0.0, "")
    assert (port.name, port.folder) == ("mlx5_3/1", f"{ROOT}/mlx5_3/ports/1")
    assert found[0] == Port("mlx5_0", "1", "ACTIVE", "LinkUp", 400.0, "InfiniBand")


def test_a_machine_without_cards_is_judged_by_what_it_should_have():
    for check in (network.ports, network.state, network.card, network.mtu):
        with pytest.raises(MissingError, match="no RDMA network card"):
            check(look_at("cpu"))
    assert network.counters(look_at("cpu")) == {}
    assert brief(network.state(look_at("cpu", profile={"rnics": 1}))) == [
        ("node", "fail", "reboot")
    ]


def test_training_runs_over_the_fast_ports():
    def named(profile):
        return [p.device for p in network.used(one({"rate": "100 Gb/sec"}, profile=profile))]

    assert named({}) == [f"mlx5_{i}" for i in range(8) if i != 3]
    assert len(named({"rnic_gbps": 0})) == 8
    assert len(named({"rnic_gbps": 401})) == 8  # none is fast: all count
    assert len(named({"rnic_gbps": 100})) == 8


@pytest.mark.parametrize(
    ("values", "profile", "found"),
    [
        ({}, {}, []),
        ({"state": "1: DOWN"}, {}, [("mlx5_3/1", "fail", "evict")]),
        ({"state": "2: INIT"}, {}, [("mlx5_3/1", "fail", "evict")]),
        ({"state": None}, {}, [("mlx5_3/1", "fail", "evict")]),
        ({"state": "ACTIVE"}, {}, [("mlx5_3/1", "fail", "evict")]),
        ({"phys_state": "2: Polling"}, {}, [("mlx5_3/1", "fail", "evict")]),
        ({"phys_state": None}, {}, []),
        ({"rate": "399.9 Gb/sec"}, {}, [("mlx5_3/1", "fail", "evict")]),
        ({"rate": "800 Gb/sec"}, {}, []),
        ({"rate": "100 Gb/sec"}, {"rnics": 7}, []),  # more cards than train: a slow one may be
        ({"rate": "100 Gb/sec"}, {"rnics": 9},
         [("node", "fail", "reboot"), ("mlx5_3/1", "fail", "evict")]),
        ({"link_layer": "Ethernet"}, {"link_layer": "InfiniBand"}, [("mlx5_3/1", "fail", "fix")]),
        ({"link_layer": "Ethernet"}, {}, []),
        ({"state": "1: DOWN", "rate": "10 Gb/sec"}, {}, [("mlx5_3/1", "fail", "evict")]),
    ],
)  # fmt: skip
def test_ports_are_up_at_their_rate(values, profile, found):
    assert brief(network.state(one(values, profile=profile))) == found


def test_a_card_that_is_gone_is_missed():
    (result,) = network.state(look_at("h100", {"rnics_gone": ["mlx5_3"]}))
    assert (result.target, result.measured, result.expected) == ("node", 7, 8)


def test_one_slow_card_of_one_is_slow():
    slow = look_at("l40s", {"rnics_gone": ["mlx5_1"]}, profile={"rnics": 0, "rnic_gbps": 201})
    assert brief(network.state(slow)) == [("mlx5_0/1", "fail", "evict")]


@pytest.mark.parametrize(
    ("downed", "flaps", "found"),
    [
        (5, {}, []),
        (4, {}, []),
        (6, {}, [("mlx5_3/1", "warn", "watch")]),
        (7, {}, [("mlx5_3/1", "fail", "evict")]),
        (6, {"mlx5_3/1": [500_000.0 - 300]}, [("mlx5_3/1", "fail", "evict")]),
        (6, {"mlx5_3/1": [500_000.0 - 301]}, [("mlx5_3/1", "warn", "watch")]),
        (6, {"mlx5_2/1": [500_000.0 - 1]}, [("mlx5_3/1", "warn", "watch")]),
        (5, {"mlx5_3/1": [500_000.0 - 1]}, []),
    ],
)
def test_a_link_that_flaps(downed, flaps, found):
    look = one({"counters/link_downed": str(downed)}, before={DOWNED: 5}, flaps=flaps)
    assert brief(network.errors(look)) == found


@pytest.mark.parametrize("name", network._ERRORS)
def test_errors_of_a_port_count_by_the_hour(name):
    def found(now, uptime_s=500_000.0):
        values = {f"hw_counters/{name}": str(now), f"counters/{name}": None}
        before = {f"mlx5_3/1/{name}": 100}
        return network.errors(one(values, before=before, uptime_s=uptime_s))

    assert brief(found(112)) == []
    assert brief(found(113)) == [("mlx5_3/1", "warn", "watch")]
    assert found(113)[0].message.startswith(f"{name} grew by 13")
    assert brief(found(107, 500_000.0 - 1800)) == [("mlx5_3/1", "warn", "watch")]
    assert brief(found(99)) == []


def test_one_finding_a_port_is_enough():
    values = {"counters/link_downed": "9", "counters/symbol_error": "99999",
              "counters/port_rcv_errors": "99999"}  # fmt: skip
    before = {DOWNED: 0, "mlx5_3/1/symbol_error": 0, "mlx5_3/1/port_rcv_errors": 0}
    assert len(brief(network.errors(one(values, before=before)))) == 1
    del before[DOWNED]
    assert len(brief(network.errors(one(values, before=before)))) == 1


def test_a_first_look_has_nothing_to_compare_with():
    with pytest.raises(MissingError, match="first look"):
        network.errors(look_at("h100"))


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({"counters/x": "7", "hw_counters/x": "9"}, 7),
        ({"hw_counters/x": "9"}, 9),
        ({"counters/x": "-1", "hw_counters/x": "9"}, 9),
        ({"counters/x": "many"}, 0),
        ({"counters/x": "1e999"}, 0),
        ({"counters/x": "18446744073709551615"}, 2**64),  # the nearest double
        ({}, 0),
    ],
)
def test_a_counter_is_where_the_card_keeps_it(values, count):
    look = one(values)
    assert network.counter(look, network.ports(look)[3], "x") == count


def test_counters_of_this_look_are_those_the_next_one_asks_for():
    found = network.counters(one({"counters/link_downed": "4"}))
    assert found[DOWNED] == 4
    assert found["mlx5_0/1/out_of_sequence"] == 10
    assert len(found) == 8 * (1 + len(network._ERRORS))


def ibv(mtu):
    return {"ibv_devinfo -d mlx5_3 -i 1": f"\t\tmax_mtu:\t9 (5)\n\t\tactive_mtu:\t\t{mtu} (3)\n"}


@pytest.mark.parametrize(
    ("mtu", "profile", "found"),
    [
        (4096, {}, []),
        (1024, {}, [("mlx5_3/1", "warn", "fix")]),
        (1024, {"mtu": 1024}, []),
        (8192, {"mtu": 4096}, []),
        (8192, {}, [(f"mlx5_{i}/1", "warn", "fix") for i in range(8) if i != 3]),
        ("none", {}, []),
    ],
)
def test_the_mtu_is_the_same_everywhere(mtu, profile, found):
    look = look_at("h100", {"commands": ibv(mtu)}, profile=profile)
    assert brief(network.mtu(look)) == found


def test_without_the_tool_the_interface_tells_its_mtu():
    silent = {f"ibv_devinfo -d mlx5_{i} -i 1": {"code": 1, "out": ""} for i in range(8)}
    net = {f"/sys/class/net/rdma{i}/mtu": "9000" for i in range(8)}
    roce = {"commands": silent, "files": net | {"/sys/class/net/rdma3/mtu": "1500"}}
    assert brief(network.mtu(look_at("h100-roce", roce))) == [("mlx5_3/1", "warn", "fix")]
    with pytest.raises(MissingError, match="no port tells its MTU"):
        network.mtu(look_at("h100", {"commands": silent}))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"device/current_link_width": "8"}, [("mlx5_3", "fail", "evict")]),
        ({"device/current_link_speed": "16.0 GT/s PCIe"}, [("mlx5_3", "fail", "fix")]),
        ({"device/current_link_width": "8", "device/current_link_speed": "16.0 GT/s PCIe"},
         [("mlx5_3", "fail", "evict")]),
        ({"device/current_link_width": "Unknown"}, []),
        ({"device/current_link_width": "0"}, []),
        ({"device/max_link_width": None, "device/max_link_speed": None}, []),
        ({"fw_ver": "28.39.1002"}, [("mlx5_3", "warn", "fix")]),
        ({"fw_ver": "28.39.2048\n"}, []),
        ({"board_id": "MT_1"}, [("mlx5_3", "warn", "fix")]),
    ],
)  # fmt: skip
def test_cards_are_alike_and_have_their_lanes(values, found):
    assert brief(network.card(one(values))) == found


def test_cards_that_do_not_train_are_not_compared():
    assert brief(network.card(one({"rate": "10 Gb/sec", "fw_ver": "1"}))) == []
    (result,) = network.card(one({"fw_ver": "1"}))
    assert "28.39.2048 on 7" in result.message
    assert "1 on 1" in result.message


def test_devices_are_near_a_memory_node():
    files = {"/sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n"}
    look = look_at("cpu", {"files": files})
    assert network.near(look, "00000000:3B:00.0") == "1"
    assert network.near(look, "0000:99:00.0") == ""
