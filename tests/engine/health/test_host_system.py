"""Disks, mounts, tasks, clock and kernel log, at each bar and beyond it."""

import pytest

from engine.errors import MissingError
from engine.health import host_system
from tests.engine.health.machines import brief, look_at

GIB = 1 << 30


@pytest.mark.parametrize(
    ("spaces", "found"),
    [
        ({"/data": {"free_bytes": 10 * GIB}}, []),
        ({"/data": {"free_bytes": 10 * GIB - 1}}, [("/data", "fail", "fix")]),
        ({"/tmp": {"free_bytes": 0}}, [("/tmp", "fail", "fix")]),
        ({"/": {"total_bytes": 100, "free_bytes": 2}}, []),
        ({"/": {"total_bytes": 100, "free_bytes": 1}}, [("/", "fail", "fix")]),
        ({"/": {"read_only": True}}, []),
        ({"/data": {"read_only": True}}, [("/data", "fail", "evict")]),
        ({"/data": {"read_only": True, "free_bytes": 0}}, [("/data", "fail", "evict")]),
        ({"/data": {"total_inodes": 100, "free_inodes": 2}}, []),
        ({"/data": {"total_inodes": 100, "free_inodes": 1}}, [("/data", "fail", "fix")]),
        ({"/data": {"total_inodes": 0, "free_inodes": 0}}, []),
        ({"/data": {"free_bytes": 0, "total_inodes": 100, "free_inodes": 0}},
         [("/data", "fail", "fix"), ("/data", "fail", "fix")]),
        ({"/data": {"total_bytes": 0, "free_bytes": 0}}, []),
        ({"/data": None, "/tmp": None}, []),
        ({"/dev/shm": {"free_bytes": 0}}, []),
    ],
)  # fmt: skip
def test_room_on_disks(spaces, found):
    assert brief(host_system.disk(look_at("cpu", {"spaces": spaces}))) == found


def test_a_folder_is_looked_at_once():
    look = look_at("cpu", {"spaces": {"/tmp": {"free_bytes": 0}}}, folder="/tmp")
    assert brief(host_system.disk(look)) == [("/tmp", "fail", "fix")]
    wanted = look_at("cpu", folder="/data", profile={"disk_free_bytes": 701 * GIB})
    assert [target for target, *_ in brief(host_system.disk(wanted))] == ["/tmp", "/data"]


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "lustre", "gpfs", "ceph", "fuse.glusterfs", "beegfs", "wekafs"]
)
def test_network_file_systems_answer(kind):
    lines = f"a:/x /data {kind} rw 0 0\nb:/y /gone {kind} rw 0 0\n/dev/sda / ext4 rw 0 0\nodd"
    results = host_system.mounts(look_at("cpu", {"files": {"/proc/self/mounts": lines}}))
    assert brief(results) == [("/gone", "fail", "evict")]
    assert "umount -l /gone" in results[0].remedy
    (well,) = host_system.mounts(look_at("cpu"))
    assert well.measured == 1


def test_local_disks_are_no_network():
    for text in (None, "/dev/sda /data ext4 rw 0 0\ntmpfs /nfs tmpfs rw 0 0"):
        with pytest.raises(MissingError, match="no network file system"):
            host_system.mounts(look_at("cpu", {"files": {"/proc/self/mounts": text}}))


def tasks(state, count, name="x"):
    return {f"/proc/{1000 + i}/stat": f"{1000 + i} ({name}) {state} 2" for i in range(count)}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (tasks("D", 7), []),  # and one of the machine's own
        (tasks("D", 8), [("node", "warn", "watch")]),
        (tasks("D", 8, "a) S (b"), [("node", "warn", "watch")]),
        (tasks("S", 99, "a) D (b"), []),
        (tasks("R", 99), []),
        (tasks("Z", 200), []),
        (tasks("Z", 201), [("node", "warn", "watch")]),
        ({"/proc/7/stat": "", "/proc/8/stat": "8 (x)", "/proc/self/stat": "9 (x) D 2"}, []),
    ],
)
def test_tasks_that_hang(files, found):
    assert brief(host_system.tasks(look_at("cpu", {"files": files}))) == found


def test_tasks_that_hang_are_named():
    (result,) = host_system.tasks(look_at("cpu", {"files": tasks("D", 9, "a (b) c")}))
    assert result.measured == 10
    assert result.evidence.split(", ")[0] == "1000 a (b) c"
    assert len(result.evidence.split(", ")) == 4


@pytest.mark.parametrize(
    ("load", "cpus", "found"),
    [
        ("768.00 1 1", 192, []),
        ("768.01 1 1", 192, [("node", "warn", "watch")]),
        ("4.0", 0, []),
        ("4.1", 0, [("node", "warn", "watch")]),
        ("nan", 1, []),
        (None, 1, []),
    ],
)
def test_load_by_strangers(load, cpus, found):
    change = {"files": {"/proc/loadavg": load}, "cpus": cpus}
    assert brief(host_system.tasks(look_at("cpu", change))) == found


SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
CHRONY = "chronyc -c tracking"


def tracking(offset, leap="Normal"):
    return f"0A000001,ntp,2,1.0,{offset},0.1,0.2,0,0,0,0,0,0,{leap}\n"


@pytest.mark.parametrize(
    ("out", "found", "measured"),
    [
        (tracking("0.1"), [], 0.1),
        (tracking("-0.100001"), [("clock", "warn", "fix")], 0.100001),
        (tracking("1.0"), [("clock", "warn", "fix")], 1.0),
        (tracking("-1.000001"), [("clock", "fail", "fix")], 1.000001),
        (tracking("0.0", "Not synchronised"), [("clock", "warn", "fix")], None),
        (tracking("2.0", "Not synchronised"), [("clock", "fail", "fix")], 2.0),
        ({"code": 1, "out": tracking("9.0")}, [], None),
        ("506 Cannot talk to daemon\n", [], None),
        (tracking("nan"), [], None),
        ("", [], None),
    ],
)
def test_the_clock_follows_a_server(out, found, measured):
    results = host_system.clock(look_at("cpu", {"commands": {CHRONY: out}}))
    assert brief(results) == found
    assert results[0].measured == measured


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("tsc", []), ("kvm-clock", []), (None, []),
        *((s, [("clocksource", "warn", "fix")]) for s in ("hpet", "acpi_pm", "jiffies")),
    ],
)  # fmt: skip
def test_the_clock_ticks_fast(source, found):
    assert brief(host_system.clock(look_at("cpu", {"files": {SOURCE: source}}))) == found


def test_what_is_known_of_a_good_clock_is_said():
    (well,) = host_system.clock(look_at("cpu"))
    assert well.message == "tsc clock, 0.021 ms from its server"
    assert (well.measured, well.unit) == (0.000021, "s")
    silent = {"commands": {CHRONY: {"code": 1, "out": ""}}, "files": {SOURCE: None}}
    (none,) = host_system.clock(look_at("cpu", silent))
    assert none.message == "unknown clock, no time daemon to ask"
    assert (none.measured, none.unit) == (None, "")


MCE = "mce: [Hardware Error]: CPU 3: Machine Check"
HOT = "CPU5: Core temperature above threshold, cpu clock throttled"


@pytest.mark.parametrize(
    ("log", "more", "found"),
    [
        ([], {}, []),
        ([MCE, MCE], {}, [("mce", "fail", "evict")]),
        ([HOT], {}, [("thermal", "warn", "watch")]),
        ([HOT, MCE], {}, [("thermal", "warn", "watch"), ("mce", "fail", "evict")]),
        ([MCE], {"window_s": 59.0}, []),
        ([MCE], {"window_s": 61.0}, [("mce", "fail", "evict")]),
        ([MCE, HOT], {"profile": {"ignore": ("kernel:mce",)}}, [("thermal", "warn", "watch")]),
        ([MCE], {"profile": {"ignore": ("mce",)}}, [("mce", "fail", "evict")]),
    ],
)
def test_the_kernels_own_words(log, more, found):
    results = host_system.kernel(look_at("cpu", {"log": log}, **more))
    assert brief(results) == found
    if log == [MCE, MCE]:
        assert (results[0].measured, results[0].evidence) == (2, MCE)
