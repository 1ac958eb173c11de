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
        self._count = torch.zeros((), dtype=torch.float32, device=master.device)

    def step(self, grad: Tensor, *, lr: float, update: int, scale: float = 1.0) -> None:
        """Apply update number `update` (from 0) with `scale` times the reduced gradient."""
        if self._kernels is not None:
            self._native_step(grad, lr, update, scale)
        else:
            self._torch_step(grad, lr, update, scale)

    def _torch_step(self, grad: Tensor, lr: float, update: int, scale: float) -> None:
        """The kernel of torch.optim.AdamW(fused=True), without the class around it.

        That class imports torch's compiler, 1.2 s at every start of a rank.
        """
        spec = self.spec
        if scale != 1.0:
            grad.mul_(scale)
        self._count.fill_(update + 1)
        whole = (self.master, grad, *(self.state[slot] for slot in self.slots))
        for begin, end, decay in self._cuts:
            weights, slope, mean, square = ([tensor[begin:end]] for tensor in whole)
            torch._fused_adamw_(
                weights, slope, mean, square, [], [self._count], lr=lr, beta1=spec.beta1,
                beta2=spec.beta2, weight_decay=spec.weight_decay if decay else 0.0, eps=spec.eps,
                amsgrad=False, maximize=False,
            )  # fmt: skip

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
