"""AdamW of a flat run in both forms against torch.optim.AdamW."""

import pytest
import torch

from engine.ops.adamw import Moment, Slots, adamw_
from tests.engine.ops.forms import error, kernels, numbers

FORMS = [pytest.param("native", marks=pytest.mark.native), "plain"]
STEPS = 6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("n", [1, 7, 1000, 70001])
def test_equals_torchs(n, dtype, bound, form):
    chosen = kernels() if form == "native" else None
    exact = numbers(n).requires_grad_()
    optimizer = torch.optim.AdamW(
        [exact], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3, foreach=False
    )
    zeros = (torch.zeros(n, dtype=dtype), torch.zeros(n, dtype=dtype))
    param = numbers(n, dtype=dtype)
    for update in range(STEPS):
        grad = numbers(n, dtype=dtype, seed=update + 1)
        exact.grad = 0.5 * grad.double()
        optimizer.step()
        before = grad.clone()
        moment = Moment(0.9, 0.95, 1e-8, update, grad_scale=0.5)
        adamw_(Slots(param, grad, *zeros), moment, lr=1e-2, decay=0.3, kernels=chosen)
        assert torch.equal(grad, before), "the gradient is only read"
    state = optimizer.state[exact]
    assert error(param, exact.detach()) < bound
    assert error(zeros[0], state["exp_avg"]) < bound
    assert error(zeros[1], state["exp_avg_sq"]) < bound
