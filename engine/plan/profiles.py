"""The constants of the cost model, each with a physical meaning, and the systems that run on it.

`Physics` holds properties of hardware and libraries, `SystemProfile` what a training framework
adds: which communication it hides, and its overhead per micro-batch (slope) and per step
(intercept). Values are fitted by `bench/plan/fit.py` on public runs and stored in `fitted.json`;
see docs/explanation/cost-model.md.
"""

import re
from functools import cache
from importlib import resources
from typing import Annotated, Literal

import msgspec

from engine.errors import RecipeError
from engine.spec.base import NonNegative, Noun, Positive, Ratio, doc


class Physics(Noun, frozen=True, kw_only=True):
    """Hardware and library constants shared by every system."""

    wave_share: Annotated[Ratio, doc("1: whole waves of tiles, 0: perfectly balanced")] = 0.6
    branch_fill: Annotated[
        Ratio, doc("share of wave tails that the other branch of a parallel block fills")
    ] = 0.5
    k_fill: Annotated[NonNegative, doc("extra k of a tile's prologue and epilogue")] = 200.0
    align_64: Annotated[Ratio, doc("speed of a GEMM side that is a multiple of 8, not of 64")] = 0.9
    align_8: Annotated[Ratio, doc("speed of a GEMM side that is not a multiple of 8")] = 0.6
    hbm: Annotated[Ratio, doc("share of peak memory bandwidth that element-wise kernels reach")] = (
        0.8
    )
    passes: Annotated[Positive, doc("memory traffic of unfused element-wise kernels / fused")] = 1.7
    scores_bytes: Annotated[Positive, doc("bytes moved per attention score, unfused forward")] = (
        14.0
    )
    scores_rate: Annotated[Ratio, doc("share of peak of batched score GEMMs, unfused")] = 0.5
    flash1: Annotated[Positive, doc("speed of FlashAttention-1 / its table")] = 1.0
    triton: Annotated[Positive, doc("speed of its port to Triton / its table")] = 1.0
    flash2: Annotated[Positive, doc("speed of FlashAttention-2 / its table")] = 1.0
    cudnn: Annotated[Positive, doc("speed of fused attention of cuDNN / its table")] = 1.0
    launch_s: Annotated[NonNegative, doc("host time to issue one kernel")] = 6e-6
    collective_host_s: Annotated[NonNegative, doc("host time to issue one collective")] = 30e-6
    intra: Annotated[Ratio, doc("bus bandwidth of large collectives in a node / link rate")] = 0.77
    inter: Annotated[Ratio, doc("bus bandwidth across nodes / network rate")] = 0.64
    half_intra_bytes: Annotated[NonNegative, doc("message that gets half the bandwidth, node")] = (
        6e6
    )
    half_inter_bytes: Annotated[NonNegative, doc("message that gets half the bandwidth, net")] = 3e7
    interference: Annotated[Ratio, doc("compute slowed per second of hidden communication")] = 0.15
    update_bytes: Annotated[Positive, doc("memory traffic of Adam per owned parameter")] = 30.0
    spread: Annotated[NonNegative, doc("relative spread of node speed; E[max] slows")] = 0.006
    loss_bytes: Annotated[Positive, doc("bytes moved per logit, forward of the loss")] = 16.0


class SystemProfile(Noun, frozen=True, kw_only=True):
    """A training system: what it hides and what it adds."""

    name: str
    slope: Annotated[Positive, doc("factor on GPU time of every micro-batch")] = 1.0
    intercept_s: Annotated[NonNegative, doc("added to every step: host, data, logging")] = 0.1
    message_s: Annotated[NonNegative, doc("host time around each pipeline exchange")] = 0.0
    overlap_tp: bool = False
    overlap_pp: bool = False
    overlap_dp: bool = False
    tp_hidden: Annotated[Ratio, doc("share of TP traffic hidden when it overlaps")] = 0.6
    async_backward: Annotated[Ratio, doc("share of backward TP traffic behind dW GEMMs")] = 0.6
    dp_hidden: Annotated[Ratio, doc("share of DP traffic hidden when it overlaps")] = 0.85
    grad_bytes: Annotated[Positive, doc("bytes of a gradient element on the wire")] = 4.0
    net: Annotated[Positive, doc("network rate its parameter traffic reaches / physics.inter")] = (
        1.0
    )
    owner_s: Annotated[NonNegative, doc("per rank that shares an update by broadcasts")] = 0.0
    cp_balance: Annotated[Ratio, doc("1: causal work is dealt evenly to context ranks")] = 1.0
    slow_hosts: Annotated[Ratio, doc("share of hosts that are slow (paper 6.3: 0.005)")] = 0.0
    slow_by: Annotated[NonNegative, doc("how much longer a slow host takes (paper 6.3)")] = 0.1
    log_error: Annotated[NonNegative, doc("spread of log(predicted / measured), 0 = Fitted's")] = (
        0.0
    )
    host_serial: Annotated[Ratio, doc("share of launch time that the device waits for")] = 0.0
    held_grad_bytes: Annotated[Positive, doc("gradient buffers of a rank, bytes a parameter")] = 4.0
    logit_bytes: Annotated[Positive, doc("bytes held per logit: copies, softmax, gradient")] = 10.0
    reserve_bytes: Annotated[NonNegative, doc("context, communicators, workspace")] = 1.6e9
    fragments: Annotated[Positive, doc("reserved over allocated memory of the allocator")] = 1.05
    keeps_outputs: Annotated[bool, doc("a stage's output stays until its backward")] = False
    fused: Annotated[bool, doc("norm, activation, dropout in single kernels")] = False
    dynamic_scales: Annotated[bool, doc("8-bit scales from the tensor at hand, not the last")] = (
        False
    )
    per_op_recompute: Annotated[bool, doc("selective recomputation repeats GEMMs, gathers")] = False
    schedules: Annotated[
        tuple[Literal["auto", "gpipe", "zero-bubble"], ...], doc("pipeline orders it can run")
    ] = ("auto",)
    graphs: Annotated[Ratio, doc("share of launches that CUDA graphs or compilation save")] = 0.0


class Fitted(Noun, frozen=True, kw_only=True):
    """The content of fitted.json."""

    physics: Physics
    devices: Annotated[dict[str, float], doc("GEMM speed by device and precision, 1 = data sheet")]
    profiles: dict[str, SystemProfile]
    log_error: Annotated[float, doc("spread of log(predicted / measured), rows left out")] = 0.1

    def speed_of(self, device: str, precision: str) -> float:
        """GEMM speed of a device and precision: its own, or the mean of those most like it."""
        kind = _family(precision)
        own = self.devices.get(f"{device}/{kind}") or self.devices.get(device)
        if own is not None:
            return own
        kin = [name for name in self.devices if _generation(name) == _generation(device)]
        for names in (kin, list(self.devices)):
            same = [self.devices[n] for n in names if n.endswith(f"/{kind}") or "/" not in n]
            if same:
                return sum(same) / len(same)
        return 1.0


def _generation(device: str) -> str:
    """Devices that share their matrix units: Ampere, Hopper, Blackwell."""
    found = re.match(r"G?(A|H|B)\d", device)
    return found[1] if found else device


def _family(precision: str) -> str:
    """fp16 runs at the speed of bf16."""
    return "bf16" if precision == "fp16" else precision


@cache
def fitted() -> Fitted:
    """The shipped constants (read once; the file is part of the package)."""
    text = resources.files("engine.plan").joinpath("fitted.json").read_bytes()
    return msgspec.json.decode(text, type=Fitted)


def profile(name: str) -> SystemProfile:
    """A profile by name; RecipeError lists the names there are."""
    known = fitted().profiles
    if name not in known:
        raise RecipeError(
            f"there is no system profile {name!r}",
            remedy=f"use one of {', '.join(sorted(known))}",
        )
    return known[name]
