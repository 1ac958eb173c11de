"""Execute a schedule: walk the stage's actions, one `match` on the kind (paper 3.2, Figure 4).

Sends and receives only start transfers. A forward or backward waits for what it needs and nothing
else; that wait is recorded as an event, since it is what "exposed" means. The same walk serves
training and, with a forward-only schedule, validation.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm.collectives import Group, Work, receive, send
from engine.comm.mesh import Mesh
from engine.events.writer import EventWriter
from engine.model.transformer import Chunk, MicroBatch
from engine.parallel.outbox import Outbox
from engine.parallel.tensor import TensorAxis
from engine.parallel.zero import ShardedChunk
from engine.schedule.action import Action, Kind
from engine.schedule.schedule import Schedule
from engine.schedule.simulate import LANES


class Stage(NamedTuple):
    """What a rank needs to run its part of a schedule."""

    chunks: dict[int, Chunk]
    shards: dict[int, ShardedChunk]
    mesh: Mesh
    events: EventWriter
    stream_shape: tuple[int, ...]
    """Shape of the tensor between chunks: [s (or s/t), b, h]."""
    axis: TensorAxis
    dtype: torch.dtype
    device: torch.device


class Pipeline:
    """Runs one schedule on one rank, step after step."""

    def __init__(self, stage: Stage, schedule: Schedule) -> None:
        self.stage, self.schedule = stage, schedule
        self.index = stage.mesh.layout.coord(stage.mesh.rank).pp
        self.program = schedule.stages[self.index]
        self._inputs: dict[tuple[int, int], Tensor | None] = {}
        self._outputs: dict[tuple[int, int], Tensor] = {}
        self._received: dict[tuple[Kind, int, int], tuple[Tensor, Work]] = {}
        self._to_send: dict[tuple[Kind, int, int], Tensor] = {}
        self._local: dict[tuple[Kind, int, int], Tensor] = {}
        self._outbox = Outbox(schedule)
        self._owed: dict[tuple[int, int], list[Callable[[], None]]] = {}

    def run(
        self,
        batches: Callable[[int], MicroBatch],
        *,
        scale: float,
        on_reduce: Callable[[int], None],
    ) -> Tensor:
        """Run a step: returns the sum of this stage's micro-batch losses (0 unless it is the last).

        batches gives a micro-batch by number; scale multiplies the loss before backward; on_reduce
        is called when a chunk's gradients are complete (it starts their reduction).
        """
        loss = torch.zeros((), dtype=torch.float64, device=self.stage.device)
        events = self.stage.events
        for action in self.program:
            lane = LANES.get(action.kind, "compute")
            attrs = {"chunk": action.chunk}
            if action.microbatch is not None:
                attrs["microbatch"] = action.microbatch
            self._wait_for(action)
            self.stage.axis.witness.enter(self._causal_place(action))
            with events.span(action.kind.name.lower(), lane, **attrs):
                match action.kind:
                    case Kind.FORWARD:
                        result = self._forward(action, batches(action.microbatch or 0))
                        if result is not None:
                            loss += result
                    case Kind.BACKWARD:
                        self._backward(action, scale)
                    case Kind.BACKWARD_INPUT:
                        with self.stage.axis.owing() as owed:
                            self._backward(action, scale)
                        self._owed[action.chunk, action.microbatch or 0] = owed
                    case Kind.BACKWARD_WEIGHT:
                        with torch.no_grad():  # else the buffer would hold on to the graph
                            for job in self._owed.pop((action.chunk, action.microbatch or 0)):
                                job()
                    case Kind.SEND_F | Kind.SEND_B:
                        self._send(action)
                    case Kind.RECV_F | Kind.RECV_B:
                        self._receive(action)
                    case Kind.UNSHARD:
                        self.stage.shards[action.chunk].start_unshard()
                    case Kind.REDUCE_GRAD:
                        on_reduce(action.chunk)
        self._outbox.finish()
        assert not self._outputs or not torch.is_grad_enabled(), "forwards without a backward"
        self._inputs.clear()
        self._outputs.clear()
        return loss

    def _causal_place(self, action: Action) -> int:
        """From 1, in the order in which results of one micro-batch follow from each other."""
        chunk, all_ = action.chunk, self.schedule.chunks
        return 1 + chunk if action.kind is Kind.FORWARD else 2 * all_ - chunk

    def _wait_for(self, action: Action) -> None:
        """Wait for the message or parameters a compute action needs, and say how long it took."""
        if action.kind is Kind.FORWARD:
            self._timed("dp_gather", action, self.stage.shards[action.chunk].finish_unshard)
            key = (Kind.RECV_F, action.chunk, action.microbatch or 0)
        elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            key = (Kind.RECV_B, action.chunk, action.microbatch or 0)
        else:
            return
        if key in self._received:
            _, work = self._received[key]
            self._timed(LANES[key[0]], action, work.wait)
            self._outbox.heard(key[0], self._neighbour(*key[:2]), key[2])

    def _timed(self, on: str, action: Action, wait: Callable[[], None]) -> None:
        self.stage.events.enter("wait", "compute", on=on, chunk=action.chunk)
        wait()
        self.stage.events.leave(longer_than_ns=20_000)  # shorter ones are the call itself

    def _forward(self, action: Action, micro: MicroBatch) -> Tensor | None:
        """Compute a chunk's output; the loss if it is the model's last."""
        chunk, m = action.chunk, action.microbatch or 0
        x = self._take(Kind.RECV_F, chunk, m)
        if x is not None and torch.is_grad_enabled():
            x.requires_grad_()
        out = self.stage.chunks[chunk](x, micro)
        self.stage.axis.witness.see(out)
        if torch.is_grad_enabled():
            self._inputs[chunk, m] = x
            self._outputs[chunk, m] = out
        if chunk == self.schedule.chunks - 1:
            return out.detach().to(torch.float64)
        self._hand_on(Kind.SEND_F, chunk, m, out.detach(), chunk + 1)
        return None

    def _backward(self, action: Action, scale: float) -> None:
        """Back-propagate through a chunk; weight gradients land in its flat buffer."""
        chunk, m = action.chunk, action.microbatch or 0
        out = self._outputs.pop((chunk, m))
        x = self._inputs.pop((chunk, m))
        if chunk == self.schedule.chunks - 1:
            torch.autograd.backward(out, torch.full_like(out, scale))
        else:
            torch.autograd.backward(out, self._take(Kind.RECV_B, chunk, m))
        if x is not None:
            assert x.grad is not None, "a chunk's input receives a gradient"
            self.stage.axis.witness.see(x.grad)
            self._hand_on(Kind.SEND_B, chunk, m, x.grad, chunk - 1)

    def _hand_on(self, kind: Kind, chunk: int, m: int, value: Tensor, neighbour: int) -> None:
        """Keep a result for its SEND, or for a neighbouring chunk on this same stage."""
        if self.schedule.stage_of(neighbour) == self.index:
            receive_kind = Kind.RECV_F if kind is Kind.SEND_F else Kind.RECV_B
            self._local[receive_kind, neighbour, m] = value
        else:
            self._to_send[kind, chunk, m] = value.contiguous()

    def _take(self, kind: Kind, chunk: int, m: int) -> Tensor | None:
        """The message for a compute action: received, local, or none (first chunk)."""
        if (kind, chunk, m) in self._received:
            return self._received.pop((kind, chunk, m))[0]
        return self._local.pop((kind, chunk, m), None)

    def _neighbour(self, kind: Kind, chunk: int) -> int:
        """The chunk at the other end of a message."""
        return chunk + (1 if kind in (Kind.SEND_F, Kind.RECV_B) else -1)

    def _peer(self, chunk: int) -> int:
        """Global rank that holds a chunk in this rank's pipeline."""
        return self.stage.mesh.pp_forward.ranks[self.schedule.stage_of(chunk)]

    def _group(self, kind: Kind, sender: int, receiver: int) -> Group:
        """The communicator of messages from one chunk to another."""
        mesh, stage_of = self.stage.mesh, self.schedule.stage_of
        goes_down = stage_of(receiver) > stage_of(sender)
        if kind in (Kind.SEND_F, Kind.RECV_F):
            return mesh.pp_forward if goes_down else mesh.pp_forward_wrap
        return mesh.pp_backward_wrap if goes_down else mesh.pp_backward

    def _send(self, action: Action) -> None:
        m = action.microbatch or 0
        value = self._to_send.pop((action.kind, action.chunk, m))
        to = self._neighbour(action.kind, action.chunk)
        group = self._group(action.kind, action.chunk, to)
        work = send(value, self._peer(to), group, tag=self._tag(to, m))
        self._outbox.add(work, action.kind, to, m)

    def _receive(self, action: Action) -> None:
        m = action.microbatch or 0
        source = self._neighbour(action.kind, action.chunk)
        group = self._group(action.kind, source, action.chunk)
        buffer = torch.empty(
            self.stage.stream_shape, dtype=self.stage.dtype, device=self.stage.device
        )
        work = receive(buffer, self._peer(source), group, tag=self._tag(action.chunk, m))
        self._received[action.kind, action.chunk, m] = (buffer, work)

    def _tag(self, receiver: int, m: int) -> int:
        """A number per message of a step and direction (gloo pairs by tag, NCCL by order)."""
        return receiver * self.schedule.microbatches + m
