"""A planned layout in the words of the systems that run it.

`recipe` is msctl's own TOML; `megatron` a command line for Megatron-LM's pretrain_gpt.py;
`torchtitan` a TOML of its JobConfig (torchtitan 0.2); `sbatch` a job script around our own recipe.
Field names are checked against the published packages (tests/engine/plan/peer_fields.json).
"""

import msgspec

from engine.errors import LayoutError
from engine.plan.setup import Job, PlanLayout
from engine.spec.load import dump_recipe
from engine.spec.recipe import BatchSpec, DataSpec, OverlapSpec, Recipe, ScheduleSpec, TrainSpec
from engine.spec.toml import dump_toml

FORMATS = ("recipe", "megatron", "torchtitan", "sbatch")

NEEDS: dict[str, tuple[str, ...]] = {
    "megatron": ("schedule.kind=auto",),
    "recipe": ("layout.ep=1",),
    "sbatch": ("layout.ep=1",),
}
"""What the search holds fast so that a system can run the layout it finds."""


def emit(kind: str, job: Job, layout: PlanLayout, *, tokens: float = 300e9) -> str:
    """The text for one system; LayoutError if it has no such axis."""
    makers = {"recipe": recipe, "megatron": megatron, "torchtitan": torchtitan, "sbatch": sbatch}
    if kind not in makers:
        raise LayoutError(
            f"there is nothing to emit for {kind!r}", remedy=f"use one of {', '.join(FORMATS)}"
        )
    steps = max(1, round(tokens / (job.global_batch * job.model.seq)))
    return makers[kind](job, layout, steps)


def recipe(job: Job, layout: PlanLayout, steps: int) -> str:
    """A recipe that `msctl train` takes; the data section is to be filled in."""
    ours = layout.parallel()
    if ours is None or job.experts is not None:
        raise LayoutError(
            f"the engine runs no cp = {layout.cp}, ep = {layout.ep}, ZeRO-{layout.zero} or experts",
            remedy="hold the axes with --set layout.cp=1 --set layout.ep=1 --set layout.zero=2",
        )
    made = Recipe(
        name="planned",
        model=job.model,
        batch=BatchSpec(global_batch=job.global_batch, micro_batch=layout.micro_batch),
        layout=ours,
        schedule=ScheduleSpec(kind=layout.schedule),
        overlap=OverlapSpec(
            tp=job.profile.overlap_tp and layout.tp > 1,
            pp=job.profile.overlap_pp,
            dp=job.profile.overlap_dp,
            tp_pieces=4 if job.profile.overlap_tp and layout.tp > 1 else 1,
        ),
        data=DataSpec(format="synthetic", source=()),
        train=TrainSpec(steps=steps, precision="bf16", device="cuda", recompute=layout.recompute),
        cluster=job.cluster,
    )
    return dump_recipe(made)


def megatron(job: Job, layout: PlanLayout, steps: int) -> str:
    """Arguments of Megatron-LM, one a line; the reader adds data and tokeniser."""
    model = job.model
    if layout.schedule != "auto":
        raise LayoutError(
            f"Megatron-LM has no {layout.schedule} schedule",
            remedy="hold it with --set schedule.kind=auto",
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
    flags = ["use-mcore-models", "bf16", "use-flash-attn"]
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
            "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32",
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


def sbatch(job: Job, layout: PlanLayout, steps: int) -> str:
    """A Slurm script with one msctl driver a node; the recipe goes next to it as planned.toml."""
    nodes = -(-layout.world_size // job.cluster.gpus_per_node)
    hours = 24
    return f"""#!/bin/bash
#SBATCH --job-name=planned
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={job.cluster.gpus_per_node}
#SBATCH --exclusive
#SBATCH --time={hours}:00:00
# {steps} steps of {job.global_batch} sequences; planned.toml: msctl plan ... --emit recipe
set -euo pipefail
srun msctl train planned.toml --run runs/planned --resume auto
"""


def layout_json(layout: PlanLayout) -> str:
    """The layout alone, for scripts."""
    return msgspec.json.encode(layout).decode()
