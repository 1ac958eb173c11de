"""Which attention kernel a GPU gets: chosen by what the device can do and what is installed.

In order: FlashAttention 3 on Hopper (sm_90), 4 from sm_90 on (its backward needs that), 2 from
sm_80 on, else the form built into torch (FlashAttention 2 from sm_80 on, windows included). All
take [b, s, n, d], share key/value heads among query heads, and are causal with an optional window
to the left. With train.deterministic they are told to add up gradients in a fixed order, or not
taken. The choice is made once per process and logged. Not run on a GPU so far; the decision
and the calls' arguments are tested.
"""

import functools
import importlib
import importlib.util
import inspect
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.device import cuda_capability

logger = logging.getLogger(__name__)

Call = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""q, k, v [b, s, n, d] and a window (0 = none) -> [b, s, n, d]."""


class Package(NamedTuple):
    """An installed package with a kernel, the devices it serves, and "no limit" in its words."""

    name: str
    module: str
    lowest: tuple[int, int]
    highest: tuple[int, int]
    no_limit: int | None


PACKAGES = (
    Package("FlashAttention 3", "flash_attn_interface", (9, 0), (9, 0), -1),
    Package("FlashAttention 4", "flash_attn.cute", (9, 0), (12, 1), None),
    Package("FlashAttention 2", "flash_attn", (8, 0), (12, 1), -1),
)
"""Fastest first, for the devices that each of them names."""


def decide(capability: tuple[int, int], is_there: Callable[[str], bool]) -> Package | None:
    """The package to use on a device of this compute capability; None for what torch has."""
    for package in PACKAGES:
        if package.lowest <= capability <= package.highest and is_there(package.module):
            return package
    return None


def window_size(package: Package, window: int) -> tuple[int | None, int | None]:
    """Keys to the left and right of a query, in the package's words; itself is not counted."""
    return (window - 1, 0) if window else (package.no_limit, package.no_limit)


@functools.cache
def kernel(device: torch.device) -> Call | None:
    """The package's function for a CUDA device; None where torch's own is to be used."""
    package = decide(cuda_capability(device), is_installed)
    if package is None:
        logger.info("attention: torch's own kernels")
        return None
    try:
        function = importlib.import_module(package.module).flash_attn_func
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        logger.warning("attention: torch's own kernels, since %s fails: %s", package.name, error)
        return None
    options: dict[str, bool] = {}
    if torch.are_deterministic_algorithms_enabled():
        if not takes_deterministic(function):
            logger.info("attention: torch's own kernels, since those of %s add up gradients in any "
                        "order (train.deterministic)", package.name)  # fmt: skip
            return None
        options = {"deterministic": True}
    logger.info("attention: %s", package.name)
    return functools.partial(call, package, functools.partial(function, **options))


def takes_deterministic(function: Callable[..., Any]) -> bool:
    """Whether a package's function can be told to add up gradients in a fixed order."""
    return "deterministic" in inspect.signature(function).parameters


def call(
    package: Package, function: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, window: int
) -> Tensor:
    """One causal attention by a package's function."""
    out = function(q, k, v, causal=True, window_size=window_size(package, window))
    result = out[0] if isinstance(out, tuple) else out  # some give the log-sum-exp along
    assert isinstance(result, Tensor), f"{package.name} returned {type(result)}"
    return result


def is_installed(module: str) -> bool:
    """Whether a module could be imported, without importing it (its parent is)."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
