"""Passive checks of how RDMA networking is set up: addresses, flow control, retransmission.

Ports are read by `network.py`; what NCCL will do is read from the environment that a rank inherits.
Paper 3.6.
"""

import re

from engine.errors import MissingError
from engine.health.look import Look, problem, settle
from engine.health.network import ROOT, counter, ports, used
from engine.health.probe import number
from engine.health.result import CheckResult, Status


def gid(look: Look) -> list[CheckResult]:
    """Every RoCE port has a routable version 2 address."""
    roce = [p for p in used(look) if p.layer == "Ethernet"]
    if not roce:
        raise MissingError("no RoCE port", remedy="nothing to do on InfiniBand")
    bad = []
    for port in roce:
        kinds = look.probe.names(f"{port.folder}/gid_attrs/types")
        good = [
            n
            for n in kinds
            if (look.probe.read(f"{port.folder}/gid_attrs/types/{n}") or "").strip() == "RoCE v2"
            and re.search(r"[1-9a-f]", look.probe.read(f"{port.folder}/gids/{n}") or "")
            and not (look.probe.read(f"{port.folder}/gids/{n}") or "").startswith("fe80")
        ]
        if not good:
            bad.append(
                problem(
                    "fail",
                    port.name,
                    "has no routable RoCE v2 address",
                    action="fix",
                    remedy="give its interface an IP address and bring it up",
                    measured=len(kinds),
                    evidence=f"{port.folder}/gid_attrs/types",
                )
            )
    return settle(bad, f"{len(roce)} RoCE ports have an address", measured=len(roce))


def congestion(look: Look) -> list[CheckResult]:
    """RoCE ports are set for lossless traffic and drop nothing."""
    roce = [p for p in used(look) if p.layer == "Ethernet"]
    if not roce:
        raise MissingError("no RoCE port", remedy="nothing to do on InfiniBand")
    bad = []
    for port in roce:
        for name in look.probe.names(f"{ROOT}/{port.device}/device/net"):
            marks = {
                look.probe.read(f"/sys/class/net/{name}/ecn/{side}/enable/{queue}")
                for side in ("roce_np", "roce_rp")
                for queue in range(8)
            } - {None}
            if marks and "1" not in marks:
                bad.append(
                    problem(
                        "warn",
                        port.name,
                        f"ECN is off on {name}",
                        action="fix",
                        remedy=f"write 1 to /sys/class/net/{name}/ecn/roce_np/enable/3 and roce_rp",
                        measured="off",
                        expected="on",
                    )
                )
            ran = look.probe.run(("mlnx_qos", "-i", name), timeout_s=5)
            enabled = (
                re.search(r"enabled\s+((?:[01]\s+){7}[01])", ran.out) if ran is not None else None
            )
            if enabled and "1" not in enabled[1]:
                bad.append(
                    problem(
                        "warn",
                        port.name,
                        f"priority flow control is off on {name}",
                        action="fix",
                        remedy=f"run `mlnx_qos -i {name} --pfc 0,0,0,1,0,0,0,0`",
                        measured="off",
                        expected="one priority",
                    )
                )
        discards = look.since(f"{port.name}/out_of_buffer", counter(look, port, "out_of_buffer"))
        if discards is not None and discards[0] / discards[1] > 1000:
            bad.append(
                problem(
                    "warn",
                    port.name,
                    f"{discards[0]} packets found no receive buffer",
                    action="watch",
                    remedy="raise ring sizes with `ethtool -G`",
                    measured=discards[0],
                )
            )
    return settle(bad, f"{len(roce)} RoCE ports set for lossless traffic", measured=len(roce))


def retransmit(look: Look) -> list[CheckResult]:
    """A link that is gone for seconds does not end the job.

    NCCL waits 4.096 us x 2^timeout, as often as it retries (paper 3.6).
    """
    ports(look)
    env = look.probe.env()
    timeout = number(env.get("NCCL_IB_TIMEOUT"))
    retries = number(env.get("NCCL_IB_RETRY_CNT"))
    waits = (
        4.096e-6
        * 2 ** min(31.0, 20.0 if timeout is None else timeout)
        * (7 if retries is None else retries)
    )
    bad = []
    if waits < 7.5:
        bad.append(
            problem(
                "warn",
                "NCCL_IB_TIMEOUT",
                f"a link that is gone for {waits:.2g} s ends the job",
                remedy="unset NCCL_IB_TIMEOUT or set 20 to 22, and NCCL_IB_RETRY_CNT=7",
                action="fix",
                measured=waits,
                expected=7.5,
                unit="s",
                bar="paper 3.6",
            )
        )
    for port in [p for p in used(look) if p.layer == "Ethernet"]:
        ran = look.probe.run(
            ("mlxreg", "-d", port.device, "--reg_name", "ROCE_ACCL", "--get"), timeout_s=5
        )
        found = (
            re.search(r"roce_adp_retrans_en\s*\|\s*0x0*([01])\b", ran.out)
            if ran is not None
            else None
        )
        if found and found[1] == "0":
            bad.append(
                problem(
                    "warn",
                    port.name,
                    "adaptive retransmission is off",
                    action="fix",
                    measured="off",
                    expected="on",
                    remedy=f"run `mlxreg -d {port.device} --reg_name ROCE_ACCL "
                    "--set roce_adp_retrans_en=1`",
                    bar="paper 3.6",
                )
            )
    return settle(bad, f"a link may be gone for {waits:.3g} s", measured=waits, unit="s")


def spread(look: Look) -> list[CheckResult]:
    """Flows spread over the switches' equal paths; one queue pair on RoCE is one flow."""
    if not any(p.layer == "Ethernet" for p in used(look)):
        raise MissingError("no RoCE port", remedy="nothing to do on InfiniBand")
    pairs = number(look.probe.env().get("NCCL_IB_QPS_PER_CONNECTION")) or 1
    bad = []
    if pairs < 2:
        bad.append(
            problem(
                "warn",
                "NCCL_IB_QPS_PER_CONNECTION",
                "one flow per peer: equal paths may collide",
                remedy="set NCCL_IB_QPS_PER_CONNECTION=4, then compare",
                action="watch",
                measured=pairs,
                expected=2,
                bar="paper 3.6",
            )
        )
    return settle(bad, f"{pairs:g} flows per peer", measured=pairs)


def gpu_direct(look: Look) -> list[CheckResult]:
    """Network cards can read GPU memory."""
    ports(look)
    look.probe.gpus()
    modules = look.probe.names("/sys/module")
    peer = {"nvidia_peermem", "nv_peer_mem"} & set(modules)
    release = re.match(r"(\d+)\.(\d+)", look.probe.read("/proc/sys/kernel/osrelease") or "")
    new = release is not None and (int(release[1]), int(release[2])) >= (5, 12)
    open_driver = "Dual MIT/GPL" in (
        look.probe.read("/proc/driver/nvidia/version") or ""
    ) or "Open Kernel Module" in (look.probe.read("/proc/driver/nvidia/version") or "")
    if peer or (new and open_driver):
        return settle((), "through " + (min(peer) if peer else "dma-buf"))
    status: Status = "fail" if look.profile.gpu_direct else "warn"
    return [
        problem(
            status,
            "node",
            "no GPU direct: data would go through host memory",
            action="fix",
            remedy="run `modprobe nvidia-peermem`, or use the open module on Linux 5.12",
        )
    ]
