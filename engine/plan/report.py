"""What `plan` answers with: candidates, refusals, and the report that holds them."""

from typing import Annotated

import msgspec

from engine.plan.setup import PlanLayout
from engine.spec.base import Noun, doc
from engine.spec.cluster import ClusterSpec
from engine.spec.model import ModelSpec

CONVENTION = (
    "MFU counts model FLOPs 6N + 12 layers h s per token (full s*s attention, logits included, "
    "no recomputation) against the dense data-sheet peak of all devices"
)
"""The FLOP convention behind every MFU that plan prints: formula F of docs/explanation/paper-
notes.md."""


class Exposed(Noun, frozen=True, kw_only=True):
    """Communication that no computation hides, seconds a step."""

    tp: float = 0.0
    pp: float = 0.0
    dp: float = 0.0


class MemoryParts(Noun, frozen=True, kw_only=True):
    """Bytes on the tightest stage."""

    stage: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    reserve: float


class Share(Noun, frozen=True, kw_only=True):
    """One step of the way from the peak to the MFU."""

    cause: str
    seconds: Annotated[float, doc("of the step")]
    points: Annotated[float, doc("of MFU lost, 0..1")]


class Candidate(Noun, frozen=True, kw_only=True):
    """A layout with its predicted cost."""

    layout: PlanLayout
    microbatches: int
    step_s: float
    step_p10_s: float
    step_p90_s: float
    mfu: Annotated[float, doc("0..1, full attention credited")]
    mfu_window: Annotated[float, doc("0..1, sliding windows credited at their cost")]
    hfu: Annotated[float, doc("0..1, recomputed work counted")]
    tokens_per_s: float
    bubble: Annotated[float, doc("idle time of a stage over its busy time, no communication")]
    exposed: Exposed
    memory_bytes: float
    memory: MemoryParts
    bound_s: Annotated[float, doc("proven lower bound of step_s")]
    pareto: Annotated[bool, doc("no other candidate is both faster and smaller")] = False
    switches: Annotated[
        dict[str, bool], doc("switches of the system that differ from its own (--exhaustive)")
    ] = msgspec.field(default_factory=dict)
    obstacle: Annotated[str, doc("why `msctl train` cannot run it; empty if it can")] = ""


class Refusal(Noun, frozen=True, kw_only=True):
    """Why layouts were not considered: one rule, how many fell to it, and an example."""

    rule: str
    count: int
    message: str


class Sensitivity(Noun, frozen=True, kw_only=True):
    """What one change would do to the best candidate."""

    change: str
    step_s: float
    points: Annotated[float, doc("change of MFU, 0..1")]


class Budget(Noun, frozen=True, kw_only=True):
    """A training run with the best candidate."""

    tokens: float
    days: float
    gpu_hours: float
    price_per_gpu_hour: float
    cost: float


class PlanReport(Noun, frozen=True, kw_only=True):
    """The answer of `msctl plan`."""

    model: ModelSpec
    params: float
    cluster: ClusterSpec
    gpus: int
    global_batch: int
    precision: str
    system: str
    convention: str = CONVENTION
    assumptions: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    considered: Annotated[int, doc("layouts that passed the rules and were bounded")] = 0
    simulated: Annotated[int, doc("layouts whose schedule was simulated")] = 0
    waterfall: tuple[Share, ...] = ()
    sensitivity: tuple[Sensitivity, ...] = ()
    budget: Budget | None = None
