"""Export to and import from Hugging Face folders, one tensor at a time, without torch.

The exported folder is what `transformers` loads: safetensors files, an index if there are several,
and config.json. Import reads the same; formats that need unpickling are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.ckpt.catalog import find, read_manifest
from engine.ckpt.families import Link, family_of
from engine.ckpt.geometry import whole
from engine.ckpt.manifest import Manifest
from engine.ckpt.numbers import Array, convert, item_bytes, typed
from engine.ckpt.reading import Want, fill
from engine.ckpt.store import Store, open_store, split
from engine.errors import CheckpointError
from engine.spec.base import Noun
from engine.spec.model import ModelSpec
from engine.spec.toml import parse_toml

FILE_BYTES = 5 * 10**9
"""Size at which the next safetensors file is begun, as the hub's own tools do."""


class ExportReport(Noun, frozen=True, kw_only=True):
    """What was written."""

    where: str
    family: str
    tensors: int
    files: int
    bytes: int


class _File(NamedTuple):
    """A safetensors file of an export before it is written."""

    name: str
    links: list[Link]
    header: bytes
    bytes: int


def export_hf(source: str | Path, out: str | Path, *, dtype: str = "keep") -> ExportReport:
    """Write the weights of a checkpoint as a Hugging Face folder.

    dtype   keep, F64, F32, BF16 or F16: of the exported weights; conversion rounds to nearest even
    Memory  twice the largest tensor at most
    Raises  CheckpointError if no model family holds this model exactly
    """
    store, folder = find(source)
    manifest = read_manifest(store, folder)
    spec = model_of(manifest, f"{store.url}/{folder}")
    family = family_of(spec)
    files = _plan(manifest, family.links(spec), dtype)
    root, name = split(out)
    target = open_store(root)
    if any(found.name == "config.json" for found in target.files(name)):
        raise CheckpointError(f"{out} already holds a model", remedy="name a new folder with --out")
    for file in files:
        target.put(f"{name}/{file.name}", _stream(store, folder, manifest, spec, file, dtype))
    if len(files) > 1:
        _put_json(target, f"{name}/model.safetensors.index.json", _index(files))
    kept = {entry.slots["param"].dtype for entry in manifest.tensors.values()}
    wide = dtype if dtype != "keep" else max(kept, key=item_bytes)
    _put_json(target, f"{name}/config.json", family.config(spec) | _types(wide))
    target.settle(name)
    return ExportReport(
        where=str(out), family=family.name, tensors=sum(len(f.links) for f in files),
        files=len(files), bytes=sum(file.bytes for file in files),
    )  # fmt: skip


def model_of(manifest: Manifest, where: str) -> ModelSpec:
    """The model that a checkpoint's recipe describes."""
    table = parse_toml(manifest.meta.recipe_toml, f"{where}, recipe").get("model")
    try:
        return msgspec.convert(table, ModelSpec)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{where}: the recipe stored in it has no usable [model] section: {error}",
            remedy="export a checkpoint that `msctl train` or `msctl ckpt import` wrote",
        ) from error


def _plan(manifest: Manifest, links: list[Link], dtype: str) -> list[_File]:
    groups: list[list[Link]] = [[]]
    size = 0
    for link in links:
        bytes_ = prod(_foreign_shape(manifest, link)) * item_bytes(_dtype(manifest, link, dtype))
        if size + bytes_ > FILE_BYTES and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(link)
        size += bytes_
    files = []
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        name = name if len(groups) > 1 else "model.safetensors"
        planned = [
            (link.foreign, _dtype(manifest, link, dtype), _foreign_shape(manifest, link))
            for link in group
        ]
        header, total = _header(planned)
        files.append(_File(name, group, header, total))
    return files


def _header(planned: list[tuple[str, str, tuple[int, ...]]]) -> tuple[bytes, int]:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in planned:
        end = at + prod(shape) * item_bytes(dtype)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 8)
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + at


def _stream(
    store: Store, folder: str, manifest: Manifest, spec: ModelSpec, file: _File, dtype: str
) -> Iterator[memoryview]:
    yield memoryview(file.header)
    for link in file.links:
        parts = []
        for name in link.ours:
            entry = manifest.tensors[name]
            have = entry.slots["param"].dtype
            region = whole(entry.shape)
            data = np.empty(region.size * item_bytes(have), np.uint8)
            fill(store, folder, manifest, [Want(name, "param", have, region, data)])
            want = _dtype(manifest, link, dtype)
            parts.append(convert(typed(data, have, entry.shape), have, want))
            del data
        made = _make(link, parts, spec)
        del parts
        yield np.ascontiguousarray(made).reshape(-1).view(np.uint8).data


def _make(link: Link, parts: list[Array], spec: ModelSpec) -> Array:
    """The foreign tensor from ours."""
    if link.form == "by_head":
        split_heads = [p.reshape(spec.heads, spec.head_dim, *p.shape[1:]) for p in parts]
        return np.stack(split_heads, 1).reshape(-1, *parts[0].shape[1:])
    made = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return made.T if link.form.endswith("transposed") else made


def _foreign_shape(manifest: Manifest, link: Link) -> tuple[int, ...]:
    missing = [name for name in link.ours if name not in manifest.tensors]
    if missing:
        raise CheckpointError(
            f"the checkpoint has no {missing[0]}, which its recipe calls for",
            remedy="export a checkpoint whose recipe was not edited",
        )
    first = manifest.tensors[link.ours[0]].shape
    shape = (sum(manifest.tensors[name].shape[0] for name in link.ours), *first[1:])
    return shape[::-1] if link.form.endswith("transposed") else shape


def _dtype(manifest: Manifest, link: Link, wanted: str) -> str:
    if wanted == "keep":
        return manifest.tensors[link.ours[0]].slots["param"].dtype
    if wanted not in ("F64", "F32", "BF16", "F16"):
        raise CheckpointError(
            f"dtype = {wanted!r}", remedy="choose keep, F64, F32, BF16 or F16, e.g. --dtype BF16"
        )
    return wanted


def _index(files: list[_File]) -> dict[str, Any]:
    weight_map = {link.foreign: file.name for file in files for link in file.links}
    total = sum(file.bytes - len(file.header) for file in files)
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def _types(dtype: str) -> dict[str, str]:
    name = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype]
    return {"dtype": name, "torch_dtype": name}


def _put_json(store: Store, name: str, value: dict[str, Any]) -> None:
    store.put(name, [memoryview(json.dumps(value, indent=2).encode() + b"\n")])
