"""A planned layout in the words of the systems that run it.

`recipe` is msctl's own TOML; `megatron` a command line for Megatron-LM's pretrain_gpt.py;
`torchtitan` a TOML of its JobConfig (torchtitan 0.2); `sbatch` a script that starts our own recipe.
Field names are checked against the published packages (tests/engine/plan/peer_fields.json).
"""

import msgspec

from engine.errors import LayoutError
from engine.plan.planned import TRAINED, obstacle, recipe, sbatch
from engine.plan.setup import Job, PlanLayout
from engine.spec.recipe import Recipe
from engine.spec.toml import dump_toml

FORMATS = ("recipe", "megatron", "torchtitan", "sbatch")
OWN = ("recipe", "sbatch")
"""Those that `msctl train` runs."""
PRECISIONS: dict[str, tuple[str, ...]] = {
    "recipe": TRAINED,
    "sbatch": TRAINED,
    "megatron": ("bf16", "fp16", "fp32"),
    "torchtitan": ("bf16", "fp32"),
}
"""What each text can say of precision."""
TOKENS = 300e9
"""Trained on where neither --tokens nor a recipe's steps say how long."""


def emit(
    kind: str, job: Job, layout: PlanLayout, *, base: Recipe | None = None, tokens: float = 0.0
) -> str:
    """The text for one system, made of a recipe where there is one; tokens = 0: not given.

    LayoutError if the system has no such axis or precision.
    """
    known_format(kind)
    check_precision(kind, job.precision)
    steps = steps_of(job, base, tokens)
    if kind == "recipe":
        return recipe(job, layout, steps, base)
    if kind == "sbatch":
        return sbatch(job, layout, steps, base)
    return (megatron if kind == "megatron" else torchtitan)(job, layout, steps)


def known_format(kind: str) -> None:
    """LayoutError for a system that nothing can be written for."""
    if kind not in FORMATS:
        raise LayoutError(
            f"there is nothing to emit for {kind!r}", remedy=f"use one of {', '.join(FORMATS)}"
        )


def check_precision(kind: str, precision: str) -> None:
    """LayoutError if the text would train in another precision than was planned."""
    if precision not in PRECISIONS[kind]:
        whose = "`msctl train` trains" if kind in OWN else f"--emit {kind} writes"
        raise LayoutError(
            f"precision {precision}: {whose} {', '.join(PRECISIONS[kind])} only",
            remedy="use --precision bf16, or leave out --emit to plan without a text to run",
        )


def steps_of(job: Job, base: Recipe | None, tokens: float) -> int:
    """Optimizer steps: of the tokens given, else the recipe's, else of `TOKENS`."""
    if base is not None and not tokens:
        return base.train.steps
    return max(1, round((tokens or TOKENS) / (job.global_batch * job.model.seq)))


def unfit(kind: str, job: Job, layout: PlanLayout, base: Recipe | None = None) -> str:
    """Why a system cannot run a layout, in words; empty if it can."""
    if kind in OWN:
        return obstacle(job, layout, base)
    if kind == "megatron" and layout.schedule != "auto":
        return f"{layout.schedule} schedule"
    return "ZeRO-3" if kind == "megatron" and layout.zero > 2 else ""


def megatron(job: Job, layout: PlanLayout, steps: int) -> str:
    """Arguments of Megatron-LM, one a line; the reader adds data and tokeniser."""
    model = job.model
    lacking = unfit("megatron", job, layout)
    if lacking:
        raise LayoutError(
            f"Megatron-LM has no {lacking}",
            remedy="hold it with --set schedule.kind=auto --set layout.zero=1",
        )
    words: list[tuple[str, object]] = [
        ("num-layers", model.layers), ("hidden-size", model.hidden),
        ("num-attention-heads", model.heads), ("ffn-hidden-size", model.ffn),
        ("seq-length", model.seq), ("max-position-embeddings", model.seq),
        ("tensor-model-parallel-size", layout.tp), ("pipeline-model-parallel-size", layout.pp),
        ("context-parallel-size", layout.cp), ("micro-batch-size", layout.micro_batch),
        ("global-batch-size", job.global_batch), ("train-iters", steps),
        ("normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
        ("position-embedding-type", "rope" if model.position == "rotary" else "learned_absolute"),
        ("attention-dropout", model.dropout), ("hidden-dropout", model.dropout),
    ]  # fmt: skip
    if layout.vpp > 1:
        words.append(
            ("num-layers-per-virtual-pipeline-stage", model.layers // (layout.pp * layout.vpp))
        )
    if model.kv_heads != model.heads:
        words += [("group-query-attention", None), ("num-query-groups", model.kv_heads)]
    if model.window:
        span = model.window_of(0)
        words.append(("window-size", f"{span - 1},0"))
    words += [(flag, None) for flag in _megatron_flags(job, layout)]
    if layout.recompute == "full":
        words += [("recompute-granularity", "full"), ("recompute-method", "uniform")]
        words.append(("recompute-num-layers", 1))
    elif layout.recompute == "selective":
        words.append(("recompute-granularity", "selective"))
    lines = [f"--{name}" if value is None else f"--{name} {value}" for name, value in words]
    return " \\\n".join(["torchrun pretrain_gpt.py", *(f"  {text}" for text in lines)]) + "\n"


def _megatron_flags(job: Job, layout: PlanLayout) -> list[str]:
    """Switches without a value."""
    model, profile = job.model, job.profile
    flags = ["use-mcore-models", "use-flash-attn"]
    flags += [job.precision] if job.precision != "fp32" else []
    flags += ["swiglu"] if model.activation == "swiglu" else []
    flags += ["disable-bias-linear"] if not model.bias else []
    flags += ["untie-embeddings-and-output-weights"] if not model.tied else []
    flags += ["sequence-parallel"] if layout.sequence_parallel and layout.tp > 1 else []
    flags += ["use-distributed-optimizer"] if layout.zero >= 1 else []
    if profile.overlap_dp and layout.zero >= 1:
        flags += ["overlap-grad-reduce", "overlap-param-gather"]
    if profile.overlap_tp and layout.tp > 1 and layout.sequence_parallel:
        flags.append("tp-comm-overlap")
    return flags


def torchtitan(job: Job, layout: PlanLayout, steps: int) -> str:
    """A JobConfig file; flavor and assets are to be filled in by the reader."""
    model = job.model
    per_replica = job.global_batch // layout.dp
    sections: dict[str, dict[str, object]] = {
        "model": {"name": "llama3", "flavor": "FILL_IN", "hf_assets_path": "FILL_IN"},
        "training": {
            "local_batch_size": per_replica if layout.pp > 1 else layout.micro_batch,
            "global_batch_size": job.global_batch, "seq_len": model.seq, "steps": steps,
            "mixed_precision_param": "bfloat16" if job.precision == "bf16" else "float32",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": layout.dp,
            "tensor_parallel_degree": layout.tp, "context_parallel_degree": layout.cp,
            "expert_parallel_degree": layout.ep, "pipeline_parallel_degree": layout.pp,
            "pipeline_parallel_schedule": _torch_schedule(layout),
            "pipeline_parallel_microbatch_size": layout.micro_batch,
            "pipeline_parallel_layers_per_stage":
                max(1, model.layers // (layout.pp * layout.vpp)),
            "enable_async_tensor_parallel": job.profile.overlap_tp and layout.tp > 1,
        },
        "activation_checkpoint": {"mode": layout.recompute},
        "compile": {"enable": True},
    }  # fmt: skip
    return dump_toml(sections)


def _torch_schedule(layout: PlanLayout) -> str:
    """The name of torch.distributed.pipelining."""
    if layout.schedule == "auto":
        return "Interleaved1F1B" if layout.vpp > 1 else "1F1B"
    return {"gpipe": "GPipe", "zero-bubble": "InterleavedZeroBubble"}[layout.schedule]


def layout_json(layout: PlanLayout) -> str:
    """The layout alone, for scripts."""
    return msgspec.json.encode(layout).decode()
