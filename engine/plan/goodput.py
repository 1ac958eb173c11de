"""How much of the time a job trains: failures, detection, restart, checkpoints, spares (paper 4).

A renewal argument: between two failures lies the mean time M of the whole job; the checkpoint of
length C every tau seconds slows it by C/tau, a failure costs detection, restart and on average
tau/2 of work. The best tau is Young's sqrt(2 C M). Defaults are public figures, named beside each
field.
"""

import math
from typing import Annotated

from engine.errors import RecipeError
from engine.spec.base import Count, NonNegative, Noun, Positive, doc


class Failures(Noun, frozen=True, kw_only=True):
    """What goes wrong and how long each answer takes."""

    node_mtbf_h: Annotated[
        Positive, doc("hours between failures of one node; Llama 3: 419 in 54 days on 2,048 nodes")
    ] = 6330.0
    detect_s: Annotated[
        NonNegative, doc("until the failure is known and located; paper: < 600")
    ] = 600.0
    restart_s: Annotated[NonNegative, doc("evict, start, load; paper: back in 15 minutes")] = 300.0
    ckpt_stall_s: Annotated[
        NonNegative, doc("training stands still for a checkpoint; paper: several seconds")
    ] = 5.0
    ckpt_every_s: Annotated[NonNegative, doc("seconds between checkpoints; 0 = the best")] = 0.0
    repair_h: Annotated[Positive, doc("until an evicted node is back")] = 24.0


class Goodput(Noun, frozen=True, kw_only=True):
    """The share of wall time that becomes training, and why not all of it."""

    nodes: Count
    job_mtbf_s: Annotated[float, doc("mean time between failures of the whole job")]
    ckpt_every_s: Annotated[float, doc("used here")]
    best_ckpt_every_s: Annotated[float, doc("Young's sqrt(2 C M)")]
    effective: Annotated[float, doc("effective training time over total time, 0..1")]
    lost_to_ckpt: float
    lost_to_rework: float
    lost_to_recovery: float
    failures_per_day: float
    spares: Annotated[int, doc("nodes in reserve so that all are in repair in 1 % of time at most")]


def goodput(nodes: int, failures: Failures) -> Goodput:
    """Effective training time of a job on `nodes` nodes."""
    mean_s = failures.node_mtbf_h * 3600.0 / nodes
    stall = failures.ckpt_stall_s
    best = math.sqrt(2.0 * max(stall, 1e-3) * mean_s)
    every = failures.ckpt_every_s or best
    if every <= 0:
        raise RecipeError("checkpoints every 0 s", remedy="give an interval above zero")
    down = failures.detect_s + failures.restart_s
    cycle = mean_s + down
    running = mean_s / cycle
    ckpt = running * stall / (every + stall)
    rework = min(every / 2.0, mean_s) / cycle
    effective = max(0.0, running - ckpt - rework)
    return Goodput(
        nodes=nodes, job_mtbf_s=mean_s, ckpt_every_s=every, best_ckpt_every_s=best,
        effective=effective, lost_to_ckpt=ckpt, lost_to_rework=rework,
        lost_to_recovery=down / cycle, failures_per_day=86400.0 / cycle,
        spares=spares(nodes, failures),
    )  # fmt: skip


def spares(nodes: int, failures: Failures, *, risk: float = 0.01) -> int:
    """Smallest reserve that is exhausted in at most `risk` of the time: a Poisson quantile."""
    mean = nodes * failures.repair_h / failures.node_mtbf_h
    term = total = math.exp(-mean)
    count = 0
    while total < 1.0 - risk and count < 100 * (1 + nodes):
        count += 1
        term *= mean / count
        total += term
    return count
