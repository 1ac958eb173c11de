"""Faults to rehearse, as one noun and its text form; torch-free, so that the driver knows it too.

    crash:rank=3@step=20            nan:rank=1@step=8,times=2
    slow:rank=2,share=0.5@step=10   node-kill:node=1@step=20,after=0.3

Some are done by the rank itself (rehearse.py), the rest by its executor or the driver.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from engine.ckpt.store import is_url
from engine.errors import RecipeError
from engine.spec.base import Count, NonNegative, Noun, Size
from engine.spec.recipe import Recipe

InRank = Literal[
    "crash", "segv", "exit0", "exit", "exception", "nan", "oom", "hang", "gil", "hang-start",
    "flip", "bug",
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
    "flip": "the rank computes one bit wrong from then on, until it is started anew",
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
_PARTS = {
    "rank": "a whole number from 0",
    "node": "a whole number from 0",
    "step": "a whole number from 0",
    "after": "a number of seconds from 0",
    "times": "a whole number from 1",
    "share": "a number between 0 and 1",
}
"""Parts of a fault's text, and what each must be."""


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
    if kind not in ABOUT:
        raise _no_fault(text, f"there is no fault `{kind}`")
    fault = Fault(kind=kind)
    for part in rest.replace("@", ",").split(","):
        if part:
            key, _, value = part.partition("=")
            fault = _with(fault, key, value, text)
    return fault


def _with(fault: Fault, key: str, value: str, text: str) -> Fault:
    """A fault with one more part of its text; RecipeError if it has no such part."""
    if key not in _PARTS:
        raise _no_fault(text, f"`{key}` is no part of a fault; parts are {', '.join(_PARTS)}")
    wrong_place = "rank" if fault.is_of_node else "node"
    if key == wrong_place:
        right = "node" if fault.is_of_node else "rank"
        raise _no_fault(text, f"{fault.kind} hits a {right}, so {key} = {value} means nothing")
    values = msgspec.structs.asdict(fault) | {key: value}
    try:
        made = msgspec.convert(values, Fault, strict=False)
    except msgspec.ValidationError:
        made = None
    if made is None or not math.isfinite(made.after):
        raise _no_fault(text, f"{key} = {value} is not {_PARTS[key]}")
    return made


def _no_fault(text: str, why: str) -> RecipeError:
    return RecipeError(
        f"--drill {text}: {why}",
        remedy="write it as KIND:rank=R@step=N with a kind of: " + ", ".join(ABOUT),
    )


def parse_faults(texts: list[str]) -> tuple[Fault, ...]:
    """All faults of a rehearsal; at most sixteen."""
    if len(texts) > _MOST:
        raise RecipeError(f"{len(texts)} drills at once", remedy=f"give at most {_MOST}")
    return tuple(parse_fault(text) for text in texts)


def check_faults(faults: Sequence[Fault], recipe: Recipe) -> None:
    """RecipeError for a fault that could never come in a run of this recipe."""
    world, nodes, last = recipe.layout.world_size, recipe.job.nodes, recipe.train.steps
    for fault in faults:
        what = remedy = ""
        if fault.is_of_node and fault.node >= nodes:
            what = f"there is no node {fault.node}; job.nodes = {nodes} makes {_numbers(nodes)}"
            remedy = f"name a node from 0 to {nodes - 1}, or set job.nodes higher"
        elif fault.rank >= world:
            what = f"there is no rank {fault.rank}; the layout makes {_numbers(world)}"
            remedy = f"name a rank from 0 to {world - 1}, or a larger layout"
        elif fault.step > last:
            what = f"step {fault.step} does not come; the run ends at train.steps = {last}"
            remedy = f"name a step up to {last}, or set train.steps higher"
        elif fault.kind.startswith("redis") and recipe.train.store != "redis":
            what = f"the run starts no Redis of its own (train.store = {recipe.train.store})"
            remedy = "add --set train.store=redis"
        elif fault.kind == "flip" and not recipe.job.sdc_every:
            what = "nobody would notice: replicas are not compared (job.sdc_every = 0)"
            remedy = "add e.g. --set job.sdc_every=10"
        elif fault.kind == "torn-checkpoint" and is_url(recipe.checkpoint.path):
            what = f"checkpoint.path = {recipe.checkpoint.path} is a URL, where no file can be cut"
            remedy = "rehearse this with a checkpoint.path in a folder"
        if what:
            raise RecipeError(f"--drill {fault.text()}: {what}", remedy=remedy)


def _numbers(count: int) -> str:
    return "number 0 only" if count == 1 else f"0 to {count - 1}"
