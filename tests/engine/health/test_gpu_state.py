"""GPU state, one value at a time: at each bar, beyond it, and where a GPU does not say."""

import pytest

from engine.errors import MissingError
from engine.health import gpu_state
from tests.engine.health.machines import brief, look_at

LOST = {"error": "GPU is lost"}
XID = "NVRM: Xid (PCI:0000:{pci}:00): {code}, pid=1, text"


def one(gpu, kind="h100", **more):
    """A machine of which GPU 3 has other values."""
    return look_at(kind, {"gpus": {"3": gpu}}, **more)


def test_devices_of_the_bus_are_found_by_vendor_and_class():
    bus = "/sys/bus/pci/devices"
    look = look_at("cpu", {"files": {
        f"{bus}/a/class": "0x030200", f"{bus}/a/vendor": "0x10de",
        f"{bus}/b/class": "0x030000", f"{bus}/b/vendor": "0x10de",
        f"{bus}/c/class": "0x030200", f"{bus}/c/vendor": "0x1002",
        f"{bus}/d/class": "0x068000", f"{bus}/d/vendor": "0x10de",
        f"{bus}/e/vendor": "0x10de",
    }})  # fmt: skip
    assert gpu_state.pci_devices(look, ("0x0300", "0x0302")) == ["a", "b"]
    assert gpu_state.pci_devices(look, ("0x0680",)) == ["d"]
    assert gpu_state.pci_devices(look_at("cpu"), ("0x0300",)) == []


def test_the_machine_type_is_named():
    (known,) = gpu_state.kind(look_at("h100"))
    assert (known.status, known.measured) == ("ok", "h100-nvl8")
    (unknown,) = gpu_state.kind(look_at("cpu"))
    assert (unknown.status, unknown.measured) == ("ok", None)


@pytest.mark.parametrize(
    ("kind", "change", "found", "measured", "expected"),
    [
        ("h100", {}, [], 8, 8),
        ("t4", {}, [], 1, 1),
        ("h100", {"gpus_seen": 7}, [("node", "fail", "reboot")], 7, 8),
        ("t4", {"gpus_seen": 0}, [("node", "fail", "reboot")], 0, 1),
        ("h100", {"gpus": {"3": LOST}}, [("gpu3", "fail", "reboot")], None, None),
        ("h100", {"no_gpus": "Driver Not Loaded"}, [("node", "fail", "reboot")], 0, 8),
        ("t4", {"no_gpus": "Driver Not Loaded"}, [("node", "fail", "reboot")], 0, 1),
    ],
)
def test_gpus_are_counted_against_profile_and_bus(kind, change, found, measured, expected):
    results = gpu_state.count(look_at(kind, change))
    assert brief(results) == found
    assert (results[0].measured, results[0].expected) == (measured, expected)


def test_lost_and_missing_gpus_are_both_told():
    results = gpu_state.count(look_at("h100", {"gpus_seen": 7, "gpus": {"3": LOST}}))
    assert [r.target for r in results] == ["gpu3", "node"]
    assert results[1].bar == "profile h100-nvl8"
    bare = gpu_state.count(look_at("t4", {"gpus_seen": 0}))
    assert bare[0].bar == "devices on PCI"


def test_a_machine_that_needs_no_gpu_has_nothing_to_count():
    with pytest.raises(MissingError):
        gpu_state.count(look_at("cpu"))
    (result,) = gpu_state.count(look_at("cpu", profile={"gpus": 2}))
    assert (result.status, result.expected) == ("fail", 2)
    assert "no NVIDIA device on PCI" in result.message


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"files": {"/sys/module/nvidia/version": "550.90.07\n"}}, []),
        ({"files": {"/sys/module/nvidia/version": None}}, []),
        ({"files": {"/sys/module/nvidia/version": "550.90.08"}}, [("node", "fail", "reboot")]),
        ({"gpus": {"3": {"name": "NVIDIA H100"}}}, [("node", "fail", "evict")]),
        ({"gpus": {"3": {"vbios": "x"}}}, [("node", "warn", "fix")]),
        ({"gpus": {"3": {"vbios": None}}}, []),
        ({"gpus": {"3": LOST}}, []),
    ],
)
def test_driver_and_gpus_agree(change, found):
    assert brief(gpu_state.driver(look_at("h100", change))) == found


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ({"corrected": 1000}, []),
        ({"corrected": 1001}, [("gpu3", "warn", "watch")]),
        ({"sram_uncorrected": 1}, [("gpu3", "fail", "rma")]),
        ({"dram_uncorrected": 1}, [("gpu3", "fail", "reset")]),
        ({"sram_uncorrected": 1, "dram_uncorrected": 2, "corrected": 9999},
         [("gpu3", "fail", "rma"), ("gpu3", "fail", "reset"), ("gpu3", "warn", "watch")]),
        ({"sram_uncorrected": None, "corrected": 1001}, [("gpu3", "warn", "watch")]),
        ({"sram_uncorrected": None, "corrected": None, "dram_uncorrected": 5}, []),
        ({"aggregate_uncorrected": 9}, []),
    ],
)  # fmt: skip
def test_memory_errors_since_the_driver_started(gpu, found):
    assert brief(gpu_state.ecc(one(gpu))) == found


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ({"remap_failed": True, "remap_pending": True}, [("gpu3", "fail", "rma")]),
        ({"remap_pending": True, "remap_uncorrected": 1}, [("gpu3", "fail", "reset")]),
        ({"remap_uncorrected": 1}, [("gpu3", "warn", "watch")]),
        ({"remap_corrected": 99}, []),
        ({"retired_pending": True, "retired_pages": 63}, [("gpu3", "fail", "reset")]),
        ({"retired_pages": 59}, []),
        ({"retired_pages": 60}, [("gpu3", "fail", "rma")]),
        ({"remap_failed": None, "retired_pages": 60}, [("gpu3", "fail", "rma")]),
        ({"remap_failed": None, "remap_pending": True}, []),
    ],
)
def test_memory_repairs(gpu, found):
    assert brief(gpu_state.remap(one(gpu))) == found


@pytest.mark.parametrize(
    ("log", "more", "found"),
    [
        ([], {}, []),
        ([XID.format(pci=13, code=79)], {}, [("gpu3", "fail", "reboot")]),
        ([XID.format(pci=99, code=79)], {}, [("0000:99:00.0", "fail", "reboot")]),
        ([XID.format(pci=13, code=13)], {}, [("gpu3", "warn", "watch")]),
        ([XID.format(pci=13, code=79)], {"window_s": 59.0}, []),
        ([XID.format(pci=13, code=79)], {"window_s": 60.0}, [("gpu3", "fail", "reboot")]),
        ([XID.format(pci=13, code=79)], {"profile": {"ignore": ("xid:79",)}}, []),
        ([XID.format(pci=13, code=79)], {"profile": {"ignore": ("sxid:79",)}},
         [("gpu3", "fail", "reboot")]),
        (["NVRM: Xid (PCI:0000:13:00): 154, action changed from 0x1 (GPU Reset Required) to 0x0 "
          "(None)"], {}, []),
        (["nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 42"], {}, []),
    ],
)  # fmt: skip
def test_errors_of_the_gpu_driver(log, more, found):
    results = gpu_state.xid(look_at("h100", {"log": log}, **more))
    assert brief(results) == found
    if found:
        assert results[0].evidence == log[0]
        window = more.get("window_s")
        assert results[0].bar == (f"last {window:g} s" if window else "kernel log since boot")


def test_errors_of_the_switch_driver_are_its_own():
    line = "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 42"
    look = look_at("h100", {"log": [line, XID.format(pci=13, code=79)]})
    assert brief(gpu_state.sxid(look)) == [("nvswitch2", "fail", "reset")]
    calm = look_at("h100", {"log": [line]}, profile={"ignore": ("sxid:20034",)})
    assert brief(gpu_state.sxid(calm)) == []


def test_the_log_of_a_machine_without_nvml_serves_by_address():
    look = look_at("h100", {"no_gpus": "gone", "log": [XID.format(pci=13, code=79)]})
    assert brief(gpu_state.xid(look)) == [("0000:13:00.0", "fail", "reboot")]
    with pytest.raises(MissingError, match="no NVIDIA driver in the kernel log"):
        gpu_state.xid(look_at("cpu"))
    with pytest.raises(MissingError, match="no NVSwitch driver in the kernel log"):
        gpu_state.sxid(look_at("cpu"))


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ({"memory_total": 1000, "memory_used": 50, "processes": ()}, []),
        ({"memory_total": 1000, "memory_used": 51, "processes": ()}, [("gpu3", "fail", "reset")]),
        ({"memory_total": 1000, "memory_used": 900, "processes": (7,)}, []),
        ({"memory_total": 1000, "memory_used": 900, "processes": None}, []),
        ({"memory_total": None, "memory_used": 0, "processes": ()}, []),
        ({"memory_used": None, "processes": ()}, []),
    ],
)
def test_memory_that_no_process_holds(gpu, found):
    assert brief(gpu_state.memory(one(gpu))) == found


def test_strangers_are_named_and_how_to_end_them():
    results = gpu_state.strangers(one({"processes": (1, 2, 3, 4, 5, 6)}))
    assert brief(results) == [("gpu3", "warn", "fix")]
    assert results[0].measured == 6
    assert "`kill 1 2 3 4 5`" in results[0].remedy
    assert brief(gpu_state.strangers(one({"processes": None}))) == []


@pytest.mark.parametrize(
    ("gpu", "profile", "found"),
    [
        ({"ecc_on": False}, {}, ["fail"]),
        ({"ecc_on": False}, {"ecc": False}, []),
        ({"ecc_on": None}, {}, []),
        ({"mig_on": True}, {}, ["fail"]),
        ({"mig_on": True}, {"mig": True}, []),
        ({"mig_on": None}, {}, []),
        ({"compute_mode": 1}, {}, ["warn"]),
        ({"compute_mode": 2}, {}, ["fail"]),
        ({"compute_mode": 3}, {}, ["warn"]),
        ({"compute_mode": None}, {}, []),
        ({"persistence": False}, {}, ["warn"]),
        ({"persistence": False}, {"persistence": False}, []),
        ({"ecc_on": False, "mig_on": True, "persistence": False}, {}, ["fail", "fail", "warn"]),
    ],
)
def test_modes(gpu, profile, found):
    results = gpu_state.mode(one(gpu, profile=profile))
    assert brief(results) == [("gpu3", status, "fix") for status in found]
    assert all("-i 3 " in r.remedy or "-pm 1" in r.remedy for r in results if r.remedy)


def test_what_no_gpu_reports_is_skipped_and_what_some_report_is_judged():
    silent = {"sram_uncorrected": None, "corrected": None}
    with pytest.raises(MissingError, match="do not report it"):
        gpu_state.ecc(look_at("h100", {"gpus": {"all": silent}}))
    with pytest.raises(MissingError, match="do not report it"):
        gpu_state.mode(look_at("h100", {"gpus": {"all": LOST}}))
    (result,) = gpu_state.ecc(one(silent))
    assert (result.measured, result.unit) == (7, "GPUs")


@pytest.mark.parametrize("check", ["driver", "ecc", "remap", "memory", "strangers", "mode"])
def test_without_a_driver_there_is_nothing_to_ask(check):
    with pytest.raises(MissingError):
        getattr(gpu_state, check)(look_at("cpu"))
