"""Random bits that are a pure function of numbers, for orders and synthetic text.

One 64-bit mixing function on numpy arrays; the same on every machine and numpy version, since it
uses nothing but wrapping multiplication, shifts and exclusive or.
"""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(numbers: U64) -> U64:
    """Scatter 64-bit numbers: a bijection in which every input bit moves half the output bits.

    The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
    generators", 2014) after one step of its counter.
    """
    x: U64 = numbers + _GOLDEN
    x ^= x >> np.uint64(30)
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x


def mix_all(*parts: U64 | int) -> U64:
    """Scatter several numbers into one; arrays broadcast, and the order of the parts matters."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        if isinstance(part, int):
            part = np.array([part % (1 << 64)], dtype=np.uint64)
        state = mix(state ^ part)
    return state
