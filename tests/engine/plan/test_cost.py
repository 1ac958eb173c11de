import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.plan.cost import attention_s, flops_per_step, gemm_s, layer_cost, mfu
from engine.plan.setup import Experts, PlanLayout, single
from engine.spec.model import ModelSpec
from tests.engine.plan.case import job, replace

BIG = job("175b", gpus=12288, batch=6144)
SIDES = st.integers(1, 512).map(lambda n: 64.0 * n)


def test_mfu_is_the_paper_s_formula():
    # 72 n h^2 (1 + s/6h + V/12nh) per token gives the 41.2 % of Table 2's last Megatron row
    model = BIG.model
    n, h, s, v = model.layers, model.hidden, model.seq, model.vocab
    formula = 72 * n * h * h * (1 + s / (6 * h) + v / (12 * n * h)) * 6144 * s
    assert flops_per_step(BIG) == pytest.approx(formula, rel=1e-12)
    assert mfu(BIG, 8.57, 12288) == pytest.approx(0.412, abs=0.001)


def test_window_credit_reproduces_the_paper_s_megascale_row():
    model = replace(BIG.model, window=768, block="parallel")
    assert mfu(replace(BIG, model=model), 6.34, 12288, "window") == pytest.approx(0.552, abs=0.001)


@pytest.mark.parametrize(("activation", "products"), [("gelu", 2), ("swiglu", 3)])
def test_an_expert_has_two_products_or_three_with_a_gate(activation, products):
    one = job("13b", gpus=8)
    gated = replace(one, model=replace(one.model, activation=activation))
    experts = [replace(gated, experts=Experts(count=8, top_k=k, ffn=1024)) for k in (1, 2)]
    more = flops_per_step(experts[1]) - flops_per_step(experts[0])
    tokens = gated.global_batch * gated.model.seq
    # forward and backward: six FLOPs for every weight that a token meets
    weights = products * gated.model.hidden * 1024 * gated.model.layers
    assert more == pytest.approx(6.0 * tokens * weights)


def test_experts_count_what_a_token_visits():
    dense = job(ModelSpec(layers=4, hidden=256, heads=4, vocab=512, seq=128, ffn=1024))
    same = replace(dense, experts=Experts(count=8, top_k=1, ffn=1024))
    two = replace(dense, experts=Experts(count=8, top_k=2, ffn=1024))
    assert flops_per_step(same) == flops_per_step(dense)
    extra = 6 * 256 * 128 * 4 * 2 * 256 * 1024
    assert flops_per_step(two) - flops_per_step(dense) == pytest.approx(extra)


@given(SIDES, SIDES, SIDES)
def test_a_product_is_never_faster_than_the_peak(m, n, k):
    assert gemm_s(BIG, m, n, k) >= 2 * m * n * k / BIG.peak_flops_per_s


@given(SIDES, SIDES, SIDES, st.floats(1, 4))
def test_a_faster_device_is_never_slower(m, n, k, factor):
    assert gemm_s(replace(BIG, speed=factor * BIG.speed), m, n, k) <= gemm_s(BIG, m, n, k)


def test_part_filled_waves_cost_what_whole_ones_do():
    device = replace(BIG.cluster.device, units=100)
    whole = replace(
        BIG, cluster=replace(BIG.cluster, device=device),
        physics=replace(BIG.physics, wave_share=1.0),
    )  # fmt: skip
    k = 65536.0
    full = gemm_s(whole, 2560.0, 1280.0, k)  # 10 x 10 tiles of 256 x 128: exactly one wave
    over = gemm_s(whole, 2560.0, 1408.0, k)  # 110 tiles: two waves, or smaller tiles
    assert over / full > 1.15


def test_odd_sizes_pay_for_alignment():
    assert gemm_s(BIG, 4096, 1800, 4096) > gemm_s(BIG, 4096, 1856, 4096)


KORTHIKANTI_LAYER = (  # ms forward and backward, 22B layer, A100, tp 8, b 4 (arXiv:2205.05198 T4)
    (False, 19.6), (True, 19.0),
)  # fmt: skip


@pytest.mark.parametrize(("split", "measured_ms"), KORTHIKANTI_LAYER)
def test_a_layer_takes_what_was_measured(split, measured_ms):
    from engine.plan.price import price

    model = ModelSpec(layers=1, hidden=6144, heads=64, vocab=51200, seq=2048)
    base = replace(job(model, gpus=8, batch=4, system="megatron-2021"), attention="unfused")
    one = replace(base, speed=0.9)
    prices = price(one, single(PlanLayout(tp=8, micro_batch=4, sequence_parallel=split)))
    predicted = 1e3 * float(prices.chunk_f + prices.chunk_b)
    assert predicted == pytest.approx(measured_ms, rel=0.10)


def test_small_kernels_are_bound_by_the_host():
    tiny = job(ModelSpec(layers=2, hidden=64, heads=4, vocab=256, seq=32), gpus=8)
    cost = layer_cost(tiny, single(PlanLayout()))
    assert cost.forward_s >= cost.host_f


def test_windows_and_flash_attention_save_time():
    full = attention_s(BIG, single(PlanLayout(tp=8)), 2048.0)
    windowed = replace(BIG, model=replace(BIG.model, window=512))
    scores = replace(BIG, attention="unfused")
    assert attention_s(windowed, single(PlanLayout(tp=8)), 2048.0)[0] < full[0]
    assert attention_s(scores, single(PlanLayout(tp=8)), 2048.0)[1] > full[1]
