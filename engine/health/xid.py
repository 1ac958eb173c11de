"""What each error number of the GPU and NVSwitch drivers means for a node, and what to do.

`program` numbers are what a faulty kernel or an abort leaves behind: they are reported and evict
nobody. The rest speak of hardware, firmware or driver. Numbers that are not listed count as
unknown: a warning, so that a new driver's vocabulary is seen and does not drain a fleet.
"""

from typing import Literal, NamedTuple

from engine.health.kernel_log import Xid
from engine.health.result import Action, Status

Kind = Literal["hardware", "program", "event", "unknown"]


class Meaning(NamedTuple):
    """What an error number stands for."""

    kind: Kind
    text: str
    action: Action
    remedy: str

    @property
    def status(self) -> Status:
        """`hardware` fails a node; everything else is reported."""
        return "fail" if self.kind == "hardware" else "warn"


_RESET = "stop the job on this node and run `nvidia-smi --gpu-reset`, reboot if that is refused"
_REBOOT = "reboot the node; if it comes back, take the GPU out for a replacement"
_RMA = "take the node out and send the GPU back"
_LINK = "reset all GPUs of the node together; if it comes back, reseat or replace the board"
_PROGRAM = "look at the program first: it, not the node, usually causes this"
_DRAIN = "let the job end, then reset the GPU so that the spare row is used"

XIDS: dict[int, Meaning] = {
    13: Meaning("program", "a kernel made an illegal access or instruction", "watch", _PROGRAM),
    31: Meaning("program", "a kernel touched an unmapped address", "watch", _PROGRAM),
    32: Meaning("program", "a damaged command stream", "watch", _PROGRAM),
    38: Meaning("hardware", "the driver's firmware failed", "reset", _RESET),
    43: Meaning("program", "the GPU stopped a program's channel", "watch", _PROGRAM),
    45: Meaning("program", "a channel was cleaned up after an earlier error", "watch", _PROGRAM),
    48: Meaning("hardware", "a double-bit memory error", "reset", _RESET),
    61: Meaning("hardware", "an internal microcontroller hit a breakpoint", "reset", _RESET),
    62: Meaning("hardware", "an internal microcontroller halted", "reset", _RESET),
    63: Meaning("event", "a memory row was remapped to a spare", "watch", _DRAIN),
    64: Meaning("hardware", "a memory row could not be remapped", "rma", _RMA),
    66: Meaning("program", "an illegal access by a program", "watch", _PROGRAM),
    69: Meaning("program", "a kernel used an engine wrongly", "watch", _PROGRAM),
    74: Meaning("hardware", "an NVLink error", "reset", _LINK),
    79: Meaning("hardware", "the GPU fell off the bus", "reboot", _REBOOT),
    92: Meaning("hardware", "single-bit memory errors come too often", "rma", _RMA),
    94: Meaning("hardware", "a memory error, contained to one program", "reset", _RESET),
    95: Meaning("hardware", "a memory error that was not contained", "reset", _RESET),
    109: Meaning("hardware", "a context switch did not end", "reset", _RESET),
    110: Meaning("hardware", "a security fault of the GPU", "reboot", _REBOOT),
    119: Meaning("hardware", "the GPU's system processor did not answer", "reset", _RESET),
    120: Meaning("hardware", "the GPU's system processor failed", "reset", _RESET),
    121: Meaning("event", "a chip-to-chip link corrected errors", "watch", _DRAIN),
    123: Meaning("hardware", "the power management unit did not answer", "reset", _RESET),
    136: Meaning("hardware", "an NVLink could not be trained", "reset", _LINK),
    137: Meaning("program", "a remote GPU was accessed without right", "watch", _PROGRAM),
    140: Meaning("hardware", "a memory error that was not recovered", "reset", _RESET),
    143: Meaning("hardware", "the GPU failed to initialise", "reboot", _REBOOT),
    **{code: Meaning("hardware", "an NVLink error", "reset", _LINK) for code in range(144, 151)},
    155: Meaning("hardware", "an NVLink went down by itself", "reset", _LINK),
    156: Meaning("hardware", "a part of the GPU is being retired", "reset", _RESET),
    157: Meaning("hardware", "a part of the GPU could not be retired", "rma", _RMA),
    158: Meaning("hardware", "a fatal time-out inside the GPU", "reset", _RESET),
}  # fmt: skip
"""By Xid. Kinds and actions are this project's reading of the vendor's documentation."""

_RECOVERY: tuple[tuple[str, Action, str], ...] = (
    ("Node Reboot", "reboot", _REBOOT),
    ("Drain and Reset", "reset", _RESET),
    ("GPU Reset", "reset", _RESET),
    ("Drain P2P", "reset", _LINK),
)


def meaning(error: Xid) -> Meaning:
    """The meaning of an entry; for Xid 154 the driver itself names the recovery."""
    if error.switch >= 0:
        return _switch(error)
    if error.code == 154:
        now = error.text.rpartition(" to ")[2]  # `... changed from OLD to NEW`
        for words, action, remedy in _RECOVERY:
            if words in now:
                return Meaning("hardware", f"the driver asks for: {words}", action, remedy)
        return Meaning("event", "the driver withdrew its request for recovery", "none", "go on")
    return XIDS.get(error.code, _unknown(f"Xid {error.code}"))


def _switch(error: Xid) -> Meaning:
    if error.fatal:
        return Meaning("hardware", "a fatal NVSwitch error", "reset", _LINK)
    return Meaning("event", "an NVSwitch error that it recovered from", "watch",
                   "compare with other nodes; a switch that repeats it is going bad")  # fmt: skip


def _unknown(name: str) -> Meaning:
    return Meaning("unknown", f"{name} is not in the table", "watch",
                   "look the number up in the vendor's list for the installed driver")  # fmt: skip
