"""AdamW on a flat run of parameters: one pass over parameter, gradient and both moments.

With g = grad * grad_scale and t = update + 1 (arXiv:1711.05101, bias corrected):
    m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
    p = p (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
Traffic: 7 elements a parameter (csrc/include/ms/optim.h), 28 bytes in fp32.
"""

from typing import NamedTuple

from torch import Tensor

from engine.ops.native import Kernels


class Moment(NamedTuple):
    """The numbers of one update that all parameters share."""

    beta1: float
    beta2: float
    eps: float
    update: int
    """Number of the update, from 0."""
    grad_scale: float = 1.0

    @property
    def c1(self) -> float:
        """Bias correction of the first moment."""
        return 1.0 - self.beta1 ** (self.update + 1)

    @property
    def c2(self) -> float:
        """Bias correction of the second moment."""
        return 1.0 - self.beta2 ** (self.update + 1)


class Slots(NamedTuple):
    """A run of parameters with its gradient and moments, all 1-D, contiguous, of one length."""

    param: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


def adamw_(
    slots: Slots, moment: Moment, *, lr: float, decay: float, kernels: Kernels | None = None
) -> None:
    """Update parameter and moments in place; the gradient is only read."""
    if kernels is None or not kernels.fit(slots.param):
        reference_adamw_(slots, moment, lr=lr, decay=decay)
        return
    kernels.ops.adamw(
        *slots, lr, moment.beta1, moment.beta2, moment.eps, decay, moment.c1, moment.c2,
        moment.grad_scale,
    )  # fmt: skip


def reference_adamw_(slots: Slots, moment: Moment, *, lr: float, decay: float) -> None:
    """The same, written for reading."""
    direction = move_moments_(slots, moment)
    slots.param.mul_(1.0 - lr * decay).sub_(direction, alpha=lr)


def move_moments_(slots: Slots, moment: Moment) -> Tensor:
    """Update both moments in place; returns (m / c1) / (sqrt(v / c2) + eps), a new tensor."""
    grad = slots.grad * moment.grad_scale
    slots.exp_avg.mul_(moment.beta1).add_(grad, alpha=1.0 - moment.beta1)
    slots.exp_avg_sq.mul_(moment.beta2).addcmul_(grad, grad, value=1.0 - moment.beta2)
    root = (slots.exp_avg_sq / moment.c2).sqrt_().add_(moment.eps)
    return (slots.exp_avg / moment.c1).div_(root)
