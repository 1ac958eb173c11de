"""Score llm-analysis and a constant-efficiency guess beside the plan, in one run.

    pip install --target SITE --no-deps llm-analysis fire termcolor
    PYTHONPATH=SITE python bench/peers/plan/anchors.py TABLE.csv

llm-analysis takes the share of the peak that is reached as an input. It gets the single value that
is best for it over all rows it can express, which is more than a user has. The guess is one TFLOP/s
per device and precision, the median of the same table.
"""

import argparse
import logging
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from engine.plan.cost import flops_per_step  # noqa: E402
from engine.plan.profiles import fitted  # noqa: E402
from engine.plan.rows import Case, read_rows  # noqa: E402
from engine.plan.setup import PlanLayout  # noqa: E402
from engine.plan.validate import cases_of, predict  # noqa: E402

EFFICIENCIES = (0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8)
GPUS = {"A100-80GB": "a100-sxm-80gb", "A100-40GB": "a100-sxm-40gb", "H100-80GB": "h100-sxm-80gb"}


def llm_analysis(case: Case, layout: PlanLayout) -> float | None:
    """Seconds of a step by llm-analysis at the peak; None where it cannot express the row.

    Its time is FLOPs over rate, so that any efficiency is a division.
    """
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import (
        ModelConfig,
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
    )  # fmt: skip

    job = case.job
    gpu = GPUS.get(job.cluster.device.name)
    if gpu is None or layout.cp > 1 or case.layers_only or job.precision not in ("bf16", "fp16"):
        return None
    model = job.model
    shape = ModelConfig(
        name="x", num_layers=model.layers, n_head=model.heads, hidden_dim=model.hidden,
        vocab_size=model.vocab, max_seq_len=model.seq, num_key_value_heads=model.kv_heads,
        ffn_embed_dim=model.ffn,
    )  # fmt: skip
    analysis = LLMAnalysis(
        shape, get_gpu_config_by_name(gpu), get_dtype_config_by_name("w16a16e16"),
        ParallelismConfig(tp_size=layout.tp, pp_size=layout.pp, dp_size=layout.dp,
                          sp_size=layout.tp if layout.sequence_parallel else 1),
        flops_efficiency=1.0, inter_node_memory_efficiency=0.8,
    )  # fmt: skip
    kinds = {"none": ActivationRecomputation.NONE, "full": ActivationRecomputation.FULL,
             "selective": ActivationRecomputation.SELECTIVE}  # fmt: skip
    steps = max(1, job.global_batch // (layout.dp * layout.micro_batch))
    found = analysis.training(
        batch_size_per_gpu=layout.micro_batch, gradient_accumulation_steps=steps,
        seq_len=model.seq, activation_recomputation=kinds[layout.recompute],
        ds_zero=DSZeRO(min(layout.zero, 3)), flash_attn=job.attention.startswith("flash"),
        mlp_gated_linear_units=model.activation == "swiglu",
    )  # fmt: skip
    flops = found["num_flops_total_per_micro_batch"] * steps
    return float(flops / (layout.tp * layout.pp * job.peak_flops_per_s))


def guess(cases: list[Case]) -> dict[str, float]:
    """One rate per device and precision, the median of those measured."""
    rates = defaultdict(list)
    for case in cases:
        key = f"{case.job.cluster.device.name}/{case.job.precision}"
        rates[key].append(_rate(case))
    return {key: float(np.median(values)) for key, values in rates.items()}


def _rate(case: Case) -> float:
    return flops_per_step(case.job) / case.layouts[0].world_size / case.measured_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    cases = [c for c in cases_of(read_rows(given.table), fitted())[0] if c.measured_s > 0]
    cases = [c for c in cases if not c.layers_only]
    rates = guess(cases)
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    peer: dict[float, list[tuple[str, float]]] = defaultdict(list)
    refused: dict[str, int] = defaultdict(int)
    for case in cases:
        seconds, layout, _ = predict(case)
        errors["plan"][case.group].append(abs(seconds / case.measured_s - 1))
        key = f"{case.job.cluster.device.name}/{case.job.precision}"
        errors["guess"][case.group].append(abs(_rate(case) / rates[key] - 1))
        try:
            full_s = llm_analysis(case, layout)
        except Exception as error:
            refused[f"{type(error).__name__}: {error}"[:90]] += 1
            continue
        for efficiency in EFFICIENCIES if full_s else ():
            peer[efficiency].append((case.group, abs(full_s / efficiency / case.measured_s - 1)))
    best = min(peer, key=lambda e: np.mean([x for _, x in peer[e]])) if peer else 0.0
    for group, error in peer.get(best, []):
        errors["llm-analysis"][group].append(error)
    print(f"llm-analysis at its best single efficiency, {best}; not expressible: {dict(refused)}")
    print(f"{'source':18s} {'rows':>5s} {'plan':>7s} {'guess':>7s} {'llm-analysis':>13s} (rows)")
    for group in sorted(errors["plan"]):
        theirs = errors["llm-analysis"].get(group, [])
        shown = f"{np.mean(theirs):13.3f} ({len(theirs)})" if theirs else f"{'-':>13s}"
        print(f"{group:18s} {len(errors['plan'][group]):5d} {np.mean(errors['plan'][group]):7.3f} "
              f"{np.mean(errors['guess'][group]):7.3f} {shown}")  # fmt: skip


if __name__ == "__main__":
    main()
