"""One unit of work of one stage: the alphabet in which schedules are written.

Vocabulary and text form are those of `torch.distributed.pipelining`: `5F2` is the forward of
micro-batch 2 through chunk 5, `5UNSHARD` gathers chunk 5's parameters. A chunk is one of the pp *
vpp pieces of the model, numbered in forward order (torch calls this number the stage index).
"""

import re
from enum import Enum
from typing import NamedTuple


class Kind(str, Enum):
    """What an action does; the value is its text form."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    REDUCE_GRAD = "REDUCE_GRAD"

    def __str__(self) -> str:
        """The text form."""
        return self.value


COMPUTE = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})
"""Kinds that occupy the compute lane."""

SENDS = frozenset({Kind.SEND_F, Kind.SEND_B})
RECVS = frozenset({Kind.RECV_F, Kind.RECV_B})
PER_CHUNK = frozenset({Kind.UNSHARD, Kind.REDUCE_GRAD})
"""Kinds that concern a chunk as a whole and carry no micro-batch."""

_TEXT = re.compile(
    r"(?P<chunk>\d{1,9})(?P<kind>SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|REDUCE_GRAD|F|B|I|W)"
    r"(?P<microbatch>\d{0,9})",
    re.ASCII,
)


class Action(NamedTuple):
    """Kind, chunk (0 .. pp*vpp-1 in forward order) and micro-batch (None for whole-chunk kinds)."""

    kind: Kind
    chunk: int
    microbatch: int | None = None

    def __str__(self) -> str:
        """`5F2`, `5SEND_F2`, `5UNSHARD`; the inverse of `parse`."""
        return f"{self.chunk}{self.kind}{'' if self.microbatch is None else self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read the text form; ValueError names what is wrong."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not an action: {text!r} (expected e.g. 5F2 or 0UNSHARD)")
        kind = Kind(match["kind"])
        if (match["microbatch"] == "") != (kind in PER_CHUNK):
            need = "takes no" if kind in PER_CHUNK else "needs a"
            raise ValueError(f"not an action: {text!r} ({kind.name} {need} micro-batch number)")
        number = int(match["microbatch"]) if match["microbatch"] else None
        return cls(kind, int(match["chunk"]), number)
