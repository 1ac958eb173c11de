"""What the words of a published table mean: which system, which kernel, what is sharded.

Tables name systems, kernels and optimizers in prose. The rules below read it; whatever they have
to guess is added to the notes of the row.
"""

import re

import msgspec

from engine.plan.profiles import SystemProfile
from engine.plan.setup import Attention, Recompute

Row = dict[str, str]
"""Cells by column name; what is empty is unknown."""


def system_of(row: Row) -> str:
    """The training system behind a row, by column `system` or by what the row says of itself."""
    if row.get("system"):
        return row["system"]
    zero, overlap = row.get("zero_stage_or_dist_opt", ""), row.get("overlap", "")
    attention, source = row.get("attention", ""), row.get("source", "")
    model = row.get("model_name", "")
    if "sliding-window" in attention or "MegaScale)" in source:
        return "megascale"
    if "MegaScale" in model:
        return "megatron-2023"
    if "simumax" in source.lower():
        return "megatron-core"
    if re.search(r"(?i)megatron-core|megatron-lm readme", model + source):
        return "nemo"  # the same library with the same overlaps
    if "TE" in attention or "Bridge" in source or "NeMo" in source:
        return "nemo"
    if zero == "ZeRO-3" and row.get("year", "") < "2022":
        return "deepspeed-2021"
    if "InternEvo" in source or "InternLM" in row.get("model_name", ""):
        return "internevo"
    if (re.search(r"FSDP|ZeRO-3|shard", zero) and "Megatron" not in zero) or not row.get("tp"):
        return "fsdp"
    if "launch blocking" in overlap or re.search(r"BLOOM|MT-NLG|NeoX", model):
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


def attention_of(row: Row, system: str, notes: list[str]) -> Attention:
    """The kernel by the words of the table."""
    text = row.get("attention", "").lower()
    if re.search(r"\bte\b|cudnn", text):
        return "cudnn"
    if "triton" in text:
        return "triton"
    if "v1" in text or "xformers" in text:
        return "flash1"
    if "flash" in text or "sdpa" in text:
        return "flash2"
    if "fused" in text and "unfused" not in text:
        return "fused-softmax"
    if text == "torch" or "eager" in text:
        return "eager"
    if text:
        return "unfused"
    if system == "megatron-2023":
        notes.append("attention by FlashAttention-1")
        return "flash1"
    if system in ("nemo", "megatron-core"):
        notes.append("fused attention of cuDNN")
        return "cudnn"
    if system in ("internevo", "megascale") or row.get("year", "") >= "2024":
        notes.append("attention by FlashAttention-2")
        return "flash2"
    notes.append("unfused attention")
    return "unfused"


def zero_of(text: str, row: Row) -> tuple[int, int]:
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


def recompute_of(row: Row, notes: list[str]) -> Recompute:
    """The kind of recomputation; none where the row does not say."""
    text = row.get("recompute", "")
    if text in ("none", "selective", "full"):
        return text  # type: ignore[return-value]
    notes.append("no recomputation")
    return "none"
