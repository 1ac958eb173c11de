"""Cross-entropy pieces on a divided vocabulary against torch's cross_entropy on the whole one."""

import pytest
import torch
import torch.nn.functional as F

from engine.ops.cross_entropy import Stats, agree, gradient_, local_stats
from engine.ops.norm import wide
from tests.engine.ops.forms import BOUND, error, kernels, numbers

FORMS = [pytest.param("native", marks=pytest.mark.native), "plain"]


def loss_and_gradient(logits, targets, ranks, form):
    """As `ranks` ranks would compute them, the collectives done by hand."""
    chosen = kernels() if form == "native" else None
    parts = [p.contiguous() for p in logits.chunk(ranks, 1)]
    firsts = [sum(p.shape[1] for p in parts[:i]) for i in range(len(parts))]
    local = [local_stats(p, targets, f, kernels=chosen) for p, f in zip(parts, firsts, strict=True)]
    most = torch.stack([s.largest for s in local]).amax(0)
    sums = []
    for stats in local:
        agree(stats, lambda t: t.copy_(most), lambda t: sums.append(t.clone()) or t)
    whole = Stats(most, *torch.stack(sums).sum(0))
    scale = torch.tensor(0.25)
    grads = [
        gradient_(p.clone(), targets, whole, scale, f, kernels=chosen)
        for p, f in zip(parts, firsts, strict=True)
    ]
    return whole.losses(), torch.cat(grads, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "vocab"), [(1, 2), (5, 7), (33, 129), (4, 1030)])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_loss_and_gradient_equal_torchs(form, ranks, rows, vocab, dtype):
    logits = 5 * numbers(rows, vocab, dtype=dtype)
    targets = torch.randint(vocab, (rows,), generator=torch.Generator().manual_seed(1))
    exact_logits = logits.double().requires_grad_()
    exact = F.cross_entropy(exact_logits, targets, reduction="none")
    (0.25 * exact.sum()).backward()
    losses, grad = loss_and_gradient(logits, targets, ranks, form)
    assert losses.dtype == wide(dtype)
    assert error(losses, exact.detach()) < (1e-5 if dtype != torch.float64 else 1e-13)
    assert grad.dtype == dtype
    assert error(grad, exact_logits.grad) < BOUND[dtype]


@pytest.mark.parametrize("form", FORMS)
def test_large_logits_do_not_overflow(form):
    logits = torch.tensor([[1e4, 1e4, -1e4, 0.0]])
    losses, grad = loss_and_gradient(logits, torch.tensor([1]), 2, form)
    assert abs(float(losses) - 0.6931472) < 1e-5
    assert torch.allclose(grad, torch.tensor([[0.125, -0.125, 0.0, 0.0]]))


@pytest.mark.parametrize("form", FORMS)
def test_a_broken_logit_reaches_the_loss(form):
    logits = torch.tensor([[1.0, float("nan"), 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]])
    losses, _ = loss_and_gradient(logits, torch.tensor([0, 0]), 1, form)
    assert torch.isnan(losses).tolist() == [True, False]


@pytest.mark.native
def test_rows_may_lie_apart_and_the_gradient_takes_the_logits_place():
    wide_logits = numbers(6, 20)
    logits, targets = wide_logits[:, 3:12], torch.tensor([0, 3, 5, 9, 11, 12])
    before = wide_logits.clone()
    stats = local_stats(logits, targets, 3, kernels=kernels())
    exact = local_stats(logits.clone(), targets, 3)
    assert all(torch.allclose(a, b, atol=1e-13) for a, b in zip(stats, exact, strict=True))
    one = torch.ones((), dtype=torch.float64)
    want = gradient_(before[:, 3:12].clone(), targets, stats, one, 3)
    found = gradient_(logits, targets, stats, one, 3, kernels=kernels())
    assert found.data_ptr() == logits.data_ptr()
    assert torch.allclose(found, want, atol=1e-13)
    assert torch.equal(wide_logits[:, :3], before[:, :3]), "only the columns held here change"
    assert torch.equal(wide_logits[:, 12:], before[:, 12:])
