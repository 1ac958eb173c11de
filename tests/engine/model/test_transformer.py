"""The plain model: its size, its blocks by the paper's formulas, cutting, dropout."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from engine.model.parameter import info_of
from engine.model.transformer import Block, Chunk, Dropout, MicroBatch, added, set_seed, whole_model
from engine.spec.model import ModelSpec
from engine.spec.presets import MODELS, model_preset

TOLERANCE = 1e-12
SMALL = {"layers": 3, "hidden": 16, "heads": 4, "vocab": 32, "seq": 8}
LLAMA = {
    "norm": "rmsnorm", "activation": "swiglu", "position": "rotary", "bias": False, "tied": False,
    "kv_heads": 2,
}  # fmt: skip


def batch(spec: ModelSpec, size: int = 2, step: int = 0) -> MicroBatch:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(spec.vocab, (spec.seq + 1, size), generator=generator)
    return MicroBatch(tokens[:-1], tokens[1:], torch.arange(size), step)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("block", ["serial", "parallel"])
def test_presets_have_as_many_parameters_as_their_spec_says(name, block):
    spec = ModelSpec(**(MODELS[name] | {"block": block}))
    with torch.device("meta"):
        model = Chunk(spec, range(spec.layers), first=True, last=True)
    assert sum(p.numel() for p in model.parameters()) == spec.params


@pytest.mark.parametrize(
    ("norm", "activation", "position", "bias", "tied", "block"),
    list(itertools.product(
        ("layernorm", "rmsnorm"), ("gelu", "swiglu"), ("learned", "rotary", "none"),
        (True, False), (True, False), ("serial", "parallel"),
    )),
)  # fmt: skip
def test_every_combination_has_as_many_parameters_as_its_spec_says(
    norm, activation, position, bias, tied, block
):
    spec = ModelSpec(
        norm=norm, activation=activation, position=position, bias=bias, tied=tied, block=block,
        kv_heads=2, ffn=24, head_dim=6, **SMALL,
    )  # fmt: skip
    with torch.device("meta"):
        model = Chunk(spec, range(spec.layers), first=True, last=True)
    assert sum(p.numel() for p in model.parameters()) == spec.params


def test_gpt_175b_is_the_papers_size():
    """Table 1 says 175 G; 12 l h^2 (1 + 13/12h + (V + s)/12lh) with the paper's numbers."""
    spec = model_preset("175b")
    l, h, v, s = spec.layers, spec.hidden, spec.vocab, spec.seq  # noqa: E741 - the paper's letters
    formula = 12 * l * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * l * h)) + 2 * h
    assert spec.params == round(formula)
    assert spec.params / 1e9 == pytest.approx(175, rel=0.01)


@pytest.mark.parametrize("shape", [{}, LLAMA], ids=["gpt", "llama"])
def test_the_serial_block_is_two_residual_sublayers(shape):
    """y = z + MLP(norm(z)) with z = x + Attn(norm(x)), written with torch's own functions."""
    spec = ModelSpec(**(SMALL | shape))
    model = whole_model(spec, seed=1, dtype=torch.float64)
    block: Block = model.layers["1"]
    x = torch.randn(spec.seq, 2, spec.hidden, generator=torch.Generator().manual_seed(0)).double()
    micro = batch(spec)
    a, m = block.attn, block.mlp
    q, k, v = (F.linear(a.norm(x)[0], p.weight, p.bias) for p in (a.into.q, a.into.k, a.into.v))
    z = x + F.linear(a.attn(q, k, v), a.out.o.weight, a.out.o.bias)
    up = F.linear(m.norm(z)[0], m.into.up.weight, m.into.up.bias)
    if spec.activation == "swiglu":
        inner = F.silu(F.linear(m.norm(z)[0], m.into.gate.weight, m.into.gate.bias)) * up
    else:
        inner = F.gelu(up, approximate="tanh")
    expected = z + F.linear(inner, m.out.down.weight, m.out.down.bias)
    assert float((added(*block(x, None, micro)) - expected).detach().abs().max()) < TOLERANCE
    assert torch.equal(
        added(*block(x - 1, torch.ones_like(x), micro)), added(*block(x - 1 + 1, None, micro))
    )


@pytest.mark.parametrize("shape", [{}, LLAMA], ids=["gpt", "llama"])
def test_the_parallel_block_is_the_papers_formula(shape):
    """Paper 3.1: y = x + MLP(norm(x)) + Attn(norm(x)), one norm for both."""
    spec = ModelSpec(block="parallel", **(SMALL | shape))
    block: Block = whole_model(spec, seed=1, dtype=torch.float64).layers["0"]
    x = torch.randn(spec.seq, 2, spec.hidden, generator=torch.Generator().manual_seed(0)).double()
    both = block.both
    n, _ = both.norm(x)
    projected = {name: F.linear(n, p.weight, p.bias) for name, p in both.into.named_children()}
    attn = both.attn(projected["q"], projected["k"], projected["v"])
    mlp = both.mlp(projected["up"], projected.get("gate"))
    o, down = both.out.o, both.out.down
    expected = x + F.linear(mlp, down.weight, down.bias) + F.linear(attn, o.weight, o.bias)
    assert float((added(*block(x, None, batch(spec))) - expected).detach().abs().max()) < TOLERANCE


def test_norms_are_torchs():
    spec = ModelSpec(norm_eps=1e-3, **SMALL)
    x = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(0))
    layernorm = whole_model(spec, seed=1, dtype=torch.float32).head.norm
    assert torch.equal(layernorm(x)[0], F.layer_norm(x, (16,), eps=1e-3))
    rms = whole_model(ModelSpec(norm_eps=1e-3, **(SMALL | LLAMA)), seed=1, dtype=torch.float32)
    by_hand = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    assert torch.allclose(rms.head.norm(x)[0], by_hand, atol=1e-6)


def test_the_first_loss_is_that_of_guessing():
    """With small initial weights all tokens are about equally likely: ln V nats a token."""
    spec = ModelSpec(**SMALL)
    micro = batch(spec)
    loss = whole_model(spec, seed=1, dtype=torch.float64)(None, micro) / micro.targets_sb.numel()
    assert float(loss.detach()) == pytest.approx(torch.tensor(32.0).log().item(), rel=0.01)


@pytest.mark.parametrize("shape", [{}, LLAMA], ids=["gpt", "llama"])
def test_a_model_cut_in_chunks_is_the_model(shape):
    spec = ModelSpec(**(SMALL | shape))
    whole = whole_model(spec, seed=1, dtype=torch.float64)
    micro, x = batch(spec), None
    source = {info_of(p).name: p for p in whole.parameters()}
    for i in range(3):
        piece = Chunk(spec, range(i, i + 1), first=i == 0, last=i == 2).double()
        with torch.no_grad():
            for p in piece.parameters():
                p.copy_(source[info_of(p).name])
        x = piece(x, micro)
    assert torch.equal(x, whole(None, micro))


def test_no_token_sees_the_future():
    spec = ModelSpec(**SMALL)
    model = whole_model(spec, seed=1, dtype=torch.float64)
    model.head = None  # a chunk without the end gives the stream
    micro = batch(spec)
    changed = micro.tokens_sb.clone()
    changed[5] = (changed[5] + 1) % spec.vocab
    x, y = (model(None, m) for m in (micro, micro._replace(tokens_sb=changed)))
    moved = (x - y).abs().amax((1, 2)) > 0
    assert moved.tolist() == [i >= 5 for i in range(spec.seq)]


def test_rotary_tables_follow_length_precision_and_place():
    """The cached tables must not outlive the kind of input they were made for."""
    spec = ModelSpec(**(SMALL | LLAMA))
    core = whole_model(spec, seed=1, dtype=torch.float64).layers["0"].attn.attn
    for s, dtype in ((8, torch.float64), (4, torch.float64), (4, torch.float32)):
        q = torch.ones(s, 1, spec.q_size, dtype=dtype)
        k = torch.ones(s, 1, spec.kv_size, dtype=dtype)
        assert core(q, k, k).dtype == dtype
    q, k = (torch.ones(4, 1, n, device="meta") for n in (spec.q_size, spec.kv_size))
    assert core(q, k, k).device.type == "meta"


def test_window_list_is_repeated_over_the_layers():
    spec = ModelSpec(window=(4, 0), **SMALL)
    model = whole_model(spec, seed=1, dtype=torch.float32)
    assert [layer.attn.attn.window for layer in model.layers.values()] == [4, 0, 4]


def dropped(rate: float, seed: int = 1, **micro: object) -> torch.Tensor:
    drop = Dropout(rate, "0.attn")
    set_seed(drop, seed)
    spec = ModelSpec(**SMALL)
    given = batch(spec, size=4)._replace(**micro)
    return drop(torch.ones(spec.seq, 4, spec.hidden), given)


def test_dropout_keeps_the_mean_and_the_share():
    out = dropped(0.25)
    n = out.numel()
    kept = float((out > 0).double().mean())
    assert kept == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / n) ** 0.5)
    assert torch.allclose(out[out > 0], torch.tensor(1 / 0.75))


def test_dropout_depends_on_sample_step_site_and_seed_and_on_nothing_else():
    base = dropped(0.5)
    torch.manual_seed(99)
    assert torch.equal(dropped(0.5), base)
    assert not torch.equal(dropped(0.5, seed=2), base)
    assert not torch.equal(dropped(0.5, step=1), base)
    moved = dropped(0.5, sample_b=torch.tensor([3, 2, 1, 0]))
    assert torch.equal(moved.flip(1), base)


def test_dropout_of_a_part_of_the_sequence_is_that_part_of_the_whole():
    base = dropped(0.5)
    drop = Dropout(0.5, "0.attn")
    set_seed(drop, 1)
    drop.first = 4
    half = drop(torch.ones(4, 4, 16), batch(ModelSpec(**SMALL), size=4))
    assert torch.equal(half, base[4:])


def test_dropout_of_everything_gives_zeros():
    assert torch.equal(dropped(1.0), torch.zeros(8, 4, 16))


def test_evaluation_drops_nothing():
    model = whole_model(ModelSpec(dropout=0.5, **SMALL), seed=1, dtype=torch.float64)
    micro = batch(ModelSpec(**SMALL))
    training = model(None, micro)
    model.eval()
    evaluated = model(None, micro)
    plain = whole_model(ModelSpec(**SMALL), seed=1, dtype=torch.float64)(None, micro)
    assert torch.equal(evaluated, plain)
    assert not torch.equal(training, plain)
