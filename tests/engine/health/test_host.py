"""The host, one value at a time: at each bar, beyond it, and where the kernel says nonsense."""

import pytest

from engine.errors import MissingError
from engine.health import host
from engine.health.recording import RecordedProbe, Recording
from tests.engine.health.machines import brief, look_at

CPU = "/sys/devices/system/cpu"
KIB = 1024
GIB = 1 << 30


def with_files(files, **more):
    return look_at("cpu", {"files": files}, **more)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0-3,8", 5),
        ("7", 1),
        (" 0-1 , 4 ", 3),
        ("0-3,2-5", 6),
        ("3-1", 0),
        ("0-65535", 1 << 16),
        ("0-65536", 0),
        ("0-99999999999999", 0),
        ("٣", 0),
        ("a-b,,-", 0),
        ("", 0),
    ],
)
def test_lists_of_cpus(text, count):
    assert len(host._cpu_list(with_files({f"{CPU}/online": text}), "online")) == count


def test_a_list_that_repeats_itself_does_not_grow():
    text = ",".join(f"0-{65535 - i}" for i in range(20))
    assert len(host._cpu_list(with_files({f"{CPU}/online": text}), "online")) == 1 << 16


@pytest.mark.parametrize(
    ("change", "profile", "found"),
    [
        ({}, {}, []),
        ({"files": {f"{CPU}/online": "0-190"}}, {}, [("node", "fail", "reboot")]),
        ({"files": {f"{CPU}/online": "0-190"}}, {"cpus": 191}, []),
        ({}, {"cpus": 193}, [("node", "fail", "reboot")]),
        ({}, {"numa_nodes": 2}, []),
        ({}, {"numa_nodes": 3}, [("node", "fail", "fix")]),
        ({"files": {"/sys/devices/system/node/node2x/a": ""}}, {"numa_nodes": 3},
         [("node", "fail", "fix")]),
        ({"cpus": 96}, {}, []),
        ({"cpus": 95}, {}, [("node", "warn", "fix")]),
        ({"files": {f"{CPU}/online": None}}, {}, [("node", "fail", "reboot")]),
    ],
)  # fmt: skip
def test_cpus_are_online_and_usable(change, profile, found):
    assert brief(host.cores(look_at("cpu", change, profile=profile))) == found


@pytest.mark.parametrize(
    ("governor", "driver", "found"),
    [
        ("powersave", "acpi-cpufreq", [("node", "warn", "fix")]),
        ("conservative", "acpi-cpufreq", [("node", "warn", "fix")]),
        ("powersave", None, [("node", "warn", "fix")]),
        ("powersave", "intel_pstate", []),
        ("powersave", "amd-pstate-epp", []),
        ("schedutil", "acpi-cpufreq", []),
        (None, None, []),
    ],
)
def test_a_governor_that_keeps_the_clock_low(governor, driver, found):
    at = f"{CPU}/cpu0/cpufreq/scaling_"
    look = with_files({f"{at}governor": governor, f"{at}driver": driver})
    assert brief(host.cores(look)) == found


def test_without_sys_there_is_nothing_to_count():
    with pytest.raises(MissingError, match="does not list CPUs"):
        host.cores(with_files({f"{CPU}/present": None}))


@pytest.mark.parametrize(
    ("info", "profile", "found"),
    [
        ({"MemTotal": 100, "MemAvailable": 5}, {}, []),
        ({"MemTotal": 101, "MemAvailable": 5}, {}, [("node", "fail", "fix")]),
        ({"MemTotal": 97, "MemAvailable": 50}, {"memory_bytes": 100 * KIB}, []),
        ({"MemTotal": 96, "MemAvailable": 50}, {"memory_bytes": 100 * KIB},
         [("node", "fail", "rma")]),
        ({"MemTotal": 8192, "MemAvailable": 8000, "HugePages_Total": 2, "Hugepagesize": 2048}, {},
         []),
        ({"MemTotal": 8191, "MemAvailable": 8000, "HugePages_Total": 2, "Hugepagesize": 2048}, {},
         [("node", "warn", "fix")]),
    ],
)  # fmt: skip
def test_memory_is_there_and_free(info, profile, found):
    text = "".join(f"{k}:  {v}{'' if k == 'HugePages_Total' else ' kB'}\n" for k, v in info.items())
    look = with_files({}, profile=profile)._replace(probe=probe_of({"/proc/meminfo": text}))
    assert brief(host.memory(look)) == found


def probe_of(files):
    """A machine that has these files and no others."""
    return RecordedProbe(Recording(files=files))


@pytest.mark.parametrize(
    "text",
    [None, "", "MemTotal: lots kB", "MemTotal", "MemTotal: 0 kB", "MemTotal: inf kB",
     "MemTotal: nan kB", "MemTotal: 1e999 kB"],
)  # fmt: skip
def test_memory_that_the_kernel_does_not_tell(text):
    look = with_files({})._replace(probe=probe_of({} if text is None else {"/proc/meminfo": text}))
    with pytest.raises(MissingError, match="cannot be read"):
        host.memory(look)


@pytest.mark.parametrize(
    ("hard", "soft", "found"),
    [
        ("0", "1000", []),
        ("0", "1001", [("mc0", "warn", "watch")]),
        ("1", "0", [("mc0", "fail", "rma")]),
        ("1", "9999", [("mc0", "fail", "rma")]),
        (None, None, []),
        ("many", "few", []),
    ],
)
def test_errors_of_memory_controllers(hard, soft, found):
    at = "/sys/devices/system/edac/mc/mc0"
    look = with_files({f"{at}/ue_count": hard, f"{at}/ce_count": soft, f"{at}/mc_name": "x"})
    assert brief(host.memory(look)) == found


def test_the_second_controller_is_looked_at_too():
    at = "/sys/devices/system/edac/mc/mc1"
    assert brief(host.memory(with_files({f"{at}/ue_count": "2"}))) == [("mc1", "fail", "rma")]


@pytest.mark.parametrize(
    ("total", "free", "found"),
    [
        (2 << 20, 1 << 20, []),  # kB: 1 GiB is in use
        (2 << 20, (1 << 20) - 1, [("node", "warn", "fix")]),
        (0, 0, []),
        (4 << 20, 4 << 20, []),
    ],
)
def test_swap_in_use(total, free, found):
    look = look_at("cpu", {"meminfo": {"SwapTotal": total, "SwapFree": free}})
    results = host.swap(look)
    assert brief(results) == found
    assert results[0].measured == (total - free) * KIB


@pytest.mark.parametrize(
    ("space", "found"),
    [
        ({"total_bytes": GIB, "free_bytes": GIB}, []),
        ({"total_bytes": GIB - 1, "free_bytes": 0}, [("/dev/shm", "fail", "fix")]),
        ({"total_bytes": 10 * GIB, "free_bytes": GIB}, []),
        ({"total_bytes": 10 * GIB, "free_bytes": GIB - 1}, [("/dev/shm", "warn", "fix")]),
        (None, [("/dev/shm", "fail", "fix")]),
    ],
)
def test_shared_memory(space, found):
    assert brief(host.shm(look_at("cpu", {"spaces": {"/dev/shm": space}}))) == found


@pytest.mark.parametrize(
    ("kind", "limits", "found"),
    [
        ("h100", {"memlock": 1 << 40}, [("memlock", "fail", "fix")]),
        ("cpu", {"memlock": 65536}, []),
        ("cpu", {"nofile": 4096}, []),
        ("cpu", {"nofile": 4095}, [("nofile", "warn", "fix")]),
        ("cpu", {"nofile": -1}, []),
        ("cpu", {"nproc": 4096}, []),
        ("cpu", {"nproc": 4095}, [("nproc", "warn", "fix")]),
        ("h100", {"memlock": 0, "nofile": 0, "nproc": 0},
         [("memlock", "fail", "fix"), ("nofile", "warn", "fix"), ("nproc", "warn", "fix")]),
    ],
)  # fmt: skip
def test_limits_of_a_process(kind, limits, found):
    assert brief(host.limits(look_at(kind, {"limits": limits}))) == found


GROUP = "/sys/fs/cgroup/system.slice/job"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, []),
        ({"memory.max": str(1 << 40)}, []),  # half of 2 TiB
        ({"memory.max": str((1 << 40) - 1)}, [("memory.max", "warn", "fix")]),
        ({"memory.max": None}, []),
        ({"cpu.max": "17280000 100000"}, []),  # 172.8 of 192 CPUs
        ({"cpu.max": "17279999 100000"}, [("cpu.max", "warn", "fix")]),
        ({"cpu.max": "8640000 50000"}, []),
        ({"cpu.max": "100000"}, [("cpu.max", "warn", "fix")]),
        ({"cpu.max": "100000 0"}, [("cpu.max", "warn", "fix")]),
        ({"cpu.max": None}, []),
        ({"cpu.max": " "}, []),
        ({"cpu.max": "nan nan"}, []),
        ({"memory.events": "oom 3\noom_kill 0"}, []),
        ({"memory.events": "oom 3\noom_kill 2"}, [("memory.events", "warn", "watch")]),
        ({"memory.events": "oom_kill 1.5"}, [("memory.events", "warn", "watch")]),
        ({"memory.events": "oom_kill\noom_kill 1 2\n"}, []),
    ],
)
def test_limits_of_the_group(files, found):
    look = with_files({f"{GROUP}/{name}": text for name, text in files.items()})
    assert brief(host.cgroup(look)) == found


def test_groups_of_the_old_kind_are_not_judged():
    for files in (
        {"/proc/self/cgroup": "4:memory:/job\n3:cpu:/job"},
        {"/proc/self/cgroup": None},
        {"/sys/fs/cgroup/cgroup.controllers": None},
    ):
        with pytest.raises(MissingError, match="no unified cgroup"):
            host.cgroup(with_files(files))


def test_the_root_group_is_a_group():
    files = {"/proc/self/cgroup": "1:name=x:/\n0::/", "/sys/fs/cgroup/memory.max": "1"}
    assert brief(host.cgroup(with_files(files))) == [("memory.max", "warn", "fix")]
