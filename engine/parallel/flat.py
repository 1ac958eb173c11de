"""The parameters of one model chunk in flat buffers, and the views that the chunk computes with.

Order inside the buffer (all in forward order within each part): matrices split over tp, vectors
split over tp, vectors every tp rank holds, matrices every tp rank holds. So projections of one
input lie side by side (one GEMM serves them all), what tp must sum is one run, and weight decay is
at most two runs.
"""

import torch
from torch import Tensor, nn

from engine.model.parameter import ParamInfo, info_of, initialize


class Weight:
    """One parameter as this rank holds it: a view of the chunk's buffer and of its gradient."""

    def __init__(self, info: ParamInfo, box: tuple[tuple[int, int], ...]) -> None:
        self.info = info
        self.box = box
        self.shape = tuple(stop - start for start, stop in box)
        self.numel = 1
        for size in self.shape:
            self.numel *= size
        self.start = 0
        self.flat: FlatChunk
        self.data: Tensor

    @property
    def grad(self) -> Tensor:
        """The gradient accumulated so far, same shape as `data`."""
        return self.flat.grad_view(self.start, self.numel).view(self.shape)


class FlatChunk:
    """Buffers of a chunk: `data` in the precision of the forward, `grad` in that of the reduction.

    Both have `padded` elements, a multiple of the data-parallel degree. The gradient buffer exists
    from the first backward of a step until `clear_grad(keep=False)`, or for ever.
    """

    def __init__(
        self, weights: list[Weight], *, dp: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weights = sorted(weights, key=_region)  # stable: forward order within a region
        position = 0
        for weight in self.weights:
            weight.flat = self
            weight.start = position
            position += weight.numel
        self.numel = position
        self.padded = -(-position // dp) * dp
        self.data = torch.zeros(self.padded, dtype=dtype, device=device)
        for weight in self.weights:
            weight.data = self.data[weight.start : weight.start + weight.numel].view(weight.shape)
        self.grad_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._grad: Tensor | None = None

    def replicated(self) -> tuple[int, int]:
        """The run of parameters that every tp rank holds in full."""
        starts = [w.start for w in self.weights if w.info.split is None]
        return (min(starts), self.numel) if starts else (self.numel, self.numel)

    def decayed(self) -> list[tuple[int, int]]:
        """Runs of parameters that weight decay applies to, merged where they touch."""
        runs: list[tuple[int, int]] = []
        for weight in self.weights:
            if weight.info.decay:
                if runs and runs[-1][1] == weight.start:
                    runs[-1] = (runs[-1][0], weight.start + weight.numel)
                else:
                    runs.append((weight.start, weight.start + weight.numel))
        return runs

    @property
    def grad(self) -> Tensor:
        """The gradient buffer, made and zeroed if there is none."""
        if self._grad is None:
            self._grad = torch.zeros(self.padded, dtype=self.grad_dtype, device=self.data.device)
        return self._grad

    def grad_view(self, start: int, numel: int) -> Tensor:
        """A part of the gradient buffer."""
        return self.grad[start : start + numel]

    def clear_grad(self, *, keep: bool) -> None:
        """Begin a new accumulation: zero the buffer, or give it back (`keep=False`)."""
        if not keep:
            self._grad = None
        elif self._grad is not None:
            self._grad.zero_()

    def initialize(self, *, seed: int, std: float, layers: int) -> None:
        """Set every parameter to its initial values."""
        for weight in self.weights:
            initialize(weight.data, weight.info, weight.box, seed=seed, std=std, layers=layers)


def weights_of(module: nn.Module, *, tp_index: int, tp: int) -> dict[int, Weight]:
    """A Weight for each parameter of a model on the meta device, keyed by the parameter's id."""
    made: dict[int, Weight] = {}
    for tensor in module.parameters():
        info = info_of(tensor)
        made[id(tensor)] = Weight(info, info.box(tp_index, tp))
    return made


def _region(weight: Weight) -> int:
    split, matrix = weight.info.split is not None, len(weight.info.shape) > 1
    return {(True, True): 0, (True, False): 1, (False, False): 2, (False, True): 3}[split, matrix]
