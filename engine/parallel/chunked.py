"""GEMMs cut into pieces that take turns with the communication they belong to (paper 3.2, Fig. 3).

Column-parallel: while piece j is multiplied, piece j + 1 of the sequence is gathered. Row-parallel:
while piece j is multiplied, the sum of piece j - 1 is scattered. A piece takes the same share of
every rank's part of the sequence, so that results land where the plain form puts them.
`ahead=False` waits for each piece before the next one: the same numbers bit by bit, nothing hidden.

Shapes: s sequence, b micro-batch, t ranks of the tensor-parallel group, m = s / (t pieces).
"""

import torch
from torch import Tensor

from engine.comm.collectives import Group, Work, all_gather, reduce_scatter
from engine.events.writer import EventWriter
from engine.parallel.witness import Witness

Pending = list[tuple[Tensor, Work]]
"""Pieces whose communication is under way."""


class Chunker:
    """The way a tensor-parallel group cuts its GEMMs."""

    def __init__(
        self, group: Group, *, pieces: int, ahead: bool, events: EventWriter,
        witness: Witness | None = None,
    ) -> None:  # fmt: skip
        self.group, self.pieces, self.ahead = group, pieces, ahead
        self._witness = witness or Witness()
        self._events = events

    def fits(self, s_local: int) -> bool:
        """Whether a part of the sequence of this length falls into equal pieces."""
        return self.pieces > 1 and s_local % self.pieces == 0

    def gather_matmul(
        self, part_sbh: Tensor, weights_t: list[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """([whole @ w for w in weights_t], whole), where whole is the gathered sequence.

        part [s/t, b, h], each weight [h, o]; returns tensors [s, b, o] and [s, b, h].
        """
        s_local, b, h = part_sbh.shape
        t, k = self.group.size, self.pieces
        m = s_local // k
        part = part_sbh.contiguous().view(k, m, b, h)
        gathered = part.new_empty((k, t, m * b, h))
        whole = part.new_empty((t, k, m * b, h))
        outs = [part.new_empty((t, k, m * b, w.shape[1])) for w in weights_t]
        works = [self._gather(gathered[j].view(t * m, b, h), part[j]) for j in range(k)]
        for j, work in enumerate(works):
            self._finish("all_gather", gathered[j], work)
            whole[:, j] = gathered[j]
            for out, weight_t in zip(outs, weights_t, strict=True):
                out[:, j] = torch.matmul(gathered[j], weight_t)
        return [out.view(t * s_local, b, -1) for out in outs], whole.view(t * s_local, b, h)

    def start_matmul_scatter(self, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Pending]:
        """Start the scattered sum over ranks of sum_i x_i @ weight_t_i; valid after `finish`.

        Each x [s, b, i], weight_t [i, o]; the result is this rank's [s/t, b, o].
        """
        s, b, _ = pairs[0][0].shape
        t, k = self.group.size, self.pieces
        m = s // t // k
        width = pairs[0][1].shape[1]
        out = pairs[0][0].new_empty((k, m * b, width))
        pending: Pending = []
        for j in range(k):
            total: Tensor | None = None
            for x, weight_t in pairs:
                product = torch.matmul(x.view(t, k, m * b, -1)[:, j], weight_t)
                total = product if total is None else total.add_(product)
            assert total is not None, "there is at least one pair"
            self._witness.see(total)
            work = reduce_scatter(out[j], total.view(t * m * b, width), self.group, in_turn=True)
            if self.ahead:
                pending.append((total, work))
            else:
                self._finish("reduce_scatter", total, work)
        return out.view(k * m, b, width), pending

    def finish(self, pending: Pending) -> None:
        """Wait for what `start_matmul_scatter` began."""
        for piece, work in pending:
            self._finish("reduce_scatter", piece, work)

    def _gather(self, out: Tensor, part: Tensor) -> Work:
        work = all_gather(out, part, self.group, in_turn=True)
        if not self.ahead:
            self._finish("all_gather", out, work)
        return work

    def _finish(self, op: str, piece: Tensor, work: Work) -> None:
        size = piece.numel() * piece.element_size()
        with self._events.span("tp_comm", "tp", op=op, bytes=size):
            work.wait()
