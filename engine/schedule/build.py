"""Builders: GPipe, 1F1B, interleaved 1F1B, breadth-first and the zero-bubble family.

Compute only; `comm.py` adds what has to be sent, gathered and reduced. The orders equal those that
`torch.distributed.pipelining` generates for the same shape, which a test checks. Paper 2
(interleaving).
"""

from typing import NamedTuple

from engine.errors import LayoutError
from engine.schedule.action import Action, Kind
from engine.schedule.schedule import Placement, Schedule
from engine.schedule.zero_bubble import Pairs, zb_v, zero_bubble
from engine.spec.shape import legal, resolve_kind, round_size


def build(
    kind: str, pp: int, vpp: int, microbatches: int, group: int = 0, run_ahead: int = 0
) -> Schedule:
    """A compute-only schedule; LayoutError if the shape is not legal.

    kind is `auto`, `gpipe`, `1f1b`, `interleaved`, `breadth-first`, `zero-bubble` or
    `zb-v`; pp stages of vpp chunks; group micro-batches go through a chunk before the next one (0 =
    the fewest): with more, a message round the pipeline has longer to arrive. run_ahead forwards
    per later stage come before the first backward (0 = the kind's own): with 2 a message has the
    time of a computation to arrive, where 1F1B waits for every one (eager 1F1B, arXiv:2211.05322).
    """
    kind = resolve_kind(kind, vpp)
    reason = legal(kind, pp, vpp, microbatches, group, run_ahead)
    if reason:
        raise LayoutError(
            f"no {kind} schedule for pp={pp}, vpp={vpp}, micro-batches={microbatches}: {reason}",
            remedy="make batch.global_batch / (micro_batch * dp) a multiple of layout.pp "
            "and of schedule.group, or set layout.vpp = 1",
        )
    ahead = run_ahead or (2 if kind == "interleaved" else 1)
    shape = Shape(pp, vpp, microbatches, round_size(pp, microbatches, group), ahead)
    maker = {
        "gpipe": _gpipe, "1f1b": _one_f_one_b, "interleaved": _interleaved,
        "breadth-first": _breadth_first, "zero-bubble": _zero_bubble, "zb-v": _zb_v,
    }[kind]  # fmt: skip
    stages = tuple(tuple(maker(stage, shape)) for stage in range(pp))
    placement: Placement = "v" if kind == "zb-v" else "loop"
    return Schedule(
        kind=kind, pp=pp, vpp=vpp, microbatches=microbatches, placement=placement, stages=stages
    )


class Shape(NamedTuple):
    """What a builder is given beside the stage; a round is the micro-batches of one group.

    `ahead` is the number of forwards by which a stage runs ahead, per stage behind it.
    """

    pp: int
    vpp: int
    microbatches: int
    per_round: int
    ahead: int


def _gpipe(stage: int, shape: Shape) -> list[Action]:
    """All forwards, then all backwards."""
    return [Action(Kind.FORWARD, stage, m) for m in range(shape.microbatches)] + [
        Action(Kind.BACKWARD, stage, m) for m in range(shape.microbatches)
    ]


def _one_f_one_b(stage: int, shape: Shape) -> list[Action]:
    """Warm-up of a forward (or more) per later stage, then a forward and a backward in turn."""
    forwards = [(stage, m) for m in range(shape.microbatches)]
    return _weave(forwards, forwards, warmup=shape.ahead * (shape.pp - 1 - stage))


def _interleaved(stage: int, shape: Shape) -> list[Action]:
    """Rounds of micro-batches through the stage's chunks, first chunk first; backwards mirrored.

    A stage runs ahead by one round per further chunk plus two forwards per later stage.
    """
    forwards, backwards = _rounds(stage, shape)
    warmup = (shape.vpp - 1) * shape.per_round + shape.ahead * (shape.pp - 1 - stage)
    return _weave(forwards, backwards, warmup=warmup)


def _breadth_first(stage: int, shape: Shape) -> list[Action]:
    """All micro-batches through one chunk before the next (arXiv:2211.05953).

    Costs the activations of every micro-batch, and gives the gather of the next chunk and the
    reduction of the last one a whole chunk's work of all micro-batches to hide behind.
    """
    local = [c * shape.pp + stage for c in range(shape.vpp)]
    forwards = [Action(Kind.FORWARD, c, m) for c in local for m in range(shape.microbatches)]
    return forwards + [action._replace(kind=Kind.BACKWARD) for action in reversed(forwards)]


def _zero_bubble(stage: int, shape: Shape) -> list[Action]:
    """Interleaved rounds, backwards split; half the run-ahead: input gradients come sooner."""
    forwards, backwards = _rounds(stage, shape)
    warmup = (shape.vpp - 1) * shape.per_round + shape.ahead * (shape.pp - 1 - stage)
    return zero_bubble(forwards, backwards, warmup=warmup, lag=shape.ahead * stage)


def _zb_v(stage: int, shape: Shape) -> list[Action]:
    return zb_v(stage, shape.pp, shape.microbatches)


def _rounds(stage: int, shape: Shape) -> tuple[Pairs, Pairs]:
    """Forwards and backwards of a stage in rounds."""
    chunks = [local * shape.pp + stage for local in range(shape.vpp)]
    forwards: Pairs = []
    backwards: Pairs = []
    for first in range(0, shape.microbatches, shape.per_round):
        batch = range(first, first + shape.per_round)
        forwards += [(chunk, m) for chunk in chunks for m in batch]
        backwards += [(chunk, m) for chunk in reversed(chunks) for m in batch]
    return forwards, backwards


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
