"""The two phases of LAMB in both forms against formulas written out for each tensor."""

import pytest
import torch

from engine.ops.adamw import Moment, Slots
from engine.ops.lamb import PIECE, cut, lamb_apply_, lamb_moments_
from tests.engine.ops.forms import error, kernels, numbers

FORMS = [pytest.param("native", marks=pytest.mark.native), "plain"]
RANGES = [(0, 5), (5, 5), (5, 5 + 2 * PIECE + 3), (5 + 2 * PIECE + 3, 5 + 2 * PIECE + 20)]
DECAY = [0.1, 0.1, 0.2, 0.0]
N = RANGES[-1][1] + 7
"""The last elements belong to no tensor: padding."""


def test_pieces_cover_every_tensor_and_nothing_else():
    pieces = cut(RANGES, DECAY, torch.device("cpu"))
    for number, (begin, end) in enumerate(RANGES):
        first, stop = pieces.first_piece[number : number + 2].tolist()
        rows = pieces.pieces[first:stop].tolist()
        assert all(row[0] == number and row[2] - row[1] <= PIECE for row in rows)
        assert [i for row in rows for i in (row[1], row[2])][:1] in ([begin], [])
        assert sum(row[2] - row[1] for row in rows) == end - begin


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_phases_follow_the_formulas(form, dtype, bound):
    chosen = kernels() if form == "native" else None
    pieces = cut(RANGES, DECAY, torch.device("cpu"))
    param, grad, m = (numbers(N, dtype=dtype, seed=i) for i in range(3))
    slots = Slots(param, grad, m, numbers(N, dtype=dtype, seed=3).abs())
    p, g, m0, v0 = (slot.double().clone() for slot in slots)
    norms = lamb_moments_(slots, Moment(0.9, 0.95, 1e-8, 2, 0.5), pieces, kernels=chosen)

    g = 0.5 * g
    m1, v1 = 0.9 * m0 + 0.1 * g, 0.95 * v0 + 0.05 * g * g
    u = (m1 / (1 - 0.9**3)) / ((v1 / (1 - 0.95**3)).sqrt() + 1e-8)
    for number, (begin, end) in enumerate(RANGES):
        u[begin:end] += DECAY[number] * p[begin:end]
        want = torch.stack((p[begin:end].square().sum(), u[begin:end].square().sum()))
        assert error(norms[number], want) < 1e-5 if dtype == torch.float32 else 1e-13
    used = RANGES[-1][1]
    assert error(slots.grad[:used], u[:used]) < bound
    assert error(slots.exp_avg[:used], m1[:used]) < bound
    assert error(slots.exp_avg_sq[:used], v1[:used]) < bound
    assert torch.equal(slots.exp_avg_sq[used:].double(), v0[used:]), "padding is left alone"

    ratio = torch.tensor([0.5, 9.0, 2.0, 1.0], dtype=torch.float64)
    lamb_apply_(slots, pieces, ratio, lr=1e-2, kernels=chosen)
    for number, (begin, end) in enumerate(RANGES):
        p[begin:end] -= 1e-2 * ratio[number] * u[begin:end]
    assert error(slots.param, p) < bound


@pytest.mark.native
def test_the_same_step_twice_gives_the_same_bits():
    pieces = cut(RANGES, DECAY, torch.device("cpu"))
    found = []
    for threads in (1, 3):
        slots = Slots(*(numbers(N, dtype=torch.float32, seed=i).abs() for i in range(4)))
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        norms = lamb_moments_(slots, Moment(0.9, 0.95, 1e-8, 2), pieces, kernels=kernels())
        torch.set_num_threads(before)
        found.append((norms, *slots))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
