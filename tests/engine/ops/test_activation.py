"""GeLU and SwiGLU in both forms against torch's own in float64; rows that lie apart."""

import pytest
import torch

from engine.ops.activation import gelu, reference_gelu, reference_swiglu, rows_of, swiglu
from tests.engine.ops.forms import assert_near, kernels, numbers

pytestmark = pytest.mark.native
TYPES = [torch.float32, torch.float64, torch.bfloat16]
SHAPES = [(1, 1), (3, 7), (5, 2, 129), (67, 33)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_gelu_equals_the_reference(biased, shape, dtype):
    inputs = [3 * numbers(*shape, dtype=dtype)]
    inputs += [numbers(shape[-1], dtype=dtype, seed=1)] if biased else []
    assert_near(lambda x, *bias: gelu(x, *bias, kernels=kernels()), reference_gelu, inputs)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_swiglu_equals_the_reference(shape, dtype):
    inputs = [3 * numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)]
    assert_near(lambda *x: swiglu(*x, kernels=kernels()), reference_swiglu, inputs)


@pytest.mark.parametrize("shape", [(5, 2, 7), (9, 1, 64)], ids=str)
def test_parts_of_a_wider_matrix_need_no_copy(shape):
    *outer, cols = shape
    whole = numbers(*outer, 3 * cols)
    up, gate = whole[..., cols : 2 * cols], whole[..., 2 * cols :]
    assert rows_of(up).data_ptr() == up.data_ptr()
    dy = numbers(*shape, seed=1)

    def run(function, *inputs):
        leaves = whole.clone().requires_grad_()
        parts = leaves[..., cols : 2 * cols], leaves[..., 2 * cols :]
        y = function(*parts[: len(inputs)])
        return y.detach(), torch.autograd.grad(y, leaves, dy)[0]

    for native, plain, inputs in (
        (lambda g, u: swiglu(g, u, kernels=kernels()), reference_swiglu, (gate, up)),
        (lambda x: gelu(x, kernels=kernels()), reference_gelu, (up,)),
    ):
        for ours, exact in zip(run(native, *inputs), run(plain, *inputs), strict=True):
            assert torch.allclose(ours, exact, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_far_values_stay_finite_and_right(dtype):
    x = torch.tensor([-1e4, -90.0, -20.0, -0.0, 0.0, 20.0, 90.0, 1e4], dtype=dtype)
    for native, plain in (
        (gelu, reference_gelu),
        (lambda v, kernels: swiglu(v, v, kernels=kernels), lambda v: reference_swiglu(v, v)),
    ):
        leaf, exact_leaf = x.clone().requires_grad_(), x.double().clone().requires_grad_()
        y, exact = native(leaf, kernels=kernels()), plain(exact_leaf)
        y.sum().backward()
        exact.sum().backward()
        assert torch.allclose(y.double(), exact, rtol=1e-6, atol=1e-30)
        assert torch.allclose(leaf.grad.double(), exact_leaf.grad, rtol=1e-5, atol=1e-30)


def test_nan_is_kept():
    x = torch.tensor([1.0, float("nan")])
    assert torch.isnan(gelu(x, kernels=kernels())).tolist() == [False, True]
    assert torch.isnan(swiglu(x, x, kernels=kernels())).tolist() == [False, True]
