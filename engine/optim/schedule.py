"""The learning rate as a pure function of the step."""

import math

from engine.spec.recipe import OptimSpec


def learning_rate(spec: OptimSpec, step: int, *, total: int) -> float:
    """Rate of update number `step` (from 0): linear warm-up, then decay to `min_lr`.

    `total` is train.steps, used where decay_steps is 0.
    """
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    if spec.decay == "constant":
        return spec.lr
    length = max(1, (spec.decay_steps or total) - spec.warmup_steps)
    done = min(1.0, (step - spec.warmup_steps) / length)
    share = 0.5 * (1.0 + math.cos(math.pi * done)) if spec.decay == "cosine" else 1.0 - done
    return spec.min_lr + (spec.lr - spec.min_lr) * share
