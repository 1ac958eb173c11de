"""Passive checks of what a GPU hangs on: NVLink, PCIe, clocks, heat, power, the NVSwitch fabric.

As in `gpu_state.py`, each function answers one question about all GPUs of the node.
"""

from engine.errors import MissingError
from engine.health.gpu_state import bar_of, each, pci_devices
from engine.health.look import Look, problem, settle
from engine.health.nvml import Gpu
from engine.health.result import Action, CheckResult, Status

_BRIDGE = "0x0680"

HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80


def nvlink(look: Look) -> list[CheckResult]:
    """All NVLinks are up and quiet."""

    def judge(g: Gpu) -> list[CheckResult]:
        target, links = f"gpu{g.index}", g.links or ()
        down = [str(n) for n, up in enumerate(links) if not up]
        if down:
            return [
                problem(
                    "fail",
                    target,
                    f"NVLink {', '.join(down)} down",
                    action="reset",
                    remedy="reset all GPUs of the node; if it stays, reseat or replace the board",
                    measured=len(links) - len(down),
                    expected=len(links),
                )
            ]
        if len(links) < look.profile.nvlinks:
            return [
                problem(
                    "fail",
                    target,
                    f"{len(links)} of {look.profile.nvlinks} NVLinks",
                    remedy="reboot the node; if it stays, replace the board",
                    action="reboot",
                    measured=len(links),
                    expected=look.profile.nvlinks,
                    bar=bar_of(look),
                )
            ]
        return _noisy_links(look, g)

    return each(
        look, judge, "all NVLinks up", lambda g: g.links is not None or look.profile.nvlinks > 0
    )


def _noisy_links(look: Look, g: Gpu) -> list[CheckResult]:
    """Links whose errors grew since the last look; a total says nothing of today."""
    for link, total in enumerate(g.link_errors or ()):
        grown = look.since(f"gpu{g.index}/nvlink{link}", total)
        if grown is not None and grown[0] > look.profile.nvlink_errors:
            return [
                problem(
                    "warn",
                    f"gpu{g.index}",
                    f"NVLink {link}: {grown[0]} new errors in {grown[1]:.2g} h",
                    remedy="watch this link; reset the GPUs if the errors go on",
                    action="watch",
                    measured=grown[0],
                    expected=look.profile.nvlink_errors,
                    unit="errors",
                )
            ]
    return []


def pcie(look: Look) -> list[CheckResult]:
    """Every GPU has its full PCIe link; generation counts under load, as idle links slow down."""

    def judge(g: Gpu) -> list[CheckResult]:
        target = f"gpu{g.index}"
        width = max(g.pcie_width_max or 0, look.profile.pcie_width)
        if g.pcie_width is not None and g.pcie_width < width:
            return [
                problem(
                    "fail",
                    target,
                    f"PCIe x{g.pcie_width} instead of x{width}",
                    remedy="reseat the GPU or its riser, then replace it",
                    action="evict",
                    measured=g.pcie_width,
                    expected=width,
                    unit="lanes",
                )
            ]
        if look.profile.pcie_gen and (g.pcie_gen_max or 99) < look.profile.pcie_gen:
            return [
                problem(
                    "fail",
                    target,
                    f"PCIe can only reach gen {g.pcie_gen_max}, not {look.profile.pcie_gen}",
                    remedy="set the slot's speed to auto in the BIOS; else replace the riser",
                    action="fix",
                    measured=g.pcie_gen_max,
                    expected=look.profile.pcie_gen,
                    bar=bar_of(look),
                )
            ]
        busy = g.pstate == 0 and (g.utilization or 0) > 0
        if busy and g.pcie_gen is not None and g.pcie_gen < (g.pcie_gen_max or 0):
            return [
                problem(
                    "warn",
                    target,
                    f"PCIe gen {g.pcie_gen} under load, {g.pcie_gen_max} is possible",
                    remedy="check the slot's BIOS setting and the kernel log for AER lines",
                    action="watch",
                    measured=g.pcie_gen,
                    expected=g.pcie_gen_max,
                )
            ]
        grown = look.since(f"gpu{g.index}/replays", g.pcie_replays or 0)
        if grown is not None and grown[0] / grown[1] > look.profile.pcie_replays_per_h:
            return [
                problem(
                    "warn",
                    target,
                    f"{grown[0]} PCIe replays in {grown[1]:.2g} h",
                    remedy="reseat the GPU at the next maintenance",
                    action="watch",
                    measured=grown[0] / grown[1],
                    expected=look.profile.pcie_replays_per_h,
                    unit="1/h",
                    bar=bar_of(look),
                )
            ]
        return []

    return each(look, judge, "full PCIe width", lambda g: g.pcie_width is not None)


def clocks(look: Look) -> list[CheckResult]:
    """Nothing holds the clocks down; idling, application clocks and the power cap are normal."""
    reasons: tuple[tuple[int, Status, str, str, Action], ...] = (
        (
            POWER_BRAKE,
            "fail",
            "the power supply asked it to brake",
            "check power supplies and PDU of the node",
            "evict",
        ),
        (
            HW_THERMAL,
            "fail",
            "hardware slowed it for heat",
            "check fans, air flow and heat sink",
            "evict",
        ),
        (
            HW_SLOWDOWN,
            "fail",
            "hardware slowed it down",
            "check power cables, supply and cooling",
            "evict",
        ),
        (
            SW_THERMAL,
            "warn",
            "the driver slows it for heat",
            "check fans and inlet temperature",
            "watch",
        ),
    )

    def judge(g: Gpu) -> list[CheckResult]:
        for bit, status, text, remedy, action in reasons:
            if (g.throttle or 0) & bit:
                return [
                    problem(
                        status,
                        f"gpu{g.index}",
                        text,
                        remedy=remedy,
                        action=action,
                        measured=f"{g.throttle:#x}",
                        evidence="clock event reasons",
                    )
                ]
        return []

    return each(look, judge, "nothing holds clocks down", lambda g: g.throttle is not None)


def temperature(look: Look) -> list[CheckResult]:
    """No GPU is at its slowdown temperature or far hotter than its equals."""
    known = sorted(g.temperature for g in look.probe.gpus().present if g.temperature is not None)
    middle = known[len(known) // 2] if known else 0

    def judge(g: Gpu) -> list[CheckResult]:
        heat, limit = g.temperature or 0, g.temperature_slowdown or 200
        if heat >= limit:
            return [
                problem(
                    "fail",
                    f"gpu{g.index}",
                    f"{heat} C, slows down at {limit} C",
                    remedy="check fans, air flow and heat sink",
                    action="evict",
                    measured=heat,
                    expected=limit,
                    unit="C",
                    bar="the GPU's own limit",
                )
            ]
        if len(known) >= 4 and heat > middle + 25:
            return [
                problem(
                    "warn",
                    f"gpu{g.index}",
                    f"{heat} C, its equals have {middle} C",
                    remedy="check this GPU's cooling",
                    action="watch",
                    measured=heat,
                    expected=middle,
                    unit="C",
                    bar="median of the node",
                )
            ]
        return []

    return each(look, judge, "temperatures within limits", lambda g: g.temperature is not None)


def power(look: Look) -> list[CheckResult]:
    """No GPU is capped below its power."""

    def judge(g: Gpu) -> list[CheckResult]:
        wanted = float(look.profile.power_w or g.power_default or 0)
        if g.power_limit is not None and g.power_limit < wanted - 1:
            return [
                problem(
                    "warn",
                    f"gpu{g.index}",
                    f"capped at {g.power_limit:g} W of {wanted:g} W",
                    remedy=f"run `nvidia-smi -i {g.index} -pl {wanted:g}` if that is not intended",
                    action="fix",
                    measured=g.power_limit,
                    expected=wanted,
                    unit="W",
                    bar=bar_of(look) if look.profile.power_w else "the GPU's default",
                )
            ]
        return []

    return each(look, judge, "no power caps", lambda g: g.power_limit is not None)


def fabric(look: Look) -> list[CheckResult]:
    """Every GPU is registered with the NVSwitch fabric, and its manager runs."""
    if not look.profile.fabric and not pci_devices(look, (_BRIDGE,)):
        raise MissingError("no NVSwitch", remedy="nothing to do on machines without NVSwitch")
    bad = []
    ran = look.probe.run(("systemctl", "is-active", "nvidia-fabricmanager"), timeout_s=5)
    if ran is not None and ran.out.strip() in ("inactive", "failed"):
        bad.append(
            problem(
                "fail",
                "node",
                f"the fabric manager is {ran.out.strip()}",
                action="fix",
                remedy="run `systemctl restart nvidia-fabricmanager` and read its log",
                measured=ran.out.strip(),
                expected="active",
            )
        )
    for g in look.probe.gpus().present:
        if g.fabric in (1, 2) or (g.fabric == 3 and g.fabric_status):
            state = {1: "not started", 2: "not finished"}.get(
                g.fabric, f"failed with {g.fabric_status}"
            )
            bad.append(
                problem(
                    "fail",
                    f"gpu{g.index}",
                    f"registration with the NVSwitch fabric: {state}",
                    remedy="restart nvidia-fabricmanager; then reset all GPUs",
                    action="reset",
                    measured=g.fabric,
                    expected=3,
                )
            )
    return settle(bad, "the NVSwitch fabric is complete")


def counters(look: Look) -> dict[str, int]:
    """GPU counters of this look, for the next one."""
    found: dict[str, int] = {}
    try:
        present = look.probe.gpus().present
    except MissingError:
        return found
    for g in present:
        if g.pcie_replays is not None:
            found[f"gpu{g.index}/replays"] = g.pcie_replays
        for link, total in enumerate(g.link_errors or ()):
            found[f"gpu{g.index}/nvlink{link}"] = total
    return found
