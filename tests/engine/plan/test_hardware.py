import pytest

from engine.plan.hardware import cluster_for, network_bytes_per_s

NETWORKS = [
    ("8x200Gb/s RoCE per node (one NIC per GPU), CLOS", 25e9),
    ("8x A100 per node, 800 Gb/s per node", 12.5e9),
    ("4x 100Gb/s OmniPath per 8-GPU node", 6.25e9),
    ("4x OmniPath 100Gb/s per node; NVLink4", 6.25e9),
    ("NDR 400Gb/s per GPU, NVLink4", 50e9),
    ("NVL72 + CX7 400Gb/s per GPU", 50e9),
    ("DGX A100, 8x200Gb HDR IB per node (Selene)", 25e9),
    ("1600 Gb/s RoCE per node", 25e9),
    ("2 Tb/s RoCE per host", 31.25e9),
    ("DGX H100 NDR400", 50e9),
    ("", None),
    ("a fast one", None),
]


@pytest.mark.parametrize(("text", "rate"), NETWORKS)
def test_networks_are_read_per_device(text, rate):
    assert network_bytes_per_s(text, 8) == rate


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("H100 96GB HBM2e SXM, 500W (Grand Teton)", "H100-96GB-500W"), ("A100 40GB SXM", "A100-40GB"),
     ("A100 80GB SXM", "A100-80GB"), ("GB300 (NVL72 domain)", "GB300"), ("B200 SXM", "B200-180GB"),
     ("V100 SXM", "V100-32GB"), ("MI300X", "MI300X-192GB")],
)  # fmt: skip
def test_devices_are_known_by_their_names(gpu, name):
    cluster, _ = cluster_for(gpu, "", 64)
    assert cluster.device.name == name
    assert cluster.world_size >= 64


def test_an_unstated_network_is_an_assumption_and_unknown_hardware_is_none():
    assert cluster_for("A100", "", 64)[1] == ("network of 200 Gb/s per GPU",)
    assert cluster_for("A100", "", 8)[1] == ()
    assert cluster_for("TPU v4", "", 64) is None
    assert cluster_for("abacus", "", 64) is None
