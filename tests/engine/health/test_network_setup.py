"""How RDMA is set up: addresses, flow control, retransmission, spread, GPU direct."""

import pytest

from engine.errors import MissingError
from engine.health import network_setup
from tests.engine.health.machines import brief, look_at

NET = "/sys/class/net/rdma3"
ROUTED = "0000:0000:0000:0000:0000:ffff:0a00:0004"
PORT = [("mlx5_3/1", "fail", "fix")]


def gids(*entries):
    """The address table of mlx5_3: (index, type, address)."""
    values = {"gid_attrs/types/3": None, "gids/3": None}
    for index, kind, address in entries:
        values |= {f"gid_attrs/types/{index}": kind, f"gids/{index}": address}
    return look_at("h100-roce", {"rnics": {"mlx5_3": values}})


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([(3, "RoCE v2", ROUTED)], []),
        ([(3, "RoCE v2\n", ROUTED)], []),
        ([(0, "IB/RoCE v1", ROUTED)], PORT),
        ([(0, "IB/RoCE v1", ROUTED), (1, "RoCE v2", ROUTED)], []),
        ([(0, "RoCE v2", "fe80:0000:0000:0000:a288:c2ff:fe15:0001")], PORT),
        ([(0, "RoCE v2", "0000:0000:0000:0000:0000:0000:0000:0000")], PORT),
        ([(0, "RoCE v2", "2001:0db8:0000:0000:0000:0000:0000:0001")], []),
        ([(0, "RoCE v2", None)], PORT),
        ([], PORT),
    ],
)
def test_every_port_has_a_routable_address(entries, found):
    results = network_setup.gid(gids(*entries))
    assert brief(results) == found
    assert not found or results[0].measured == len(entries)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, []),
        ({"roce_np/enable/3": "0", "roce_rp/enable/3": "0"}, [("mlx5_3/1", "warn", "fix")]),
        ({"roce_np/enable/3": "0"}, []),
        ({"roce_np/enable/3": "0", "roce_rp/enable/3": "0", "roce_rp/enable/7": "1"}, []),
        ({"roce_np/enable/3": "0", "roce_rp/enable/3": "0", "roce_rp/enable/8": "1"},
         [("mlx5_3/1", "warn", "fix")]),
        ({"roce_np/enable/3": None, "roce_rp/enable/3": None}, []),
    ],
)  # fmt: skip
def test_marks_of_congestion_are_on(files, found):
    change = {"files": {f"{NET}/ecn/{name}": text for name, text in files.items()}}
    assert brief(network_setup.congestion(look_at("h100-roce", change))) == found


@pytest.mark.parametrize(
    ("out", "found"),
    [
        ("enabled     0   0   0   1   0   0   0   0\n", []),
        ("enabled     0   0   0   0   0   0   0   1\n", []),
        ("enabled     0   0   0   0   0   0   0   0\n", [("mlx5_3/1", "warn", "fix")]),
        ("enabled 0 0 0\n", []),
        ("", []),
    ],
)
def test_priority_flow_control_is_on(out, found):
    results = network_setup.congestion(
        look_at("h100-roce", {"commands": {"mlnx_qos -i rdma3": out}})
    )
    assert brief(results) == found


@pytest.mark.parametrize(
    ("now", "found"), [(1000, []), (1001, [("mlx5_3/1", "warn", "watch")]), (None, [])]
)
def test_packets_without_a_buffer_count_by_the_hour(now, found):
    values = {"hw_counters/out_of_buffer": None if now is None else str(now)}
    change = {"rnics": {"mlx5_3": values}, "before": {"mlx5_3/1/out_of_buffer": 0}}
    assert brief(network_setup.congestion(look_at("h100-roce", change))) == found


def env(**values):
    return look_at("h100", {"env": values})


@pytest.mark.parametrize(
    ("values", "seconds", "found"),
    [
        ({}, 4.096e-6 * 2**20 * 7, False),
        ({"NCCL_IB_TIMEOUT": "18"}, 4.096e-6 * 2**18 * 7, False),
        ({"NCCL_IB_TIMEOUT": "17"}, 4.096e-6 * 2**17 * 7, True),
        ({"NCCL_IB_RETRY_CNT": "2"}, 4.096e-6 * 2**20 * 2, False),
        ({"NCCL_IB_RETRY_CNT": "1"}, 4.096e-6 * 2**20, True),
        ({"NCCL_IB_RETRY_CNT": "0"}, 0.0, True),
        ({"NCCL_IB_TIMEOUT": "0"}, 4.096e-6 * 7, True),
        ({"NCCL_IB_TIMEOUT": "99999"}, 4.096e-6 * 2**31 * 7, False),
        ({"NCCL_IB_TIMEOUT": "long", "NCCL_IB_RETRY_CNT": "inf"}, 4.096e-6 * 2**20 * 7, False),
    ],
)
def test_a_link_may_be_gone_for_seconds(values, seconds, found):
    results = network_setup.retransmit(env(**values))
    assert results[0].measured == pytest.approx(seconds)
    assert brief(results) == ([("NCCL_IB_TIMEOUT", "warn", "fix")] if found else [])


@pytest.mark.parametrize(
    ("kind", "out", "found"),
    [
        ("h100-roce", "roce_adp_retrans_en | 0x00000000\n", [("mlx5_3/1", "warn", "fix")]),
        ("h100-roce", "roce_adp_retrans_en     | 0x0\n", [("mlx5_3/1", "warn", "fix")]),
        ("h100-roce", "roce_adp_retrans_en | 0x00000001\n", []),
        ("h100-roce", "roce_adp_retrans_en | 0x00000010\n", []),
        ("h100-roce", "other | 0x00000000\n", []),
        ("h100", "roce_adp_retrans_en | 0x00000000\n", []),
    ],
)
def test_adaptive_retransmission(kind, out, found):
    command = "mlxreg -d mlx5_3 --reg_name ROCE_ACCL --get"
    assert brief(network_setup.retransmit(look_at(kind, {"commands": {command: out}}))) == found


@pytest.mark.parametrize(
    ("pairs", "found"),
    [("4", False), ("2", False), ("1", True), ("0", True), ("nan", True), ("", True)],
)
def test_flows_spread_over_equal_paths(pairs, found):
    look = look_at("h100-roce", {"env": {"NCCL_IB_QPS_PER_CONNECTION": pairs}})
    name = "NCCL_IB_QPS_PER_CONNECTION"
    assert brief(network_setup.spread(look)) == ([(name, "warn", "watch")] if found else [])


@pytest.mark.parametrize("check", ["gid", "congestion", "spread"])
def test_infiniband_needs_no_ethernet_settings(check):
    with pytest.raises(MissingError, match="no RoCE port"):
        getattr(network_setup, check)(look_at("h100"))


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module 550.90.07"
DUAL = "license: Dual MIT/GPL"


@pytest.mark.parametrize(
    ("peer", "release", "driver", "well"),
    [
        ("nvidia_peermem", "4.18.0", None, "nvidia_peermem"),
        ("nv_peer_mem", "4.18.0", None, "nv_peer_mem"),
        (None, "5.12.0", OPEN, "dma-buf"),
        (None, "6.1.0-rc1", DUAL, "dma-buf"),
        (None, "5.11.9", OPEN, None),
        (None, "4.18.0", OPEN, None),
        (None, "5.15.0", "NVRM version: NVIDIA UNIX x86_64 Kernel Module", None),
        (None, None, OPEN, None),
        (None, "strange", OPEN, None),
    ],
)
def test_cards_read_gpu_memory_through_a_module_or_the_kernel(peer, release, driver, well):
    files = {
        "/sys/module/nvidia_peermem/version": None,
        "/proc/sys/kernel/osrelease": release,
        "/proc/driver/nvidia/version": driver,
    }
    if peer:
        files[f"/sys/module/{peer}/version"] = "1"
    results = network_setup.gpu_direct(look_at("h100", {"files": files}))
    assert brief(results) == ([] if well else [("node", "fail", "fix")])
    assert not well or results[0].message == f"through {well}"
    mild = network_setup.gpu_direct(
        look_at("h100", {"files": files}, profile={"gpu_direct": False})
    )
    assert brief(mild) == ([] if well else [("node", "warn", "fix")])


def test_gpu_direct_needs_cards_and_gpus():
    with pytest.raises(MissingError, match="no RDMA network card"):
        network_setup.gpu_direct(look_at("t4"))
    with pytest.raises(MissingError, match="NVML"):
        network_setup.gpu_direct(look_at("h100", {"no_gpus": "Driver Not Loaded"}))
