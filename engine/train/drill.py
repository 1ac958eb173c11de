"""Faults to rehearse, as one noun and its text form; torch-free, so that the driver knows it too.

    crash:rank=3@step=20            nan:rank=1@step=8,times=2
    slow:rank=2,share=0.5@step=10   node-kill:node=1@step=20,after=0.3

Some are done by the rank itself (rehearse.py), the rest by its executor or the driver.
"""

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from engine.errors import RecipeError
from engine.spec.base import Count, NonNegative, Noun, Size

InRank = Literal[
    "crash", "segv", "exit0", "exit", "exception", "nan", "oom", "hang", "gil", "hang-start",
    "bug",
]  # fmt: skip
OnNode = Literal["kill", "stop", "slow", "nursery-kill", "node-kill", "node-stop", "clock"]
OnJob = Literal["redis-kill", "redis-stop", "redis-flap", "driver-kill", "torn-checkpoint"]
Kind = InRank | OnNode | OnJob

ABOUT: dict[str, str] = {
    "crash": "the rank aborts",
    "segv": "the rank reads where no memory is",
    "exit0": "the rank ends early as if all were well",
    "exit": "the rank ends with code 1 and no word",
    "exception": "the rank raises, once",
    "bug": "every rank raises at that step, always: a fault of the program",
    "nan": "the loss of the step is not a number",
    "oom": "the rank asks for more memory than it may have",
    "hang": "the rank sleeps in the step",
    "gil": "the rank sleeps and holds the interpreter",
    "hang-start": "the rank sleeps before it joins the others",
    "kill": "SIGKILL, as the kernel does when memory runs out",
    "stop": "SIGSTOP",
    "slow": "the rank gets only `share` of the processor's time",
    "nursery-kill": "the process that forks ranks is killed",
    "node-kill": "the executor and all its processes are killed: the node is gone",
    "node-stop": "the executor and all its processes are stopped: the node is silent",
    "clock": "the node's wall clock is off by an hour",
    "redis-kill": "the job's Redis is killed",
    "redis-stop": "the job's Redis does not answer for 20 s",
    "redis-flap": "the job's Redis does not answer for 1 s",
    "driver-kill": "the driver is killed",
    "torn-checkpoint": "the newest checkpoint is cut short, then a rank is killed",
}
_MOST = 16


class Fault(Noun, frozen=True, kw_only=True):
    """One fault, and when it comes."""

    kind: str
    rank: Size = 0
    node: Size = 0
    """For faults of a node: its place among the job's nodes."""
    step: Size = 2
    """Comes when so many steps have ended."""
    after: NonNegative = 0.0
    """... and so many seconds later."""
    times: Count = 1
    """How often it comes."""
    share: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.5

    @property
    def is_in_rank(self) -> bool:
        """Whether the rank does it to itself."""
        return self.kind in get_args(InRank)

    @property
    def is_of_node(self) -> bool:
        """Whether it hits a node as a whole."""
        return self.kind in ("node-kill", "node-stop", "clock")

    def text(self) -> str:
        """As it is written on a command line; parses back to the same."""
        place = f"node={self.node}" if self.is_of_node else f"rank={self.rank}"
        more = f",after={self.after:g}" if self.after else ""
        more += f",times={self.times}" if self.times > 1 else ""
        more += f",share={self.share:g}" if self.kind == "slow" else ""
        return f"{self.kind}:{place}@step={self.step}{more}"


def parse_fault(text: str) -> Fault:
    """`KIND:rank=R@step=N`; every part but the kind has a default. RecipeError if it is none."""
    kind, _, rest = text.partition(":") if ":" in text else text.partition("@")
    values: dict[str, object] = {"kind": kind}
    for part in rest.replace("@", ",").split(","):
        if part:
            key, _, value = part.partition("=")
            values[key] = value
    try:
        if kind not in ABOUT:
            raise msgspec.ValidationError(f"there is no fault `{kind}`")
        return msgspec.convert(values, Fault, strict=False)
    except msgspec.ValidationError as error:
        raise RecipeError(
            f"--drill {text}: {error}",
            remedy="write it as KIND:rank=R@step=N with a kind of: " + ", ".join(ABOUT),
        ) from None


def parse_faults(texts: list[str]) -> tuple[Fault, ...]:
    """All faults of a rehearsal; at most sixteen."""
    if len(texts) > _MOST:
        raise RecipeError(f"{len(texts)} drills at once", remedy=f"give at most {_MOST}")
    return tuple(parse_fault(text) for text in texts)
