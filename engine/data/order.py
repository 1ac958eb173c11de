"""The order of samples: a seekable shuffle of every epoch that needs no memory.

Position 0, 1, 2, ... of a run maps to an epoch and a sample of the data set by a keyed permutation,
so that any step's samples can be computed from the step number alone. That number is the whole
state of the data pipeline, and the order is the same for every layout.
"""

import math

import numpy as np
from numpy.typing import NDArray

from engine.data.mixing import U64, mix, mix_all

I64 = NDArray[np.int64]

_ROUNDS = 8
_MOST_SAMPLES = 1 << 62


class SampleOrder:
    """Positions 0, 1, ... to (epoch, sample): every sample once in every epoch.

    A Feistel network over Z_a x Z_b with a * b just above the number of samples (Black and Rogaway,
    "Ciphers with arbitrary finite domains", 2002); what falls outside is permuted again until it
    falls inside, which fewer than one in sqrt(n) positions need.
    """

    def __init__(self, num_samples: int, *, seed: int, shuffle: bool = True) -> None:
        if not 1 <= num_samples < _MOST_SAMPLES:
            raise ValueError(f"num_samples = {num_samples} is not in 1 .. 2**62 - 1")
        self.num_samples, self.seed, self.shuffle = num_samples, seed, shuffle
        rows = math.isqrt(num_samples - 1) + 1
        self._rows = np.uint64(rows)
        self._columns = np.uint64(-(-num_samples // rows))
        self._round_keys = mix(np.arange(_ROUNDS, dtype=np.uint64))

    def at(self, positions: I64) -> tuple[I64, I64]:
        """Epoch and sample index of each position, both in the shape of `positions`."""
        epochs, offsets = np.divmod(positions, self.num_samples)
        if not self.shuffle:
            return epochs, offsets
        keys = mix_all(self.seed, epochs.astype(np.uint64))
        found = self._permute(offsets.astype(np.uint64), keys)
        outside = found >= self.num_samples
        while outside.any():
            found[outside] = self._permute(found[outside], keys[outside])
            outside = found >= self.num_samples
        return epochs, found.astype(np.int64)

    def _permute(self, numbers: U64, keys: U64) -> U64:
        """One pass of the network: a bijection of 0 .. rows * columns - 1 for each key."""
        row, column = np.divmod(numbers, self._columns)
        for index, constant in enumerate(self._round_keys):
            if index % 2:
                row = (row + mix(column ^ (keys + constant)) % self._rows) % self._rows
            else:
                column = (column + mix(row ^ (keys + constant)) % self._columns) % self._columns
        joined: U64 = row * self._columns + column
        return joined
