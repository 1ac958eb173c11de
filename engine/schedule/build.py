"""Builders: GPipe, 1F1B, interleaved 1F1B, breadth-first and the zero-bubble family.

Compute only; `comm.py` adds what has to be sent, gathered and reduced. The orders equal those that
`torch.distributed.pipelining` generates for the same shape, which a test checks. Paper 2
(interleaving).
"""

from engine.errors import LayoutError
from engine.schedule.action import Action, Kind
from engine.schedule.schedule import Placement, Schedule
from engine.schedule.zero_bubble import Pairs, zb_v, zero_bubble
from engine.spec.shape import legal, resolve_kind


def build(kind: str, pp: int, vpp: int, microbatches: int) -> Schedule:
    """A compute-only schedule; LayoutError if the shape is not legal.

    kind is `auto`, `gpipe`, `1f1b`, `interleaved`, `breadth-first`, `zero-bubble` or
    `zb-v`; pp stages of vpp chunks.
    """
    kind = resolve_kind(kind, vpp)
    reason = legal(kind, pp, vpp, microbatches)
    if reason:
        raise LayoutError(
            f"no {kind} schedule for pp={pp}, vpp={vpp}, micro-batches={microbatches}: {reason}",
            remedy="make batch.global_batch / (micro_batch * dp) a multiple of layout.pp, "
            "or set layout.vpp = 1",
        )
    maker = {
        "gpipe": _gpipe, "1f1b": _one_f_one_b, "interleaved": _interleaved,
        "breadth-first": _breadth_first, "zero-bubble": _zero_bubble, "zb-v": _zb_v,
    }[kind]  # fmt: skip
    stages = tuple(tuple(maker(stage, pp, vpp, microbatches)) for stage in range(pp))
    placement: Placement = "v" if kind == "zb-v" else "loop"
    return Schedule(
        kind=kind, pp=pp, vpp=vpp, microbatches=microbatches, placement=placement, stages=stages
    )


def _gpipe(stage: int, pp: int, vpp: int, microbatches: int) -> list[Action]:
    """All forwards, then all backwards."""
    return [Action(Kind.FORWARD, stage, m) for m in range(microbatches)] + [
        Action(Kind.BACKWARD, stage, m) for m in range(microbatches)
    ]


def _one_f_one_b(stage: int, pp: int, vpp: int, microbatches: int) -> list[Action]:
    """Warm-up of pp - 1 - stage forwards, then one forward and one backward in turn."""
    forwards = [(stage, m) for m in range(microbatches)]
    return _weave(forwards, forwards, warmup=pp - 1 - stage)


def _interleaved(stage: int, pp: int, vpp: int, microbatches: int) -> list[Action]:
    """Rounds of micro-batches through the stage's chunks, first chunk first; backwards mirrored.

    A stage runs ahead by one round per further chunk plus two forwards per stage behind it.
    """
    forwards, backwards, per_round = _rounds(stage, pp, vpp, microbatches)
    return _weave(forwards, backwards, warmup=(vpp - 1) * per_round + 2 * (pp - 1 - stage))


def _breadth_first(stage: int, pp: int, vpp: int, microbatches: int) -> list[Action]:
    """All micro-batches through one chunk before the next (arXiv:2211.05953).

    Costs the activations of every micro-batch, and gives the gather of the next chunk and the
    reduction of the last one a whole chunk's work of all micro-batches to hide behind.
    """
    local = [c * pp + stage for c in range(vpp)]
    forwards = [Action(Kind.FORWARD, c, m) for c in local for m in range(microbatches)]
    return forwards + [action._replace(kind=Kind.BACKWARD) for action in reversed(forwards)]


def _zero_bubble(stage: int, pp: int, vpp: int, microbatches: int) -> list[Action]:
    """Interleaved rounds, backwards split; half the run-ahead: input gradients come sooner."""
    forwards, backwards, per_round = _rounds(stage, pp, vpp, microbatches)
    warmup = (vpp - 1) * per_round + pp - 1 - stage
    return zero_bubble(forwards, backwards, warmup=warmup, lag=stage)


def _zb_v(stage: int, pp: int, vpp: int, microbatches: int) -> list[Action]:
    return zb_v(stage, pp, microbatches)


def _rounds(stage: int, pp: int, vpp: int, microbatches: int) -> tuple[Pairs, Pairs, int]:
    """Forwards and backwards of a stage in rounds, and the micro-batches of a round."""
    per_round = microbatches // max(1, microbatches // pp)
    forwards: Pairs = []
    backwards: Pairs = []
    for first in range(0, microbatches, per_round):
        batch = range(first, first + per_round)
        forwards += [(local * pp + stage, m) for local in range(vpp) for m in batch]
        backwards += [(local * pp + stage, m) for local in reversed(range(vpp)) for m in batch]
    return forwards, backwards, per_round


def _weave(
    forwards: list[tuple[int, int]], backwards: list[tuple[int, int]], *, warmup: int
) -> list[Action]:
    """`warmup` forwards, then forward and backward in turn, then the remaining backwards."""
    warmup = min(warmup, len(forwards))
    steady = len(forwards) - warmup
    order = [Action(Kind.FORWARD, c, m) for c, m in forwards[:warmup]]
    for ahead, behind in zip(forwards[warmup:], backwards[:steady], strict=True):
        order += [Action(Kind.FORWARD, *ahead), Action(Kind.BACKWARD, *behind)]
    return order + [Action(Kind.BACKWARD, c, m) for c, m in backwards[steady:]]
