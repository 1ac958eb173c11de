"""Passive checks of RDMA network cards, from the kernel's own tree (paper 3.6, 4.3).

A port is named `mlx5_0/1`. Rates are in Gb/s as vendors quote them. Counters are judged by what
they grew since the last look, because a total says nothing about today.
"""

import re
from typing import NamedTuple

from engine.errors import MissingError
from engine.health.kernel_log import normal_pci
from engine.health.look import Look, problem, settle
from engine.health.probe import number
from engine.health.result import CheckResult

ROOT = "/sys/class/infiniband"
_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans_to",
    "rx_icrc_encapsulated",
)
_CABLE = "clean and reseat the cable or transceiver, then replace it"


class Port(NamedTuple):
    """One port of an RDMA card."""

    device: str
    number: str
    state: str
    physical: str
    gbps: float
    layer: str

    @property
    def name(self) -> str:
        """As in `mlx5_0/1`."""
        return f"{self.device}/{self.number}"

    @property
    def folder(self) -> str:
        """Where the kernel shows it."""
        return f"{ROOT}/{self.device}/ports/{self.number}"


def ports(look: Look) -> list[Port]:
    """All ports; MissingError if the machine has no RDMA card and need not have one."""
    found = []
    for device in look.probe.names(ROOT):
        for port in look.probe.names(f"{ROOT}/{device}/ports"):
            at = f"{ROOT}/{device}/ports/{port}"
            found.append(
                Port(
                    device,
                    port,
                    _word(look.probe.read(f"{at}/state")),
                    _word(look.probe.read(f"{at}/phys_state")),
                    number(look.probe.read(f"{at}/rate")) or 0.0,
                    (look.probe.read(f"{at}/link_layer") or "").strip(),
                )
            )
    if not found and not look.profile.rnics:
        raise MissingError("no RDMA network card", remedy="nothing to do if the job uses TCP")
    return found


def _word(text: str | None) -> str:
    """`4: ACTIVE` as `ACTIVE`."""
    return (text or "").partition(":")[2].strip()


def used(look: Look) -> list[Port]:
    """The ports that carry training traffic: as fast as the profile says, or all."""
    every = ports(look)
    fast = [p for p in every if p.gbps >= look.profile.rnic_gbps > 0]
    return fast or every


def state(look: Look) -> list[CheckResult]:
    """All ports are there, up and at their rate."""
    every = ports(look)
    p = look.profile
    bad = []
    devices = {port.device for port in every}
    if len(devices) < p.rnics:
        bad.append(
            problem(
                "fail",
                "node",
                f"{len(devices)} of {p.rnics} network cards",
                action="reboot",
                remedy="reboot the node; if it stays, reseat or replace the card",
                measured=len(devices),
                expected=p.rnics,
                bar=f"profile {p.name}",
            )
        )
    for port in every:
        if port.state != "ACTIVE" or port.physical not in ("LinkUp", ""):
            bad.append(
                problem(
                    "fail",
                    port.name,
                    f"{port.state or 'unknown'}, {port.physical or 'unknown'}",
                    remedy=f"check the switch port, then: {_CABLE}",
                    action="evict",
                    measured=port.state,
                    expected="ACTIVE",
                    evidence=f"{port.folder}/state",
                )
            )
        elif len(devices) <= max(p.rnics, 1) and port.gbps < p.rnic_gbps:
            bad.append(
                problem(
                    "fail",
                    port.name,
                    f"{port.gbps:g} Gb/s instead of {p.rnic_gbps}",
                    remedy=_CABLE,
                    action="evict",
                    measured=port.gbps,
                    expected=p.rnic_gbps,
                    unit="Gb/s",
                    bar=f"profile {p.name}",
                )
            )
        elif p.link_layer and port.layer != p.link_layer:
            bad.append(
                problem(
                    "fail",
                    port.name,
                    f"is {port.layer}, not {p.link_layer}",
                    action="fix",
                    remedy=f"set LINK_TYPE with `mlxconfig -d {port.device} set`",
                    measured=port.layer,
                    expected=p.link_layer,
                )
            )
    return settle(bad, f"{len(every)} ports active", measured=len(every), unit="ports")


def errors(look: Look) -> list[CheckResult]:
    """No link flapped or counted errors since the last look."""
    every = ports(look)
    if look.before is None:
        raise MissingError(
            "first look: no earlier counters to compare with", remedy="run the self-check again"
        )
    bad = []
    for port in every:
        flaps = look.before.flaps_s.get(port.name, ())
        down = look.since(f"{port.name}/link_downed", counter(look, port, "link_downed"))
        if down is not None and down[0] > 0:
            again = any(t >= look.uptime_s - 300 for t in flaps)
            bad.append(
                problem(
                    "fail" if again or down[0] > 1 else "warn",
                    port.name,
                    f"went down {down[0]} times since the last look"
                    + (", and before that" if again else ""),
                    remedy=_CABLE,
                    action="evict" if again or down[0] > 1 else "watch",
                    measured=down[0],
                    expected=0,
                    evidence=f"{port.folder}/counters/link_downed",
                )
            )
            continue
        for name in _ERRORS:
            grown = look.since(f"{port.name}/{name}", counter(look, port, name))
            if grown is not None and grown[0] / grown[1] > look.profile.port_errors_per_h:
                bad.append(
                    problem(
                        "warn",
                        port.name,
                        f"{name} grew by {grown[0]} in {grown[1]:.2g} h",
                        remedy=_CABLE,
                        action="watch",
                        measured=grown[0] / grown[1],
                        expected=look.profile.port_errors_per_h,
                        unit="1/h",
                    )
                )
                break
    return settle(bad, f"{len(every)} ports quiet since the last look", measured=len(every))


def counters(look: Look) -> dict[str, int]:
    """Port counters of this look, for the next one."""
    found: dict[str, int] = {}
    try:
        every = ports(look)
    except MissingError:
        return found
    for port in every:
        for name in ("link_downed", *_ERRORS):
            found[f"{port.name}/{name}"] = counter(look, port, name)
    return found


def counter(look: Look, port: Port, name: str) -> int:
    """A counter of a port, 0 if the card does not have it."""
    for folder in ("counters", "hw_counters"):
        value = number(look.probe.read(f"{port.folder}/{folder}/{name}"))
        if value is not None and value >= 0:
            return int(value)
    return 0


def mtu(look: Look) -> list[CheckResult]:
    """The MTU is the same on all ports, and as the profile says."""
    sizes = {}
    for port in used(look):
        found = look.probe.run(("ibv_devinfo", "-d", port.device, "-i", port.number), timeout_s=3)
        match = re.search(r"active_mtu:\s*(\d+)", found.out) if found is not None else None
        value = int(match[1]) if match else _interface_mtu(look, port)
        if value:
            sizes[port.name] = value
    if not sizes:
        raise MissingError("no port tells its MTU", remedy="install ibverbs-utils")
    wanted = look.profile.mtu or max(sizes.values())
    bad = [
        problem(
            "warn",
            name,
            f"MTU {size}, not {wanted}",
            action="fix",
            remedy="set the same MTU on all cards and switch ports",
            measured=size,
            expected=wanted,
            unit="B",
        )
        for name, size in sizes.items()
        if size < wanted
    ]
    return settle(bad, f"MTU {wanted} on all ports", measured=wanted, unit="B")


def _interface_mtu(look: Look, port: Port) -> int:
    for name in look.probe.names(f"{ROOT}/{port.device}/device/net"):
        return int(number(look.probe.read(f"/sys/class/net/{name}/mtu")) or 0)
    return 0


def card(look: Look) -> list[CheckResult]:
    """All cards have the same firmware and a full PCIe link."""
    devices = sorted({p.device for p in used(look)})
    if not devices:
        raise MissingError("no RDMA network card", remedy="see net.state")
    bad = []
    versions: dict[str, list[str]] = {}
    for device in devices:
        board = (look.probe.read(f"{ROOT}/{device}/board_id") or "").strip()
        firmware = (look.probe.read(f"{ROOT}/{device}/fw_ver") or "").strip()
        versions.setdefault(f"{board} {firmware}", []).append(device)
        at = f"{ROOT}/{device}/device"
        now, most = (number(look.probe.read(f"{at}/{n}_link_width")) for n in ("current", "max"))
        if now and most and now < most:
            bad.append(
                problem(
                    "fail",
                    device,
                    f"PCIe x{now:.0f} instead of x{most:.0f}",
                    action="evict",
                    remedy="reseat the card or its riser, then replace it",
                    measured=now,
                    expected=most,
                    unit="lanes",
                )
            )
            continue
        speed, top = (number(look.probe.read(f"{at}/{n}_link_speed")) for n in ("current", "max"))
        if speed and top and speed < top:
            bad.append(
                problem(
                    "fail",
                    device,
                    f"PCIe at {speed:g} GT/s instead of {top:g}",
                    action="fix",
                    remedy="set the slot's speed in the BIOS, else reseat the card",
                    measured=speed,
                    expected=top,
                    unit="GT/s",
                )
            )
    if len(versions) > 1:
        few = min(versions.values(), key=len)
        shown = "; ".join(f"{v.strip()} on {len(d)}" for v, d in versions.items())
        bad.append(
            problem(
                "warn",
                few[0],
                f"different firmware: {shown}",
                action="fix",
                remedy="flash one version to all cards",
            )
        )
    return settle(bad, f"{len(devices)} cards alike", measured=len(devices))


def near(look: Look, pci: str) -> str:
    """The NUMA node of a PCI device, as text; empty if unknown."""
    return (look.probe.read(f"/sys/bus/pci/devices/{normal_pci(pci)}/numa_node") or "").strip()
