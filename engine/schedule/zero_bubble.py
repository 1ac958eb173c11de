"""Builders whose backward is split: the input's gradient first, the weights' when there is time.

Only the input's gradient is on the way to the previous stage; weight gradients fill what would be
bubble (arXiv:2401.10241). `zero-bubble` keeps the memory of (interleaved) 1F1B; `zb-v` runs each
micro-batch down the stages and up again, two chunks a stage, and with equal durations of F, I and
W leaves no bubble but the start-up. Both orders equal torch's for the same shape, which a test
checks.
"""

from engine.schedule.action import Action, Kind

F, I, W = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT  # noqa: E741 - the paper's letters

Pairs = list[tuple[int, int]]
"""(chunk, micro-batch) in the order of their work."""


def zero_bubble(forwards: Pairs, backwards: Pairs, *, warmup: int, lag: int) -> list[Action]:
    """`warmup` forwards, then forward and input gradient in turn, then the other input gradients.

    Weight gradients follow their input gradients `lag` steady turns later: a stage far down the
    pipeline waits that long for its first gradient to travel up, and fills the cool-down with what
    it saved.
    """
    warmup = min(warmup, len(forwards))
    order = [Action(F, *pair) for pair in forwards[:warmup]]
    owed = 0
    for turn, behind in enumerate(backwards):
        if warmup + turn < len(forwards):
            order.append(Action(F, *forwards[warmup + turn]))
        order.append(Action(I, *behind))
        if turn >= lag:
            order.append(Action(W, *backwards[owed]))
            owed += 1
    return order + [Action(W, *pair) for pair in backwards[owed:]]


def zb_v(stage: int, pp: int, microbatches: int) -> list[Action]:
    """The V schedule of one stage: chunk `stage` on the way down, `2 pp - 1 - stage` going up."""
    down, up = stage, 2 * pp - 1 - stage
    total = max(microbatches, 2 * pp - 1)  # built for a full pipeline; superfluous ones are dropped
    done = {(chunk, kind): 0 for chunk in (down, up) for kind in (F, I, W)}
    order: list[Action] = []

    def do(chunk: int, *kinds: Kind) -> None:
        for kind in kinds:
            order.append(Action(kind, chunk, done[chunk, kind]))
            done[chunk, kind] += 1

    for _ in range(2 * (pp - stage) - 1):  # fill the way down
        do(down, F)
    for _ in range(stage):  # the first micro-batches come back up
        do(up, F)
        do(down, F)
    for _ in range(pp - stage):  # and turn round at the last chunk
        do(up, F, I, W)
    while done[up, F] < done[down, F] or done[down, F] < total:
        if done[down, F] < total:
            do(down, F)
        do(down, I, W)
        do(up, F, I, W)
    for _ in range(stage):  # drain: input gradients are urgent, weights wait
        do(down, I)
        do(up, I)
    for _ in range(pp - stage):
        do(down, I, W)
    while done[up, W] < done[up, I]:
        do(up, W)
    while done[down, W] < done[down, I]:
        do(down, W)
    return [action for action in order if (action.microbatch or 0) < microbatches]
