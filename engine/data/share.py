"""Which sequences of a step belong to which replica, and to which of its micro-batches.

With G sequences a step, dp replicas and micro-batches of b, the sequence at position
step * G + (m * dp + r) * b + k of the run's order is column k of micro-batch m of replica r. So a
step holds the same sequences under every layout, and its number is all the state there is.
"""

import numpy as np
from numpy.typing import NDArray

from engine.spec.recipe import BatchSpec

I64 = NDArray[np.int64]


class Share:
    """Which sequences of a step one replica takes, and in which micro-batches."""

    def __init__(self, batch: BatchSpec, *, dp: int, replica: int) -> None:
        size = batch.micro_batch
        if batch.global_batch % (size * dp):
            raise ValueError(f"{batch} does not divide over dp = {dp}")
        if not 0 <= replica < dp:
            raise ValueError(f"replica {replica} is not in 0 .. {dp - 1}")
        places = np.arange(batch.global_batch, dtype=np.int64).reshape(-1, dp, size)
        self._global_batch = batch.global_batch
        self._places: I64 = places[:, replica]

    def positions(self, step: int) -> I64:
        """Positions in the run's order that the replica takes in a step, [micro-batches, b]."""
        found: I64 = step * self._global_batch + self._places
        return found
