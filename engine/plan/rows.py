"""A table of runs, one row each, as jobs to predict: the columns of docs/how-to/validate-plan.md.

Tables are foreign input: size, row count and every number are checked. What a row leaves empty is
filled by the rules below, and each filling is named in the row's assumptions.
"""

import csv
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.errors import RecipeError
from engine.plan.hardware import cluster_for
from engine.plan.profiles import Fitted, SystemProfile
from engine.plan.setup import Attention, Job, PlanLayout, Recompute
from engine.spec.model import ModelSpec

_LARGEST_TABLE = 64 * 2**20
_MOST_ROWS = 200_000
_LARGEST = 1e15
Row = dict[str, str]

NAMED_SHAPES: dict[str, tuple[int, int, int, int]] = {
    "GPT3-5B": (24, 4096, 32, 51200),
    "GPT3-20B": (44, 6144, 48, 51200),
    "Nemotron-8B": (32, 4096, 32, 256000),
    "InternLM-7B": (32, 4096, 32, 103168),
    "InternLM-20B": (60, 5120, 40, 103168),
}
"""Layers, hidden, heads, vocabulary of models that tables name without printing their shape."""

WINDOW = 768
"""Tokens of the paper's unstated window: the share of causal scores that its MFU column credits."""


class Case(NamedTuple):
    """One row, ready to predict: layouts has several where the micro-batch is unknown."""

    id: str
    group: str
    source: str
    hardware: str
    job: Job
    layouts: tuple[PlanLayout, ...]
    measured_s: float
    measured_bytes: float
    fits: int
    layers_only: bool
    assumptions: tuple[str, ...]


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV; RecipeError if it is none, too large, or lacks a column."""
    try:
        if path.stat().st_size > _LARGEST_TABLE:
            raise RecipeError(
                f"{path}: larger than {_LARGEST_TABLE} bytes", remedy="split the table"
            )
        with path.open(newline="", encoding="utf-8") as file:
            rows = []
            for row in csv.DictReader(file):
                rows.append({k: (v or "") for k, v in row.items() if isinstance(k, str)})
                if len(rows) > _MOST_ROWS:
                    raise RecipeError(f"{path}: over {_MOST_ROWS} rows", remedy="split the table")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipeError(f"{path}: {error}", remedy="give a CSV table in UTF-8") from None
    missing = {"id", "gpus", "gpu_model", "seq"} - set(rows[0] if rows else ())
    if missing:
        raise RecipeError(
            f"{path}: has no column {', '.join(sorted(missing))}",
            remedy="see docs/how-to/validate-plan.md for the columns of a table of runs",
        )
    return rows


def case_of(row: Row, constants: Fitted) -> Case | str:
    """A row as a case, or the reason why it cannot be predicted."""
    if (row.get("arch") or "dense") != "dense":
        return f"arch {row['arch']} is not scored"
    number = _Numbers(row)
    gpus = number.whole("gpus")
    hardware = cluster_for(row["gpu_model"], row.get("interconnect", ""), gpus)
    if hardware is None:
        return f"hardware {row['gpu_model']} is not modelled"
    cluster, notes_of_cluster = hardware
    notes = list(notes_of_cluster)
    model = _model(row, number, notes)
    if isinstance(model, str):
        return model
    system = system_of(row)
    if system not in constants.profiles:
        raise RecipeError(
            f"row {row['id']}: there is no system profile {system!r}",
            remedy=f"use one of {', '.join(sorted(constants.profiles))}, or leave system empty",
        )
    precision = row.get("precision") or "fp16"
    if precision == "fp8" and re.search(r"fp8[- ]row", row.get("notes", "")):
        precision = "fp8-rowwise"
    attention = _attention(row, system, notes)
    layers_only = not row.get("global_batch_sequences") and model.layers == 1
    batch = number.whole("global_batch_sequences") or number.whole("micro_batch")
    if not batch or not row.get("global_batch_sequences"):
        batch = _assumed_batch(number, gpus, notes)
    job = Job(
        model=model, cluster=cluster, global_batch=batch, precision=precision,
        attention=attention, profile=tuned(row, constants.profiles[system]),
        physics=constants.physics,
        speed=constants.speed_of(cluster.device.name, precision),
    )  # fmt: skip
    layouts = _layouts(row, number, job, notes)
    if isinstance(layouts, str):
        return layouts
    return Case(
        id=row["id"], group=row.get("source_group") or "table", source=row.get("source", ""),
        hardware=cluster.device.name, job=job, layouts=layouts,
        measured_s=number.real("iter_time_s"), measured_bytes=number.real("mem_peak_gib") * 2**30,
        fits=number.whole("fits") if row.get("fits") else -1, layers_only=layers_only,
        assumptions=tuple(notes),
    )  # fmt: skip


def _assumed_batch(number: "_Numbers", gpus: int, notes: list[str]) -> int:
    """Four micro-batches, or one per stage if that is more; memory-only rows print no batch."""
    tp, pp = number.whole("tp") or 1, number.whole("pp") or 1
    dp = number.whole("dp") or max(1, gpus // (tp * pp))
    count = 1 if number.whole("layers") == 1 else max(4, pp)
    notes.append(f"{count} micro-batches")
    return count * dp * (number.whole("micro_batch") or 1)


class _Numbers:
    """Checked access to the numbers of a row; empty is 0."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def real(self, name: str) -> float:
        text = (self._row.get(name) or "").strip()
        if not text:
            return 0.0
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < _LARGEST:
            raise RecipeError(
                f"row {self._row.get('id', '?')}: {name} = {text!r} is not a positive number",
                remedy=f"correct {name} in the table, or leave it empty",
            )
        return value

    def whole(self, name: str) -> int:
        return int(self.real(name))


def system_of(row: Row) -> str:
    """The training system behind a row, by column `system` or by what the row says of itself."""
    if row.get("system"):
        return row["system"]
    zero, overlap = row.get("zero_stage_or_dist_opt", ""), row.get("overlap", "")
    attention, source = row.get("attention", ""), row.get("source", "")
    if "sliding-window" in attention or "(MegaScale)" in source:
        return "megascale"
    if "MegaScale" in row.get("model_name", ""):
        return "megatron-2023"
    if "simumax" in source.lower():
        return "megatron-core"
    if "TE" in attention or "Bridge" in source or "NeMo" in source:
        return "nemo"
    if zero == "ZeRO-3" and row.get("year", "") < "2022":
        return "deepspeed-2021"
    if "InternEvo" in source or "InternLM" in row.get("model_name", ""):
        return "internevo"
    if (re.search(r"FSDP|ZeRO-3|shard", zero) and "Megatron" not in zero) or not row.get("tp"):
        return "fsdp"
    if "launch blocking" in overlap or re.search(r"BLOOM|MT-NLG", row.get("model_name", "")):
        return "megatron-deepspeed"
    if "flash" in attention:
        return "megatron-flash"
    return "megatron-2021"


def tuned(row: Row, profile: SystemProfile) -> SystemProfile:
    """The profile with what the row says of overlap and of compiled kernels."""
    text = row.get("overlap", "")
    changes: dict[str, bool | float] = {}
    if profile.name == "megatron-deepspeed" and row.get("precision") == "bf16":
        changes["held_grad_bytes"] = 6.0  # bf16 gradients and their fp32 sum
    if re.search(r"async TP|TP comm overlap|tp-comm-overlap", text):
        changes["overlap_tp"] = True
    if re.search(r"\bcompile|RMS kernel", row.get("notes", "") + row.get("attention", "")):
        changes["fused"] = True
    return msgspec.structs.replace(profile, **changes)


def _model(row: Row, number: _Numbers, notes: list[str]) -> ModelSpec | str:
    """The shape of a row's model."""
    layers, hidden, heads = (number.whole(k) for k in ("layers", "hidden", "heads"))
    vocab = number.whole("vocab")
    name = row.get("model_name", "")
    if not layers or not hidden:
        named = f"{name} InternLM-{row['id'].split('-')[2]}" if "ie-mem" in row["id"] else name
        known = next((v for k, v in NAMED_SHAPES.items() if k in named), None)
        if known is None:
            return "shape of the model unknown"
        layers, hidden, heads, vocab = known
        notes.append(f"shape of {name}: {layers} layers, hidden {hidden}, {heads} heads")
    if not vocab:
        vocab = 51200
        notes.append("vocabulary of 51,200")
    gated = row.get("gated_mlp") == "1" or name.startswith("InternLM")
    ours = "MegaScale" in row.get("source", "") and "sliding" in row.get("attention", "")
    if ours:
        notes.append(f"window of {WINDOW} tokens")
    fields: dict[str, object] = {
        "layers": layers, "hidden": hidden, "heads": heads or max(1, hidden // 128),
        "kv_heads": number.whole("kv_heads"), "ffn": number.whole("ffn_hidden"), "vocab": vocab,
        "seq": number.whole("seq"), "block": "parallel" if ours else "serial",
        "window": WINDOW if ours else 0, "norm": "rmsnorm" if gated else "layernorm",
        "activation": "swiglu" if gated else "gelu", "bias": not gated, "tied": not gated,
        "position": "rotary" if gated else "learned",
    }  # fmt: skip
    try:
        return msgspec.convert(fields, ModelSpec)
    except msgspec.ValidationError as error:
        return f"shape of the model: {error}"


def _attention(row: Row, system: str, notes: list[str]) -> Attention:
    """The kernel by the words of the table."""
    text = row.get("attention", "").lower()
    if re.search(r"\bte\b|cudnn", text):
        return "cudnn"
    if "triton" in text or "v1" in text or "xformers" in text:
        return "flash1"
    if "flash" in text or "sdpa" in text:
        return "flash2"
    if "fused" in text and "unfused" not in text:
        return "fused-softmax"
    if text:
        return "unfused"
    if system == "megatron-2023":
        notes.append("attention by FlashAttention-1")
        return "flash1"
    notes.append("unfused attention")
    return "unfused"


def _layouts(
    row: Row, number: _Numbers, job: Job, notes: list[str]
) -> tuple[PlanLayout, ...] | str:
    """The layout of a row; several, one per micro-batch that divides, where that is unknown."""
    gpus = number.whole("gpus")
    tp, pp, cp = (number.whole(axis) or 1 for axis in ("tp", "pp", "cp"))
    dp = number.whole("dp") or max(1, gpus // (tp * pp * cp))
    vpp = number.whole("vpp")
    if not vpp:
        vpp = _interleaving(row, job, pp, notes)
    zero, shard = _zero(row.get("zero_stage_or_dist_opt", ""), row)
    if not row.get("tp"):
        zero = 3
        notes.append("layout tp 1, pp 1, all sharded (ZeRO-3)")
    if zero == 3 and pp > 1:
        zero = 2
        notes.append("parameters stay gathered between the micro-batches of a pipeline")
    recompute = _recompute(row, notes)
    split = row.get("sp") == "1"
    if not row.get("sp") and tp > 1:
        split = system_of(row) in ("megascale", "megatron-2023", "nemo")
        notes.append(f"sequence parallelism {'on' if split else 'off'}")
    micro = [number.whole("micro_batch")]
    if not micro[0] and pp > 1 and system_of(row) == "fsdp":
        micro = [max(1, job.global_batch // (dp * pp))]
        notes.append("as many micro-batches as stages")
    elif not micro[0]:
        share = max(1, job.global_batch // dp)
        large = job.model.hidden >= 12288 or job.model.seq > 4096
        options = (1,) if large else (1, 2, 4, 8)
        micro = [b for b in options if share % b == 0] or [1]
        notes.append("micro-batch of 1" if len(micro) == 1 else "the fastest micro-batch of 1-8")
    layouts = [
        PlanLayout(
            tp=tp, pp=pp, vpp=vpp, dp=dp, cp=cp, sequence_parallel=split, zero=zero,  # type: ignore[arg-type]
            shard=min(shard, dp), micro_batch=b, recompute=recompute,
        )
        for b in micro
    ]  # fmt: skip
    if pp * vpp > job.model.layers + 2:
        return f"{pp} x {vpp} chunks for {job.model.layers} layers"
    return tuple(layouts)


def _interleaving(row: Row, job: Job, pp: int, notes: list[str]) -> int:
    """Chunks per stage where a row does not print them."""
    vpp = 1
    if pp > 1:
        if "interleaved" in row["id"]:
            vpp = 2
        elif system_of(row) == "nemo":
            vpp = max(1, job.model.layers // (2 * pp))
        notes.append("no interleaving" if vpp == 1 else f"interleaving of {vpp}")
    return vpp


def _zero(text: str, row: Row) -> tuple[int, int]:
    """ZeRO stage and the ranks it shards over (0: all)."""
    found = re.search(r"over (\d+) ranks", text)
    shard = int(found[1]) if found else 0
    if "HSDP" in text or "hybrid shard" in text:
        return 3, 8
    if "ZeRO-2" in text or "grad_op" in text:
        return 2, shard
    if re.search(r"FSDP|ZeRO-3", text):
        return 3, shard
    if re.search(r"ZeRO-1|dist-opt", text):
        return 1, shard
    if "MegaScale" in row.get("source", ""):
        return 1, shard
    return 0, shard


def _recompute(row: Row, notes: list[str]) -> Recompute:
    text = row.get("recompute", "")
    if text in ("none", "selective", "full"):
        return text  # type: ignore[return-value]
    notes.append("no recomputation")
    return "none"
