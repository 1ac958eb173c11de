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
from engine.plan.profiles import Fitted
from engine.plan.setup import Job, PlanLayout
from engine.plan.words import Row, attention_of, recompute_of, system_of, tuned, zero_of
from engine.spec.model import ModelSpec

_LARGEST_TABLE = 64 * 2**20
_MOST_ROWS = 200_000
_LARGEST = 1e15
_LARGEST_COUNT = 10**9
_MOST_CHUNKS = 4096

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
    except OSError as error:
        raise RecipeError(
            f"{path}: cannot be read: {error.strerror}", remedy="give a CSV table in UTF-8"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecipeError(f"{path}: {error}", remedy="give a CSV table in UTF-8") from None
    if not rows:
        raise RecipeError(f"{path}: has no rows", remedy="give a CSV with a header and rows")
    missing = {"gpus", "gpu_model", "seq"} - set(rows[0])
    if len(missing) == 3:
        raise RecipeError(
            f"{path}: no table of runs, it has no column {', '.join(sorted(missing))}",
            remedy="see docs/how-to/validate-plan.md for the columns of a table of runs",
        )
    for place, row in enumerate(rows, 1):
        row["id"] = row.get("id") or f"row {place}"
    return rows


def case_of(row: Row, constants: Fitted) -> Case | str:
    """A row as a case, or the reason why it cannot be predicted."""
    try:
        return _case(row, constants)
    except RecipeError as error:
        return f"{error.what}; {error.remedy}"


def _case(row: Row, constants: Fitted) -> Case | str:
    """As `case_of`; RecipeError for a cell that cannot be read."""
    if (row.get("arch") or "dense") != "dense":
        return f"arch {row['arch']} is not scored"
    number = _Numbers(row)
    gpus = number.some("gpus")
    number.some("seq")
    hardware = cluster_for(row.get("gpu_model", ""), row.get("interconnect", ""), gpus)
    if hardware is None:
        return f"hardware {row.get('gpu_model') or '(gpu_model is empty)'} is not modelled"
    cluster, notes_of_cluster = hardware
    notes = list(notes_of_cluster)
    model = _model(row, number, notes)
    if isinstance(model, str):
        return model
    system = system_of(row)
    if system not in constants.profiles:
        raise RecipeError(
            f"there is no system profile {system!r}",
            remedy=f"use one of {', '.join(sorted(constants.profiles))}, or leave system empty",
        )
    precision = _precision(row, notes)
    attention = attention_of(row, system, notes)
    newest = cluster.device.peak_flops_per_s.get("bf16", 0.0) > _BLACKWELL
    if attention == "flash2" and system == "nemo" and newest:  # FlashAttention-2 has no kernels
        attention = "cudnn"
    layers_only = not row.get("global_batch_sequences") and model.layers == 1
    batch = number.whole("global_batch_sequences")
    if not batch:
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


_SPLITS_SEQUENCES = ("megascale", "megatron-2023", "nemo", "megatron-core", "fsdp")
"""Systems whose tensor parallelism splits norms along the sequence unless a row says otherwise."""

_BLACKWELL = 1500e12
"""FLOP/s in bf16 that no device before Blackwell has."""

PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "fp8-rowwise", "fp4")


def _precision(row: Row, notes: list[str]) -> str:
    """Of the GEMMs; 16 bits where a row does not say."""
    precision = (row.get("precision") or "").strip().lower()
    if not precision:
        notes.append("precision of 16 bits")
        return "fp16"
    if precision not in PRECISIONS:
        raise RecipeError(
            f"precision = {precision!r} is not known", remedy=f"use one of {', '.join(PRECISIONS)}"
        )
    if precision == "fp8" and re.search(r"fp8[- ]row", row.get("notes", "")):
        return "fp8-rowwise"
    return precision


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
                f"{name} = {text[:40]!r} is not a positive number",
                remedy=f"correct {name} in the table, or leave it empty",
            )
        return value

    def whole(self, name: str) -> int:
        value = self.real(name)
        if value != int(value) or value > _LARGEST_COUNT:
            raise RecipeError(
                f"{name} = {value:g} is not a whole number up to {_LARGEST_COUNT}",
                remedy=f"correct {name} in the table",
            )
        return int(value)

    def some(self, name: str) -> int:
        """A whole number that a row cannot do without."""
        value = self.whole(name)
        if value < 1:
            raise RecipeError(f"{name} is missing", remedy=f"fill in column {name}")
        return value


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
    ours = system_of(row) == "megascale"
    one = ours or bool(re.search(r"NeoX|GPT-J|Falcon|PaLM", name))
    if ours:
        notes.append(f"window of {WINDOW} tokens")
    fields: dict[str, object] = {
        "layers": layers, "hidden": hidden, "heads": heads or max(1, hidden // 128),
        "kv_heads": number.whole("kv_heads"), "ffn": number.whole("ffn_hidden"), "vocab": vocab,
        "seq": number.whole("seq"), "block": "parallel" if one else "serial",
        "window": WINDOW if ours else 0, "norm": "rmsnorm" if gated else "layernorm",
        "activation": "swiglu" if gated else "gelu", "bias": not gated, "tied": not gated,
        "position": "rotary" if gated or (one and not ours) else "learned",
    }  # fmt: skip
    try:
        return msgspec.convert(fields, ModelSpec)
    except msgspec.ValidationError as error:
        return f"shape of the model: {error}"


def _layouts(
    row: Row, number: _Numbers, job: Job, notes: list[str]
) -> tuple[PlanLayout, ...] | str:
    """The layout of a row; several, one per micro-batch that divides, where that is unknown."""
    gpus = number.whole("gpus")
    tp, pp, cp = (number.whole(axis) or 1 for axis in ("tp", "pp", "cp"))
    dp = max(1, gpus // (tp * pp * cp))
    if not number.whole("dp") and job.global_batch < dp and dp % job.global_batch == 0:
        cp, dp = cp * dp // job.global_batch, job.global_batch
        notes.append(f"cp of {cp}: there are more replicas than sequences")
    if number.whole("dp") not in (0, dp):
        notes.append(f"dp of {dp}: {number.whole('dp')} does not multiply to {gpus} devices")
    if tp * pp * cp > gpus:
        return f"tp {tp} x pp {pp} x cp {cp} exceeds {gpus} devices"
    vpp = number.whole("vpp")
    if not vpp:
        vpp = _interleaving(row, job, pp, notes)
    zero, shard = zero_of(row.get("zero_stage_or_dist_opt", ""), row)
    if not row.get("tp"):
        zero = 3
        notes.append("layout tp 1, pp 1, all sharded (ZeRO-3)")
    if zero == 3 and pp > 1:
        zero = 2
        notes.append("parameters stay gathered between the micro-batches of a pipeline")
    recompute = recompute_of(row, notes)
    split = row.get("sp") == "1"
    if not row.get("sp") and tp > 1:
        split = system_of(row) in _SPLITS_SEQUENCES
        notes.append(f"sequence parallelism {'on' if split else 'off'}")
    micro = [number.whole("micro_batch")]
    if not micro[0] and pp > 1 and "torchtitan" in row.get("source", ""):
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
    if pp * vpp > min(job.model.layers + 2, _MOST_CHUNKS):
        return f"{pp} x {vpp} chunks for {job.model.layers} layers"
    return tuple(layouts)


def _interleaving(row: Row, job: Job, pp: int, notes: list[str]) -> int:
    """Chunks per stage where a row does not print them."""
    vpp = 1
    if pp > 1:
        if "interleaved" in row["id"]:
            vpp = 2
        elif "interleaved" in row.get("overlap", ""):  # at its finest: a layer a chunk
            vpp = -(-job.model.layers // pp)
        elif system_of(row) in ("nemo", "megatron-core"):
            vpp = max(1, job.model.layers // (2 * pp))
        notes.append("no interleaving" if vpp == 1 else f"interleaving of {vpp}")
    return vpp
