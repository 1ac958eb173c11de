"""LayerNorm and RMSNorm in both forms against the reference: odd sizes, residual, bits."""

import pytest
import torch

from engine.ops.norm import NormOp, Saved, norm, reference_norm
from tests.engine.ops.forms import assert_near, error, kernels, numbers

SHAPES = [(1, 1), (3, 7), (5, 2, 129), (2, 3, 64), (70, 33)]
FORMS = [pytest.param("native", marks=pytest.mark.native), "plain"]


def op_of(kind: str, form: str) -> NormOp:
    return NormOp(kind, 1e-5, kernels() if form == "native" else None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_norm_equals_the_reference(form, residual, kind, shape, dtype):
    op, cols = op_of(kind, form), shape[-1]
    if kind == "layernorm" and cols == 1:
        pytest.skip("one value has no spread: everything is rounding")
    inputs = [numbers(*shape, dtype=dtype), numbers(cols, dtype=dtype, seed=1)]
    if kind == "layernorm":
        inputs.append(numbers(cols, dtype=dtype, seed=2))
    if residual:
        inputs.append(numbers(*shape, dtype=dtype, seed=3))

    def run(function):
        def both(x, weight, *rest):
            bias = rest[0] if kind == "layernorm" else None
            y, s = function(x, weight, bias, op, rest[-1] if residual else None)
            return torch.cat((y, s.sin()), -1)  # gradients reach s on both ways

        return both

    # torch sums the gradients of bf16 weights in bf16
    slack = 2 if (form, dtype) == ("plain", torch.bfloat16) else 1
    assert_near(run(norm), run(reference_norm), inputs, slack=slack)


@pytest.mark.parametrize("form", FORMS)
def test_weight_gradients_are_added_to_what_is_there(form):
    op, weight = op_of("layernorm", form), numbers(33)
    x, dy = numbers(70, 33), numbers(70, 33, seed=1)
    _, saved = op.forward(x, weight, weight)
    once = (torch.zeros(33).double(), torch.zeros(33).double())
    op.backward(dy, saved, weight, once)
    into = (torch.ones(33).double(), torch.full((33,), 2.0).double())
    op.backward(dy, saved, weight, into)
    assert torch.allclose(into[0], once[0] + 1, atol=1e-13)
    assert torch.allclose(into[1], once[1] + 2, atol=1e-13)


@pytest.mark.native
def test_bf16_weight_gradients_are_summed_in_float32():
    op = op_of("layernorm", "native")
    x, weight = numbers(500, 16, dtype=torch.bfloat16), torch.ones(16, dtype=torch.bfloat16)
    dy = numbers(500, 16, dtype=torch.bfloat16, seed=1).abs()
    _, saved = op.forward(x, weight, weight)
    into = (torch.zeros(16), torch.zeros(16))
    op.backward(dy, saved, weight, into)
    assert error(into[1], dy.double().sum(0)) < 1e-6


@pytest.mark.native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_bits_depend_on_neither_time_nor_threads(threads):
    op = op_of("layernorm", "native")
    x, weight, dy = (numbers(n, 515, dtype=torch.float32, seed=n) for n in (301, 1, 301))
    weight = weight[0]

    def run() -> list[torch.Tensor]:
        y, saved = op.forward(x, weight, weight)
        into = (torch.zeros(515), torch.zeros(515))
        return [y, op.backward(dy, saved, weight, into), *into]

    alone, before = run(), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert all(torch.equal(a, b) for a, b in zip(alone, run(), strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.native
def test_no_rows_are_no_work():
    op = op_of("rmsnorm", "native")
    x, weight = torch.empty(0, 8), torch.ones(8)
    y, saved = op.forward(x, weight, None)
    into = (torch.ones(8), None)
    assert op.backward(y, saved, weight, into).shape == (0, 8)
    assert torch.equal(into[0], torch.ones(8))


@pytest.mark.native
def test_a_wrong_tensor_is_refused():
    op = op_of("rmsnorm", "native")
    _, saved = op.forward(numbers(4, 8), numbers(8), None)
    with pytest.raises(RuntimeError, match="dweight: wrong element type"):
        op.backward(numbers(4, 8), Saved(*saved), numbers(8), (torch.zeros(8), None))
    with pytest.raises(RuntimeError, match="dy: has 24 elements, needs 32"):
        op.backward(numbers(3, 8), Saved(*saved), numbers(8), (numbers(8), None))
