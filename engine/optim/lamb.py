"""LAMB on one flat shard, with the exact trust ratio of every tensor wherever its parts lie.

The variant, per logical tensor p with gradient g and update t = 1, 2, ... (arXiv:1904.00962,
algorithm 2, bias corrected as there):

    m = beta1 m + (1 - beta1) g                  v = beta2 v + (1 - beta2) g^2
    u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p
    p = p - lr ratio u,   ratio = |p| / |u|, and 1 where either norm is 0

The paper's scaling function phi is the identity. Tensors without weight decay (vectors: biases and
gains) keep ratio 1, as in the BERT code of the paper's authors: a bias starts at 0, where a ratio
would hold it. Norms are those before the update, over the whole tensor, not over this rank's part.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from engine.ops.adamw import Moment, Slots
from engine.ops.lamb import cut, lamb_apply_, lamb_moments_
from engine.ops.native import Kernels
from engine.spec.recipe import OptimSpec


class Part(NamedTuple):
    """The run of a shard, maybe empty, that holds its part of one logical tensor."""

    begin: int
    end: int
    decay: bool


class ShardLamb:
    """LAMB for `master`, a 1-D tensor updated in place.

    parts name the same tensors in the same order on every rank that owns some of them. total sums a
    [tensors, 2] float64 tensor of squares over the owners, each element once, in place, and returns
    it; it is called once an update.
    """

    slots: tuple[Literal["exp_avg", "exp_avg_sq"], ...] = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, spec: OptimSpec, master: Tensor, parts: list[Part],
        total: Callable[[Tensor], Tensor], *, kernels: Kernels | None = None,
    ) -> None:  # fmt: skip
        self.master, self.spec = master, spec
        self.state = {slot: torch.zeros_like(master) for slot in self.slots}
        self._total, self._kernels = total, kernels
        decay = [spec.weight_decay if part.decay else 0.0 for part in parts]
        self._pieces = cut([(part.begin, part.end) for part in parts], decay, master.device)
        self._scaled = torch.tensor([part.decay for part in parts], device=master.device)

    def step(self, grad: Tensor, *, lr: float, update: int, scale: float = 1.0) -> None:
        """Apply update number `update` (from 0) with `scale` times the reduced gradient.

        The gradient's place is used for the update direction.
        """
        spec = self.spec
        slots = Slots(self.master, grad, self.state["exp_avg"], self.state["exp_avg_sq"])
        moment = Moment(spec.beta1, spec.beta2, spec.eps, update, scale)
        squares = lamb_moments_(slots, moment, self._pieces, kernels=self._kernels)
        ratio = trust_ratio(self._total(squares), self._scaled)
        lamb_apply_(slots, self._pieces, ratio, lr=lr, kernels=self._kernels)


def trust_ratio(squares: Tensor, scaled: Tensor) -> Tensor:
    """|p| / |u| of each tensor from [tensors, 2] sums of squares; 1 where `scaled` is False."""
    of_param, of_update = squares.sqrt().unbind(1)
    usable = scaled & (of_param > 0) & (of_update > 0)
    return torch.where(usable, of_param / of_update, torch.ones_like(of_param))
