"""The one form of an event, simulated or measured, and the list of names it may have.

`diagnose` cannot tell a simulated run from a real one. A name that is not in NAMES is an error
where it is written, so that this list stays the dictionary of everything a run can say.
"""

from typing import Annotated, Literal

from msgspec import field

from engine.spec.base import Noun, doc

VERSION = 1

OLDER = ".1"
"""What is added to the name of an event file that has grown too large; it is read before the new
one of its rank."""

Kind = Literal["span", "instant", "value", "open"]
Attr = str | int | float | bool | None


class Event(Noun, frozen=True, kw_only=True):
    """One line of a rank's event file."""

    v: Annotated[int, doc("schema version")] = VERSION
    rank: Annotated[int, doc("global rank; -1 is the driver")]
    seq: Annotated[int, doc("position in this rank's file")]
    step: Annotated[
        int, doc("optimizer step counted from 1, as in the metrics; -1 outside the loop")
    ] = -1
    kind: Annotated[Kind, doc("span: has a duration; open: was still running at a dump")]
    name: Annotated[str, doc("one of the names of this schema")]
    stream: Annotated[str, doc("lane: compute, pp_f, pp_b, dp_gather, dp_reduce, tp, host")] = (
        "host"
    )
    t_ns: Annotated[int, doc("start on the rank's monotonic clock")]
    dur_ns: Annotated[int, doc("length of a span, age of an open one")] = 0
    attrs: Annotated[dict[str, Attr], doc("what belongs to the name, see the table")] = field(
        default_factory=dict
    )


class Name(Noun, frozen=True, kw_only=True):
    """What a name means and which attributes it must carry."""

    kind: Kind
    meaning: str
    attrs: tuple[str, ...] = ()


def _action(meaning: str, *more: str) -> Name:
    return Name(kind="span", meaning=meaning, attrs=("chunk", *more))


NAMES: dict[str, Name] = {
    "clock": Name(
        kind="instant",
        meaning="first line: ties the monotonic clock to wall time and names the rank's place",
        attrs=("wall_ns", "world", "tp", "pp", "dp", "tp_index", "pp_index", "dp_index"),
    ),
    "start": Name(
        kind="span", meaning="before the first step: meet, build or resume", attrs=("phase",)
    ),
    "finish": Name(kind="span", meaning="after the last step: until all saves are durable"),
    "step": Name(kind="span", meaning="one optimizer step, data to update"),
    "data": Name(kind="span", meaning="waiting for the next batch"),
    "forward": _action("forward of a micro-batch through a chunk", "microbatch"),
    "backward": _action("backward of a micro-batch through a chunk", "microbatch"),
    "backward_input": _action("backward, gradient of the input only", "microbatch"),
    "backward_weight": _action("backward, gradient of the weights only", "microbatch"),
    "send_f": _action("activation to the next chunk's stage", "microbatch"),
    "recv_f": _action("activation from the previous chunk's stage", "microbatch"),
    "send_b": _action("gradient to the previous chunk's stage", "microbatch"),
    "recv_b": _action("gradient from the next chunk's stage", "microbatch"),
    "unshard": _action("gather of a chunk's parameters over dp"),
    "reduce_grad": _action("reduction of a chunk's gradients over dp"),
    "wait": Name(
        kind="span",
        meaning="compute stood still for a communication: this is what exposed means",
        attrs=("on",),
    ),
    "tp_comm": Name(kind="span", meaning="tensor-parallel collective", attrs=("op", "bytes")),
    "tied": Name(kind="span", meaning="sum of the tied embedding's gradient over two stages"),
    "clip": Name(kind="span", meaning="global gradient norm and clipping"),
    "optimizer": Name(kind="span", meaning="update of this rank's shard"),
    "eval": Name(kind="span", meaning="validation"),
    "sdc": Name(kind="span", meaning="replicas compute the same and compare"),
    "checkpoint": Name(kind="span", meaning="training stood still for a checkpoint"),
    "gc": Name(kind="span", meaning="Python garbage collection", attrs=("generation",)),
    "loss": Name(kind="value", meaning="mean loss of the step", attrs=("value",)),
    "error": Name(kind="instant", meaning="this rank failed", attrs=("what", "type")),
    "dropped": Name(kind="value", meaning="events lost under pressure", attrs=("value",)),
    "end": Name(kind="instant", meaning="last line of a rank that ended in order"),
}


ASIDE = ("eval", "sdc")
"""Spans that are no training: what runs within one counts as it, whatever it is called."""


def check(event: Event) -> str | None:
    """What is wrong with an event, or None."""
    if event.v != VERSION:
        return f"schema version {event.v}, this program reads {VERSION}"
    name = NAMES.get(event.name)
    if name is None:
        return f"unknown event name {event.name!r}"
    if event.kind not in (name.kind, "open"):
        return f"{event.name} is a {name.kind}, not a {event.kind}"
    missing = [key for key in name.attrs if key not in event.attrs]
    if missing and event.kind != "open":
        return f"{event.name} lacks {', '.join(missing)}"
    return None
