"""Both forms of an operator, and how near they must come to the reference in float64."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.ops.native import Kernels, choose

BOUND = {torch.float32: 3e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2}
"""Of the largest value of a tensor; bf16 has 8 bits."""


def kernels() -> Kernels:
    """The native operators; builds them once for this machine."""
    made = choose("native", torch.device("cpu"), torch.float32)
    assert made is not None
    return made


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Normal numbers, the same for every type up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def error(found: Tensor, exact: Tensor) -> float:
    """Largest difference over the largest exact value."""
    if exact.numel() == 0:
        return 0.0
    scale = float(exact.double().abs().max())
    return float((found.double() - exact.double()).abs().max()) / max(scale, 1e-30)


def gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], dy: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The result and the gradient of every input, for an incoming gradient."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    y = function(*leaves)
    return y.detach(), list(torch.autograd.grad(y, leaves, dy.to(y.dtype)))


def assert_near(
    function: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: Sequence[Tensor],
    *, slack: float = 1.0,
) -> None:  # fmt: skip
    """Result and gradients in the inputs' precision against the reference in float64."""
    dtype = inputs[0].dtype
    exact_in = [x.double() for x in inputs]
    dy = numbers(*reference(*exact_in).shape, dtype=dtype, seed=99)
    y, grads = gradients(function, inputs, dy)
    exact, exact_grads = gradients(reference, exact_in, dy.double())
    assert y.dtype == dtype
    errors = [error(y, exact)] + [error(a, b) for a, b in zip(grads, exact_grads, strict=True)]
    assert max(errors) < slack * BOUND[dtype], errors
