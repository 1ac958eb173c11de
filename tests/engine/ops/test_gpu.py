"""Every native operator on a CUDA device against the reference in float64, and its bits twice."""

import pytest
import torch

from engine.ops.activation import gelu, reference_gelu, reference_swiglu, swiglu
from engine.ops.adamw import Moment, Slots, adamw_, reference_adamw_
from engine.ops.cross_entropy import gradient_, local_stats
from engine.ops.lamb import cut, lamb_apply_, lamb_moments_
from engine.ops.native import Kernels, choose
from engine.ops.norm import NormOp, norm, reference_norm
from engine.ops.rotary import reference_rotate, rotary_tables, rotate
from tests.engine.ops.forms import BOUND, assert_near, error, numbers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")
TYPES = [torch.float32, torch.float64, torch.bfloat16]
SHAPES = [(3, 7), (37, 129), (300, 4096), (5, 12288), (2, 20480)]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    made = choose("native", GPU, torch.bfloat16)
    assert made is not None
    return made


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_norm(kernels, kind, shape, dtype):
    op = NormOp(kind, 1e-5, kernels)
    inputs = [numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)]
    inputs += [numbers(shape[-1], dtype=dtype, seed=2 + i) for i in range(2)]

    def run(function):
        def both(x, residual, weight, bias):
            bias = bias if kind == "layernorm" else None
            y, s = function(x, weight, bias, op, residual)
            return y + 0.5 * s + (0.0 if bias is not None else 0.0 * weight)

        return both

    used = inputs if kind == "layernorm" else inputs[:3]
    call = run if kind == "layernorm" else lambda f: lambda x, r, w: run(f)(x, r, w, None)
    assert_near(call(norm), call(reference_norm), [x.to(GPU) for x in used])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activations(kernels, shape, dtype):
    x, up = (3 * numbers(*shape, dtype=dtype, seed=i).to(GPU) for i in range(2))
    bias = numbers(shape[-1], dtype=dtype, seed=2).to(GPU)
    assert_near(lambda *a: gelu(*a, kernels=kernels), reference_gelu, [x, bias])
    assert_near(lambda a: gelu(a, kernels=kernels), reference_gelu, [x])
    assert_near(lambda *a: swiglu(*a, kernels=kernels), reference_swiglu, [x, up])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rotary(kernels, dtype):
    x = numbers(9, 2, 3, 128, dtype=dtype).to(GPU)
    cos, sin = rotary_tables(9, 128, 10000.0, x)
    exact = (cos.double(), sin.double())
    assert_near(
        lambda x: rotate(x, cos, sin, kernels=kernels), lambda x: reference_rotate(x, *exact), [x]
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropy(kernels, shape, dtype):
    logits = 4 * numbers(*shape, dtype=dtype).to(GPU)
    targets = torch.randint(shape[1] + 5, (shape[0],), device=GPU)
    stats = local_stats(logits, targets, 2, kernels=kernels)
    exact = local_stats(logits.double(), targets, 2)
    assert max(error(a, b) for a, b in zip(stats, exact, strict=True)) < 1e-5
    scale = torch.tensor(0.3, device=GPU)
    want = gradient_(logits.double(), targets, exact, scale, 2)
    assert error(gradient_(logits, targets, stats, scale, 2, kernels=kernels), want) < BOUND[dtype]


def state(n: int, dtype: torch.dtype) -> Slots:
    return Slots(*(numbers(n, dtype=dtype, seed=i).abs().to(GPU) for i in range(4)))


@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
@pytest.mark.parametrize("n", [5, 70001])
def test_optimizers(kernels, n, dtype):
    moment = Moment(0.9, 0.95, 1e-8, 2, 0.5)
    found, exact = state(n, dtype), Slots(*(t.double() for t in state(n, dtype)))
    adamw_(found, moment, lr=1e-2, decay=0.1, kernels=kernels)
    reference_adamw_(exact, moment, lr=1e-2, decay=0.1)
    assert max(error(a, b) for a, b in zip(found, exact, strict=True)) < BOUND[dtype]

    pieces = cut([(0, n // 3), (n // 3, n)], [0.1, 0.0], GPU)
    ratio = torch.tensor([0.5, 2.0], dtype=torch.float64, device=GPU)
    results = []
    for chosen, slots in (
        (kernels, state(n, dtype)),
        (kernels, state(n, dtype)),
        (None, Slots(*(t.double() for t in state(n, dtype)))),
    ):
        norms = lamb_moments_(slots, moment, pieces, kernels=chosen)
        lamb_apply_(slots, pieces, ratio, lr=1e-2, kernels=chosen)
        results.append([norms, *slots])
    once, again, plain = results
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert max(error(a, b) for a, b in zip(once, plain, strict=True)) < BOUND[dtype]


def test_the_same_backward_twice_gives_the_same_bits(kernels):
    op = NormOp("layernorm", 1e-5, kernels)
    x, dy = (numbers(3000, 1024, dtype=torch.bfloat16, seed=i).to(GPU) for i in range(2))
    weight = torch.ones(1024, dtype=torch.bfloat16, device=GPU)
    _, saved = op.forward(x, weight, weight)
    found = []
    for _ in range(2):
        into = (torch.zeros(1024, device=GPU), torch.zeros(1024, device=GPU))
        found.append((op.backward(dy, saved, weight, into), *into))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
