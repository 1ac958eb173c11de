"""Which ranks own a part of a logical tensor, and sums over them: what LAMB's trust ratios need.

A tensor of a chunk is cut by tp (if it splits) and then, as part of the flat buffer, by dp. Every
other copy computes the same update and is not counted: tensors that each tp rank holds in full,
whole buffers that each replica holds (zero = 0), the tied matrix on the other end of the model.
"""

import torch
from torch import Tensor

from engine.comm.collectives import all_reduce
from engine.optim.lamb import Part
from engine.parallel.zero import ShardedChunk


def parts_of(shard: ShardedChunk) -> list[Part]:
    """The shard's run of every tensor of its chunk, in the order of the flat buffer."""
    begin, end = shard.range
    found = []
    for weight in shard.flat.weights:
        start = min(max(begin, weight.start), end)
        stop = max(start, min(end, weight.start + weight.numel))
        found.append(Part(start - begin, stop - begin, weight.info.decay))
    return found


class OwnerSum:
    """Sums numbers about the tensors of a shard over the ranks that own parts of them.

    Cost: 16 bytes a tensor, one all-reduce over tp and one over dp, where those have several ranks.
    """

    def __init__(self, shard: ShardedChunk) -> None:
        self._mesh, self._over_dp = shard.mesh, shard.zero > 0
        weights = shard.flat.weights
        self._others = torch.tensor(
            [self._mesh.tp.index > 0 and weight.info.split is None for weight in weights],
            device=shard.flat.data.device,
        )

    def __call__(self, numbers: Tensor) -> Tensor:
        """Reduce [tensors, n] in place; equal on all owners afterwards."""
        if self._mesh.tp.size > 1:
            numbers.masked_fill_(self._others.unsqueeze(1), 0.0)
            all_reduce(numbers, self._mesh.tp).wait()
        if self._over_dp and self._mesh.dp_reduce.size > 1:
            all_reduce(numbers, self._mesh.dp_reduce).wait()
        return numbers
