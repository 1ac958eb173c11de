"""Data parallelism with sharded state: gather parameters, reduce gradients, own a part.

The flat buffer of a chunk is cut into one equal part per replica. A rank keeps fp32 master values
and optimizer state of its part only (ZeRO-1); with ZeRO-2 the full gradient buffer lives from the
chunk's first backward to its reduction. Both transfers are whole-chunk and asynchronous, in the
order the schedule says (paper 3.2). A forward checks that its parameters are those of the current
update: no stale weights.

Where several replicas share a node, both go in two levels: the slow one across nodes, of one part a
node and asynchronous, and the fast one within the node right before or after it. Parts are dealt so
that what a replica reduces within its node is one run of memory.
"""

import torch
from torch import Tensor

from engine.comm.collectives import DONE, Work, all_gather, all_reduce, reduce_scatter
from engine.comm.mesh import Levels, Mesh
from engine.parallel.flat import FlatChunk, Weight


class ShardedChunk:
    """One flat buffer under data parallelism.

    `master` is the part of the parameters this rank updates, in at least fp32: a view of the flat
    buffer if that is the precision of the forward already. `grad` holds the reduced gradient of
    that part after `finish_reduce`. With zero = 0 the part is everything and gradients are
    all-reduced.
    """

    def __init__(self, flat: FlatChunk, mesh: Mesh, *, zero: int, sum_tp: bool) -> None:
        self.flat, self.mesh, self.zero = flat, mesh, zero
        self._sum_tp = sum_tp
        replicas = mesh.dp_gather.size if zero else 1
        index = mesh.dp_gather.index if zero else 0
        levels = mesh.gather_levels
        if levels is not None:
            index = levels.near.index * levels.far.size + levels.far.index
        each = flat.padded // replicas
        self.range = (index * each, (index + 1) * each)
        part = flat.data[self.range[0] : self.range[1]]
        same = flat.data.dtype == flat.grad_dtype
        self.master = part if same else part.to(flat.grad_dtype)
        self.grad: Tensor | None = None
        self.generation = 0
        """Update that `flat.data` belongs to on this rank, and the one `master` has reached."""
        self.target = 0
        self._gather: Work | None = None
        self._gathering = 0
        """Update whose parameters the gather brings."""
        self._reduce: Work | None = None

    def start_unshard(self) -> None:
        """Begin gathering the newest update's parameters, unless they are here or under way."""
        if self.generation == self.target or self._gather is not None:
            return
        begin, end = self.range
        part = self.flat.data[begin:end]
        if part.data_ptr() != self.master.data_ptr():
            part.copy_(self.master)
        replicas = self.mesh.dp_gather.size
        alone = self.zero == 0 or replicas == 1
        self._gathering = self.target
        levels = self.mesh.gather_levels
        if alone:
            self._gather = DONE
        elif levels is None:
            self._gather = all_gather(self.flat.data, part, self.mesh.dp_gather, in_turn=True)
        else:
            block = self._block(self.flat.data, levels)
            self._gather = all_gather(block, part, levels.far, in_turn=True).then(
                lambda: all_gather(self.flat.data, block, levels.near).wait()
            )

    def finish_unshard(self) -> None:
        """Wait for the gather; the chunk may compute afterwards."""
        if self._gather is not None:
            self._gather.wait()
            self._gather = None
            self.generation = self._gathering
        assert self.generation == self.target, (
            f"stale parameters: of update {self.generation}, need {self.target}"
        )

    def start_reduce(self) -> None:
        """Begin reducing the gradients; the buffer must not change until `finish_reduce`."""
        grad = self.flat.grad
        if self._sum_tp:
            start, stop = self.flat.replicated()
            if stop > start:
                all_reduce(grad[start:stop], self.mesh.tp).wait()
        if self.mesh.dp_reduce.size == 1:
            self.grad, self._reduce = grad[self.range[0] : self.range[1]], DONE
        elif self.zero == 0:
            self.grad, self._reduce = grad, all_reduce(grad, self.mesh.dp_reduce)
        else:
            begin, end = self.range
            self.grad = grad[begin:end] if self.zero == 1 else torch.empty_like(self.master)
            group, levels = self.mesh.dp_reduce, self.mesh.reduce_levels
            if levels is not None:
                whole, grad = grad, self._block(grad, levels)
                reduce_scatter(grad, whole, levels.near).wait()
                group = levels.far
            self._reduce = reduce_scatter(self.grad, grad, group, in_turn=True)

    def _block(self, buffer: Tensor, levels: Levels) -> Tensor:
        """The parts of a buffer that replicas at this place of their node own."""
        each = self.flat.padded // levels.near.size
        return buffer[levels.near.index * each : (levels.near.index + 1) * each]

    def finish_reduce(self) -> Tensor:
        """Wait for the reduction and return the gradient of this rank's part."""
        assert self._reduce is not None, "gradients were not reduced in this step"
        assert self.grad is not None, "start_reduce sets the gradient"
        self._reduce.wait()
        self._reduce = None
        if self.zero == 2 and self.mesh.dp_reduce.size > 1:
            self.flat.clear_grad(keep=False)
        return self.grad

    def updated(self) -> None:
        """The optimizer has moved `master`: parameters must be gathered anew."""
        self.target += 1
        self.grad = None
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """What backwards have added up so far counts no more."""
        self.flat.clear_grad(keep=self.zero < 2 or self.mesh.dp_reduce.size == 1)

    def owned(self) -> list[tuple[Weight, int, int]]:
        """Parameters this rank owns a part of: the weight, and the range of its elements."""
        begin, end = self.range
        found = []
        for weight in self.flat.weights:
            start = max(begin, weight.start)
            stop = min(end, weight.start + weight.numel)
            if start < stop:
                found.append((weight, start - weight.start, stop - weight.start))
        return found
