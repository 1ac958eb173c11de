"""The parts of a step: one literal list, and which part an event belongs to.

Order is the order in which they are printed: useful work, exposed communication by axis, the
rest.
"""

from collections.abc import Mapping

PARTS = (
    "forward", "backward", "wait_pp", "wait_dp", "wait_tp", "wait_other", "data", "clip",
    "optimizer", "tied", "eval", "sdc", "checkpoint", "gc", "other",
)  # fmt: skip
"""Every second of a step is in exactly one of these."""

OWN = ("forward", "backward", "data", "optimizer")
"""Parts that a rank does by itself: only these are compared between ranks."""

COMPUTE = ("forward", "backward")

LABELS = {
    "forward": "forward",
    "backward": "backward",
    "wait_pp": "pipeline (bubble and transfers)",
    "wait_dp": "exposed data parallel",
    "wait_tp": "tensor parallel",
    "wait_other": "other waits",
    "data": "data",
    "clip": "gradient norm and clipping",
    "optimizer": "optimizer",
    "tied": "tied embedding",
    "eval": "validation",
    "sdc": "comparison of replicas",
    "checkpoint": "checkpoint stall",
    "gc": "garbage collection",
    "other": "between the spans",
}

DIRECT = {
    "forward": "forward", "backward": "backward", "backward_input": "backward",
    "backward_weight": "backward", "tp_comm": "wait_tp", "data": "data", "clip": "clip",
    "optimizer": "optimizer", "tied": "tied", "eval": "eval", "sdc": "sdc",
    "checkpoint": "checkpoint", "gc": "gc", "unshard": "wait_dp", "reduce_grad": "wait_dp",
    "send_f": "wait_pp", "recv_f": "wait_pp", "send_b": "wait_pp", "recv_b": "wait_pp",
}  # fmt: skip
"""Event name -> part, where the name alone decides."""

_AXIS = {"pp": "wait_pp", "dp": "wait_dp", "tp": "wait_tp"}


def part_of(name: str, attrs: Mapping[str, object]) -> str:
    """The part of a span; a wait goes by the first two letters of what it waits on."""
    if name == "wait":
        return _AXIS.get(str(attrs.get("on", ""))[:2], "wait_other")
    return DIRECT.get(name, "other")
