"""AdamW on one flat shard: the native or torch's own fused kernel over a few runs of the shard.

A run is a stretch with or without weight decay. Moments are flat tensors of the shard's length, so
a checkpoint can take any part of them.
"""

from typing import Literal

import torch
from torch import Tensor

from engine.ops.adamw import Moment, Slots, adamw_
from engine.ops.native import Kernels
from engine.spec.recipe import OptimSpec


class ShardAdamW:
    """Adam with decoupled decay (arXiv:1711.05101) of `master`, a 1-D tensor updated in place."""

    slots: tuple[Literal["exp_avg", "exp_avg_sq"], ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, spec: OptimSpec, master: Tensor, decayed: list[tuple[int, int]],
        *, kernels: Kernels | None = None,
    ) -> None:  # fmt: skip
        self.master, self.spec = master, spec
        self.state = {slot: torch.zeros_like(master) for slot in self.slots}
        self._kernels = kernels if kernels is not None and kernels.fit(master) else None
        self._cuts = _cut(decayed, master.numel())
        self._steps: list[Tensor] = []
        self._runs: list[tuple[torch.nn.Parameter, slice]] = []
        groups = []
        for begin, end, decay in self._cuts if self._kernels is None else []:
            part = slice(begin, end)
            run = torch.nn.Parameter(master[part], requires_grad=False)
            self._runs.append((run, part))
            groups.append({"params": [run], "weight_decay": spec.weight_decay if decay else 0.0})
        self._torch = None
        if groups:
            self._torch = torch.optim.AdamW(
                groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=True
            )
            for run, part in self._runs:
                moments = {slot: self.state[slot][part] for slot in self.slots}
                count = torch.zeros((), dtype=torch.float32, device=master.device)
                self._torch.state[run] = {"step": count, **moments}
                self._steps.append(count)

    def step(self, grad: Tensor, *, lr: float, update: int, scale: float = 1.0) -> None:
        """Apply update number `update` (from 0) with `scale` times the reduced gradient."""
        if self._kernels is not None:
            self._native_step(grad, lr, update, scale)
            return
        if self._torch is None:
            return
        if scale != 1.0:
            grad.mul_(scale)
        for group in self._torch.param_groups:
            group["lr"] = lr
        for count in self._steps:
            count.fill_(update)
        for run, part in self._runs:
            run.grad = grad[part]
        self._torch.step()
        for run, _ in self._runs:
            run.grad = None

    def _native_step(self, grad: Tensor, lr: float, update: int, scale: float) -> None:
        spec = self.spec
        moment = Moment(spec.beta1, spec.beta2, spec.eps, update, scale)
        whole = (self.master, grad, *(self.state[slot] for slot in self.slots))
        for begin, end, decay in self._cuts:
            slots = Slots(*(tensor[begin:end] for tensor in whole))
            weight_decay = spec.weight_decay if decay else 0.0
            adamw_(slots, moment, lr=lr, decay=weight_decay, kernels=self._kernels)


def _cut(decayed: list[tuple[int, int]], numel: int) -> list[tuple[int, int, bool]]:
    """The whole range as runs with and without decay, in order, empty ones left out."""
    runs, position = [], 0
    for begin, end in decayed:
        runs += [(position, begin, False), (begin, end, True)]
        position = end
    runs.append((position, numel, False))
    return [run for run in runs if run[0] < run[1]]
