"""What GPUs hang on, one value at a time: links, PCIe, clocks, heat, power, fabric."""

import pytest

from engine.errors import MissingError
from engine.health import gpu_links
from engine.health.gpu_links import HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE, SW_THERMAL
from tests.engine.health.machines import brief, look_at


def one(gpu, kind="h100", before=None, **more):
    """A machine of which GPU 3 has other values, and counters of an hour ago."""
    change = {"gpus": {"3": gpu}} | ({} if before is None else {"before": before})
    return look_at(kind, change, **more)


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ({"links": "1" * 18}, []),
        ({"links": "1" * 5 + "0" + "1" * 12}, [("gpu3", "fail", "reset")]),
        ({"links": "1" * 17}, [("gpu3", "fail", "reboot")]),
        ({"links": "1" * 19}, []),
        ({"links": ""}, [("gpu3", "fail", "reboot")]),
        ({"links": None}, [("gpu3", "fail", "reboot")]),
    ],
)
def test_every_link_is_there_and_up(gpu, found):
    assert brief(gpu_links.nvlink(one(gpu))) == found


def test_links_that_are_down_are_counted_and_named():
    (down,) = gpu_links.nvlink(one({"links": "011111111111111110"}))
    assert "NVLink 0, 17 down" in down.message
    assert (down.measured, down.expected) == (16, 18)


def test_links_are_judged_where_there_are_some():
    with pytest.raises(MissingError):
        gpu_links.nvlink(look_at("l40s"))
    assert brief(gpu_links.nvlink(look_at("l40s", profile={"nvlinks": 1}))) == [
        (f"gpu{i}", "fail", "reboot") for i in range(4)
    ]


@pytest.mark.parametrize(
    ("now", "before", "tolerated", "found"),
    [
        (5, 5, 0, []),
        (6, 5, 0, [("gpu3", "warn", "watch")]),
        (8, 5, 3, []),
        (9, 5, 3, [("gpu3", "warn", "watch")]),
        (5, 6, 0, []),
        (500, None, 0, []),
    ],
)
def test_errors_of_a_link_count_by_their_growth(now, before, tolerated, found):
    counters = {} if before is None else {"gpu3/nvlink2": before}
    gpu = {"link_errors": (0, 0, now, *(0,) * 15)}
    results = gpu_links.nvlink(one(gpu, before=counters, profile={"nvlink_errors": tolerated}))
    assert brief(results) == found
    assert not found or results[0].measured == now - before


@pytest.mark.parametrize(
    ("gpu", "profile", "found"),
    [
        ({"pcie_width": 8}, {}, [("gpu3", "fail", "evict")]),
        ({"pcie_width": 8, "pcie_width_max": 8}, {}, [("gpu3", "fail", "evict")]),
        ({"pcie_width": 8, "pcie_width_max": 8}, {"pcie_width": 0}, []),
        ({"pcie_width": 8, "pcie_width_max": None}, {"pcie_width": 0}, []),
        ({"pcie_width": 15}, {"pcie_width": 0}, [("gpu3", "fail", "evict")]),
        ({"pcie_width": None}, {}, []),
        ({"pcie_gen_max": 4, "pcie_gen": 4}, {}, [("gpu3", "fail", "fix")]),
        ({"pcie_gen_max": 4, "pcie_gen": 4}, {"pcie_gen": 4}, []),
        ({"pcie_gen_max": 4, "pcie_gen": 4}, {"pcie_gen": 0}, []),
        ({"pcie_gen_max": None}, {}, []),
        ({"pcie_gen": 1, "pstate": 8, "utilization": 50}, {}, []),
        ({"pcie_gen": 1, "pstate": 0, "utilization": 0}, {}, []),
        ({"pcie_gen": 1, "pstate": 0, "utilization": None}, {}, []),
        ({"pcie_gen": 4, "pstate": 0, "utilization": 1}, {}, [("gpu3", "warn", "watch")]),
        ({"pcie_gen": None, "pstate": 0, "utilization": 1}, {}, []),
        ({"pcie_gen": 5, "pstate": 0, "utilization": 99}, {}, []),
    ],
)
def test_pcie_has_its_width_and_under_load_its_speed(gpu, profile, found):
    assert brief(gpu_links.pcie(one(gpu, profile=profile))) == found


@pytest.mark.parametrize(
    ("replays", "found"),
    [(30, []), (31, [("gpu3", "warn", "watch")]), (None, [])],
)
def test_replays_count_by_the_hour(replays, found):
    results = gpu_links.pcie(one({"pcie_replays": replays}, before={"gpu3/replays": 0}))
    assert brief(results) == found
    half = one({"pcie_replays": 16}, before={"gpu3/replays": 0}, uptime_s=500_000.0 - 1800)
    assert brief(gpu_links.pcie(half)) == [("gpu3", "warn", "watch")]  # 16 in half an hour
    assert gpu_links.pcie(half)[0].measured == pytest.approx(32)


@pytest.mark.parametrize(
    ("bits", "found"),
    [
        (0, []),
        (0x1 | 0x2 | 0x4 | 0x10 | 0x100, []),  # idle, application clocks, power cap, sync, display
        (HW_SLOWDOWN, [("gpu3", "fail", "evict")]),
        (SW_THERMAL, [("gpu3", "warn", "watch")]),
        (HW_THERMAL, [("gpu3", "fail", "evict")]),
        (POWER_BRAKE, [("gpu3", "fail", "evict")]),
        (None, []),
    ],
)
def test_what_holds_the_clocks_down(bits, found):
    assert brief(gpu_links.clocks(one({"throttle": bits}))) == found


def test_of_several_causes_the_first_to_be_fixed_is_named():
    def named(bits):
        (result,) = gpu_links.clocks(one({"throttle": bits}))
        return result.message

    assert "power supply" in named(POWER_BRAKE | HW_THERMAL | HW_SLOWDOWN | SW_THERMAL)
    assert "for heat" in named(HW_THERMAL | HW_SLOWDOWN)
    assert named(HW_SLOWDOWN | SW_THERMAL) == "hardware slowed it down"
    assert gpu_links.clocks(one({"throttle": 0x88}))[0].measured == "0x88"


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ({"temperature": 94}, [("gpu3", "warn", "watch")]),
        ({"temperature": 95}, [("gpu3", "fail", "evict")]),
        ({"temperature": 59}, []),  # its equals have 34
        ({"temperature": 60}, [("gpu3", "warn", "watch")]),
        ({"temperature": 199, "temperature_slowdown": None}, [("gpu3", "warn", "watch")]),
        ({"temperature": None}, []),
        ({"temperature": 0}, []),
    ],
)
def test_heat_against_the_gpus_limit_and_its_equals(gpu, found):
    assert brief(gpu_links.temperature(one(gpu))) == found


def test_three_gpus_are_too_few_to_compare():
    hot = {"gpus": {"0": {"temperature": 80}, "3": {"temperature": None}}}
    assert brief(gpu_links.temperature(look_at("l40s", hot))) == []
    four = {"gpus": {"0": {"temperature": 80}}}
    assert brief(gpu_links.temperature(look_at("l40s", four))) == [("gpu0", "warn", "watch")]


@pytest.mark.parametrize(
    ("gpu", "profile", "found"),
    [
        ({"power_limit": 699.0}, {}, []),
        ({"power_limit": 698.9}, {}, [("gpu3", "warn", "fix")]),
        ({"power_limit": 600.0, "power_default": 600.0}, {}, [("gpu3", "warn", "fix")]),
        ({"power_limit": 600.0, "power_default": 600.0}, {"power_w": 0}, []),
        ({"power_limit": 600.0, "power_default": 700.0}, {"power_w": 0}, [("gpu3", "warn", "fix")]),
        ({"power_limit": 600.0, "power_default": None}, {"power_w": 0}, []),
        ({"power_limit": None}, {}, []),
    ],
)
def test_power_caps(gpu, profile, found):
    results = gpu_links.power(one(gpu, profile=profile))
    assert brief(results) == found
    assert not found or "nvidia-smi -i 3 -pl 700" in results[0].remedy


MANAGER = "systemctl is-active nvidia-fabricmanager"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"commands": {MANAGER: "activating\n"}}, []),
        ({"commands": {MANAGER: "inactive\n"}}, [("node", "fail", "fix")]),
        ({"commands": {MANAGER: {"code": 3, "out": "failed\n"}}}, [("node", "fail", "fix")]),
        ({"gpus": {"3": {"fabric": 1}}}, [("gpu3", "fail", "reset")]),
        ({"gpus": {"3": {"fabric": 2}}}, [("gpu3", "fail", "reset")]),
        ({"gpus": {"3": {"fabric": 3, "fabric_status": 9}}}, [("gpu3", "fail", "reset")]),
        ({"gpus": {"3": {"fabric": 3, "fabric_status": None}}}, []),
        ({"gpus": {"3": {"fabric": 0, "fabric_status": 9}}}, []),
        ({"gpus": {"3": {"fabric": None}}}, []),
        ({"commands": {MANAGER: "failed"}, "gpus": {"3": {"fabric": 2}}},
         [("node", "fail", "fix"), ("gpu3", "fail", "reset")]),
    ],
)  # fmt: skip
def test_the_fabric_is_complete(change, found):
    assert brief(gpu_links.fabric(look_at("h100", change))) == found


def test_a_fabric_is_asked_for_by_profile_or_by_its_bridges():
    with pytest.raises(MissingError, match="no NVSwitch"):
        gpu_links.fabric(look_at("l40s"))
    bridge = "/sys/bus/pci/devices/0000:85:00.0"
    files = {f"{bridge}/class": "0x068000", f"{bridge}/vendor": "0x10de"}
    down = {"files": files, "gpus": {"2": {"fabric": 1}}}
    assert brief(gpu_links.fabric(look_at("l40s", down))) == [("gpu2", "fail", "reset")]


def test_counters_of_this_look_are_those_the_next_one_asks_for():
    gpu = {"pcie_replays": 7, "link_errors": (1, 2)}
    found = gpu_links.counters(one(gpu))
    assert (found["gpu3/replays"], found["gpu3/nvlink0"], found["gpu3/nvlink1"]) == (7, 1, 2)
    assert "gpu3/nvlink2" not in found
    assert found["gpu0/nvlink17"] == 0
    silent = gpu_links.counters(one({"pcie_replays": None, "link_errors": None}))
    assert not [key for key in silent if key.startswith("gpu3/")]
    assert "gpu3/replays" not in gpu_links.counters(one({"error": "GPU is lost"}))
    assert gpu_links.counters(look_at("cpu")) == {}
