"""Passive checks of GPUs: what NVML and the kernel log say. Safe beside a running job.

Each function answers one question about all GPUs of the node and names each GPU that is not well.
Bars follow the profile; without one, only what is wrong on any hardware counts.
"""

import contextlib
from collections.abc import Callable

from engine.errors import MissingError
from engine.health.kernel_log import find_xids, within
from engine.health.look import Look, problem, settle
from engine.health.nvml import Gpu
from engine.health.result import CheckResult, Status
from engine.health.xid import meaning

_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
_RESET = "stop the job on this node and run `nvidia-smi --gpu-reset -i {gpu}`"
_RMA = "take the node out and send the GPU back"
_FALLEN = "reboot the node; if the GPU does not come back, reseat or replace it"


def pci_devices(look: Look, classes: tuple[str, ...]) -> list[str]:
    """NVIDIA devices of a PCI class, by address."""
    root = "/sys/bus/pci/devices"
    found = []
    for name in look.probe.names(root):
        kind = look.probe.read(f"{root}/{name}/class") or ""
        if kind[:6] in classes and look.probe.read(f"{root}/{name}/vendor") == _NVIDIA:
            found.append(name)
    return found


def kind(look: Look) -> list[CheckResult]:
    """The machine's type is known, so that its bars apply."""
    name = look.profile.name
    if name == "unknown":
        return settle((), "no machine type: equal parts are compared with one another")
    return settle((), f"machine type {name}", measured=name)


def count(look: Look) -> list[CheckResult]:
    """All GPUs are there and answer."""
    on_bus = len(pci_devices(look, _DISPLAY))
    try:
        state = look.probe.gpus()
    except MissingError as error:
        if on_bus == 0 and look.profile.gpus == 0:
            raise
        seen = f"{on_bus} NVIDIA devices on PCI" if on_bus else "no NVIDIA device on PCI"
        return [
            problem(
                "fail",
                "node",
                f"{seen}, but {error.what}",
                remedy=error.remedy,
                action="reboot",
                measured=0,
                expected=look.profile.gpus or on_bus,
            )
        ]
    bad = [
        problem(
            "fail",
            f"gpu{g.index}",
            f"does not answer: {g.error}",
            remedy=_FALLEN,
            action="reboot",
            evidence=f"NVML handle {g.index}",
        )
        for g in state.gpus
        if g.error
    ]
    wanted = max(look.profile.gpus, on_bus)
    if len(state.gpus) < wanted:
        bar = f"profile {look.profile.name}" if look.profile.gpus >= on_bus else "devices on PCI"
        bad.append(
            problem(
                "fail",
                "node",
                f"{len(state.gpus)} of {wanted} GPUs",
                remedy=_FALLEN,
                action="reboot",
                measured=len(state.gpus),
                expected=wanted,
                bar=bar,
            )
        )
    number = len(state.present)
    return settle(bad, f"{number} GPUs answer", measured=number, expected=wanted or None)


def driver(look: Look) -> list[CheckResult]:
    """The loaded kernel module and the library agree; all GPUs are of one kind."""
    state = look.probe.gpus()
    loaded = (look.probe.read("/sys/module/nvidia/version") or "").strip()
    bad = []
    if loaded and loaded != state.driver:
        bad.append(
            problem(
                "fail",
                "node",
                f"module {loaded} is loaded, the library is {state.driver}",
                remedy="reboot the node, or reload the nvidia modules, after the driver's update",
                action="reboot",
                measured=loaded,
                expected=state.driver,
                evidence="/sys/module/nvidia/version",
            )
        )
    names = sorted({g.name for g in state.present})
    if len(names) > 1:
        bad.append(
            problem(
                "fail",
                "node",
                f"different GPUs: {', '.join(names)}",
                action="evict",
                remedy="use the node for another job; ranks would wait for the slowest",
            )
        )
    versions = sorted({g.vbios for g in state.present if g.vbios})
    if len(versions) > 1:
        bad.append(
            problem(
                "warn",
                "node",
                f"different GPU firmware: {', '.join(versions)}",
                remedy="flash one VBIOS version to all GPUs",
                action="fix",
            )
        )
    return settle(bad, f"driver {state.driver}", measured=state.driver)


def ecc(look: Look) -> list[CheckResult]:
    """No memory errors since the driver was loaded."""

    def judge(g: Gpu) -> list[CheckResult]:
        found = []
        for place, seen in (("SRAM", g.sram_uncorrected), ("DRAM", g.dram_uncorrected)):
            if seen:
                found.append(
                    problem(
                        "fail",
                        f"gpu{g.index}",
                        f"{seen} uncorrected {place} errors",
                        remedy=_RMA if place == "SRAM" else _RESET.format(gpu=g.index),
                        action="rma" if place == "SRAM" else "reset",
                        measured=seen,
                        expected=0,
                        bar="any is too many",
                    )
                )
        if (g.corrected or 0) > look.profile.corrected_ecc:
            found.append(
                problem(
                    "warn",
                    f"gpu{g.index}",
                    f"{g.corrected} corrected memory errors",
                    remedy="watch this GPU; it often fails next",
                    action="watch",
                    measured=g.corrected,
                    expected=look.profile.corrected_ecc,
                    bar=bar_of(look),
                )
            )
        return found

    return each(
        look,
        judge,
        "no uncorrected memory errors",
        lambda g: g.sram_uncorrected is not None or g.corrected is not None,
    )


def remap(look: Look) -> list[CheckResult]:
    """No memory repair has failed or waits for a reset."""

    def judge(g: Gpu) -> list[CheckResult]:
        target = f"gpu{g.index}"
        if g.remap_failed:
            return [
                problem(
                    "fail", target, "a memory row could not be remapped", remedy=_RMA, action="rma"
                )
            ]
        if g.remap_pending:
            return [
                problem(
                    "fail",
                    target,
                    "a row remap waits for a reset",
                    remedy=_RESET.format(gpu=g.index),
                    action="reset",
                )
            ]
        if g.remap_uncorrected:
            return [
                problem(
                    "warn",
                    target,
                    f"{g.remap_uncorrected} rows were remapped after uncorrected errors",
                    remedy="watch this GPU; replace it if the number grows",
                    action="watch",
                    measured=g.remap_uncorrected,
                    expected=0,
                )
            ]
        if g.retired_pending:
            return [
                problem(
                    "fail",
                    target,
                    "a page retirement waits for a reset",
                    remedy=_RESET.format(gpu=g.index),
                    action="reset",
                )
            ]
        if (g.retired_pages or 0) >= 60:
            return [
                problem(
                    "fail",
                    target,
                    f"{g.retired_pages} retired pages, the driver stops at 64",
                    remedy=_RMA,
                    action="rma",
                    measured=g.retired_pages,
                    expected=60,
                )
            ]
        return []

    return each(
        look,
        judge,
        "no memory repair is pending or failed",
        lambda g: g.remap_failed is not None or g.retired_pages is not None,
    )


def xid(look: Look) -> list[CheckResult]:
    """The GPU driver wrote no errors (Xid) to the kernel log."""
    return _log_errors(look, switch=False)


def sxid(look: Look) -> list[CheckResult]:
    """The NVSwitch driver wrote no errors (SXid) to the kernel log."""
    return _log_errors(look, switch=True)


def _log_errors(look: Look, *, switch: bool) -> list[CheckResult]:
    gpus = {}
    with contextlib.suppress(MissingError):  # without NVML the log's PCI addresses serve
        gpus = {g.pci: f"gpu{g.index}" for g in look.probe.gpus().present}
    driver = "nvswitch" if switch else "NVRM"
    if not gpus and not any(driver in line.text for line in look.probe.kernel_log()):
        raise MissingError(f"no {'NVSwitch' if switch else 'NVIDIA'} driver in the kernel log",
                           remedy="nothing to do without GPUs")  # fmt: skip
    bad = []
    for error in find_xids(within(look.probe.kernel_log(), look.uptime_s, look.window_s)):
        name = f"{'sxid' if switch else 'xid'}:{error.code}"
        if (error.switch >= 0) != switch or look.tolerates(name):
            continue
        means = meaning(error)
        if means.action == "none":
            continue
        target = f"nvswitch{error.switch}" if switch else gpus.get(error.pci, error.pci)
        bad.append(
            problem(
                means.status,
                target,
                f"{'SXid' if switch else 'Xid'} {error.code}: {means.text}",
                remedy=means.remedy,
                action=means.action,
                measured=error.code,
                evidence=error.text,
                bar="kernel log since boot" if look.window_s <= 0 else f"last {look.window_s:g} s",
            )
        )
    return settle(bad, f"no {'SXid' if switch else 'Xid'} in the kernel log")


def memory(look: Look) -> list[CheckResult]:
    """GPU memory that is in use belongs to a process."""

    def judge(g: Gpu) -> list[CheckResult]:
        share = (g.memory_used or 0) / (g.memory_total or 1)
        if share > 0.05 and g.processes == ():
            return [
                problem(
                    "fail",
                    f"gpu{g.index}",
                    f"{share:.0%} of its memory is held by no process",
                    remedy=_RESET.format(gpu=g.index),
                    action="reset",
                    measured=share,
                    expected=0.05,
                )
            ]
        return []

    return each(look, judge, "no left-over memory", lambda g: g.memory_used is not None)


def strangers(look: Look) -> list[CheckResult]:
    """No other program computes on the GPUs; asked only when the node should be idle."""

    def judge(g: Gpu) -> list[CheckResult]:
        if not g.processes:
            return []
        shown = ", ".join(str(pid) for pid in g.processes[:5])
        return [
            problem(
                "warn",
                f"gpu{g.index}",
                f"used by process {shown}",
                action="fix",
                remedy=f"end it if the node should be free: `kill {shown.replace(',', '')}`",
                measured=len(g.processes),
                expected=0,
            )
        ]

    return each(look, judge, "no other programs on the GPUs", lambda g: g.processes is not None)


def mode(look: Look) -> list[CheckResult]:
    """ECC, MIG, persistence and compute mode are as training wants them."""
    p = look.profile

    def judge(g: Gpu) -> list[CheckResult]:
        i = g.index
        wrong: tuple[tuple[bool, Status, str, str], ...] = (
            (
                g.ecc_on is False and p.ecc,
                "fail",
                "ECC is off",
                f"run `nvidia-smi -i {i} -e 1` and reboot",
            ),
            (
                g.mig_on is True and not p.mig,
                "fail",
                "MIG is on",
                f"run `nvidia-smi -i {i} -mig 0`",
            ),
            (
                g.compute_mode == 2,
                "fail",
                "compute mode is prohibited",
                f"run `nvidia-smi -i {i} -c 0`",
            ),
            (
                g.compute_mode in (1, 3),
                "warn",
                "compute mode is exclusive",
                f"run `nvidia-smi -i {i} -c 0`",
            ),
            (
                g.persistence is False and p.persistence,
                "warn",
                "persistence mode is off",
                "start nvidia-persistenced, or run `nvidia-smi -pm 1`",
            ),
        )
        return [
            problem(status, f"gpu{i}", text, remedy=remedy, action="fix")
            for is_so, status, text, remedy in wrong
            if is_so
        ]

    return each(look, judge, "modes as wanted", lambda g: True)


def bar_of(look: Look) -> str:
    """Where an expectation of the profile comes from."""
    return f"profile {look.profile.name}"


def each(
    look: Look,
    judge: Callable[[Gpu], list[CheckResult]],
    well: str,
    is_known: Callable[[Gpu], bool],
) -> list[CheckResult]:
    """Judge every GPU that answers; MissingError if none of them offers the value."""
    present = look.probe.gpus().present
    known = [g for g in present if is_known(g)]
    if not known:
        raise MissingError("these GPUs do not report it", remedy="nothing to do on this hardware")
    return settle([r for g in known for r in judge(g)], well, measured=len(known), unit="GPUs")
