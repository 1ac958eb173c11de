"""How a run is kept alive: nodes and spares, what counts as a fault, what is done then."""

from typing import Annotated, Literal

from msgspec import Meta

from engine.spec.base import Count, NonNegative, Noun, Positive, Size, doc


class JobSpec(Noun, frozen=True, kw_only=True):
    """What the driver watches for and what it may do (paper 4.1)."""

    nodes: Annotated[
        Count, doc("nodes that carry ranks; on one machine each is an executor of its own")
    ] = 1
    spares: Annotated[Size, doc("nodes kept warm to replace one that is evicted")] = 0
    without_spare: Annotated[
        Literal["shrink", "wait", "stop"],
        doc("no node to replace one: fewer replicas, wait for one, or end the run"),
    ] = "shrink"
    wait_s: Annotated[NonNegative, doc("longest wait for a node")] = 600.0
    restarts: Annotated[Size, doc("restarts of one invocation before it gives up")] = 20
    repeats: Annotated[
        Count, doc("times the same fault may come at the same step before the run is ended")
    ] = 3
    check: Annotated[
        Literal["none", "passive", "light"], doc("self-check of all nodes before a restart")
    ] = "passive"
    bad_numbers: Annotated[
        Literal["rollback", "skip", "stop"],
        doc("loss or gradient not finite: do the step again from a checkpoint (and leave its "
            "batch out if it fails again), leave the batch out at once, or end the run"),
    ] = "rollback"  # fmt: skip
    spike: Annotated[
        NonNegative, doc("a loss this many times the recent median counts as bad; 0 = off")
    ] = 0.0
    sdc_every: Annotated[
        Size,
        doc("steps between checks for silent data corruption, in which replicas compute the same "
            "and compare; then one comes before every save too; 0 = never"),
    ] = 0  # fmt: skip
    slow: Annotated[
        Literal["tell", "evict"], doc("a rank slower than its peers: say so, or replace its node")
    ] = "tell"
    beat_s: Annotated[Positive, doc("seconds between heartbeats of a node")] = 0.5
    silent_s: Annotated[Positive, doc("a node not heard for longer is under suspicion")] = 2.5
    lost_s: Annotated[
        Positive, doc("one not heard for longer is lost; a link may be away for three seconds")
    ] = 6.0
    grace_s: Annotated[
        NonNegative, doc("a silent node whose peers still make steps is waited for so long")
    ] = 30.0
    hang_s: Annotated[Positive, doc("a step is never called hung before this")] = 4.5
    hang_steps: Annotated[Positive, doc("nor before so many of its usual lengths")] = 3.0
    start_s: Annotated[Positive, doc("longest time from the start of ranks to the first step")] = (
        120.0
    )
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)], doc("port of the OpenMetrics page; 0 = none")
    ] = 0
