"""What a parameter is besides its numbers: global shape, how it splits, how it starts."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from engine.ops import random

Init = Literal["normal", "scaled", "zeros", "ones"]
"""scaled: normal, its deviation divided by sqrt(2 layers), for projections into the stream."""


class ParamInfo(NamedTuple):
    """A logical parameter of the model, whatever part of it a rank holds.

    shape is global; split is the dimension that tensor parallelism divides (None: every rank has
    all); decay says whether weight decay applies (matrices do, vectors do not).
    """

    name: str
    shape: tuple[int, ...]
    split: int | None
    init: Init
    decay: bool

    def box(self, index: int, degree: int) -> tuple[tuple[int, int], ...]:
        """The rectangular part held by one of `degree` tensor-parallel ranks."""
        whole = [(0, size) for size in self.shape]
        if self.split is not None:
            each = self.shape[self.split] // degree
            whole[self.split] = (index * each, (index + 1) * each)
        return tuple(whole)


def parameter(
    shape: tuple[int, ...], *, split: int | None, init: Init, decay: bool | None = None
) -> nn.Parameter:
    """An empty parameter that carries its ParamInfo (unnamed until `name_parameters`)."""
    made = nn.Parameter(torch.empty(shape))
    made.info = ParamInfo("", shape, split, init, len(shape) > 1 if decay is None else decay)  # type: ignore[attr-defined]
    return made


def info_of(tensor: nn.Parameter) -> ParamInfo:
    """The ParamInfo of a parameter made by `parameter`."""
    return tensor.info  # type: ignore[attr-defined]


def name_parameters(model: nn.Module, *, tied: bool) -> None:
    """Write each parameter's public name into its ParamInfo.

    It is the path in the model without the seams `into` and `out`; the head's copy of a tied matrix
    has the embedding's name, so that both copies start alike and are one tensor in a checkpoint.
    """
    for path, tensor in model.named_parameters(remove_duplicate=True):
        name = path.replace(".into.", ".").replace(".out.", ".")
        name = name.replace("head.norm.", "final_norm.").replace(
            "embed.position", "position.weight"
        )
        if tied and name == "head.weight":
            name = "embed.weight"
        tensor.info = info_of(tensor)._replace(name=name)  # type: ignore[attr-defined]


def initialize(
    out: Tensor,
    info: ParamInfo,
    box: tuple[tuple[int, int], ...],
    *,
    seed: int,
    std: float,
    layers: int,
) -> None:
    """Fill a part of a parameter with its initial values; the same numbers under every layout."""
    if info.init == "zeros":
        out.zero_()
    elif info.init == "ones":
        out.fill_(1.0)
    else:
        scale = std / (2 * layers) ** 0.5 if info.init == "scaled" else std
        random.fill_normal(out, random.key_of(seed, "init", info.name), info.shape, box, scale)
