"""Import a Hugging Face folder as a checkpoint of step 0, one tensor at a time, without torch.

Everything in the folder is foreign: names, sizes and shapes are checked against config.json before
any weight is read, and formats that need unpickling are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine.ckpt.families import Family, Link, family_named
from engine.ckpt.geometry import whole
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.numbers import FLOATS, Array, convert, typed
from engine.ckpt.partition import shape_of
from engine.ckpt.safefile import Planned, Stored, header_length, parse_header, plan_image
from engine.ckpt.save import assemble, claim, commit, write_part
from engine.ckpt.store import Store, open_store, split
from engine.errors import CheckpointError
from engine.spec.model import ModelSpec
from engine.spec.toml import dump_toml

_JSON_LIMIT = 64 << 20
_BUFFERS = ("inv_freq", "attn.bias", "masked_bias", "attention.bias")
"""Endings of constants that old exports hold beside weights."""


def import_hf(source: str | Path, out: str | Path) -> str:
    """Make a checkpoint of step 0 with the weights of a Hugging Face folder; returns its name.

    Weights become fp32 masters; optimizer moments are absent and start at zero when it is loaded.
    """
    root, name = split(source)
    foreign = _Foreign(open_store(root), name)
    family = family_named(foreign.config.get("model_type"))
    spec = _spec(family, foreign.config)
    if spec.layers > len(foreign.tensors):
        raise CheckpointError(
            f"config.json: {spec.layers} layers, the files hold {len(foreign.tensors)} tensors",
            remedy="use the config.json that belongs to these weights",
        )
    links = _resolve(family.links(spec), foreign, spec)
    planned: list[Planned] = []
    made: dict[str, Link] = {}
    for link in links:
        _check(link, foreign.tensors[link.foreign], spec)
        for ours in link.ours:
            if ours in made:
                _same(foreign, made[ours], link)
                continue
            made[ours] = link
            planned.append(Planned(ours, "param", "F32", whole(shape_of(spec, ours))))
    image = plan_image(planned, {"format": "msctl", "rank": "0"})
    target = open_store(out)
    folder = claim(target, 0)

    def views() -> Iterator[memoryview]:
        for piece in image.planned:
            link = made[piece.name]
            whole_tensor = foreign.read(link.foreign)
            part = _take(link, whole_tensor, link.ours.index(piece.name), spec)
            ready = np.ascontiguousarray(convert(part, foreign.tensors[link.foreign].dtype, "F32"))
            yield ready.reshape(-1).view(np.uint8).data

    part = write_part(target, folder, image, views(), rank=0)
    meta = CheckpointMeta(
        step=0, recipe_toml=dump_toml({"model": msgspec.to_builtins(spec)}), run=name,
        extra={"imported": {"family": family.name, "from": name}},
    )  # fmt: skip
    commit(target, folder, assemble(meta, [part], 1))
    return folder


class _Foreign:
    """A Hugging Face folder: config, and where each tensor lies. Everything in it is checked."""

    def __init__(self, store: Store, folder: str) -> None:
        self.store, self.folder = store, folder
        self.config: dict[str, Any] = self._json("config.json") or {}
        index = self._json("model.safetensors.index.json")
        names = {"model.safetensors"}
        if index is not None:
            table = index.get("weight_map")
            names = set(map(str, table.values())) if isinstance(table, dict) else set()
        self.tensors: dict[str, Stored] = {}
        self._file: dict[str, str] = {}
        sizes = {found.name: found.bytes for found in store.files(folder)}
        for name in sorted(names):
            if name not in sizes:
                raise CheckpointError(
                    f"{store.url}/{folder}: no file {name[:80]!r}",
                    remedy="download the model as safetensors; pickled .bin files are not read",
                )
            tensors = self._header(name, sizes[name])
            self.tensors |= tensors
            self._file |= dict.fromkeys(tensors, name)

    def read(self, name: str) -> Array:
        """One tensor."""
        stored = self.tensors[name]
        data = np.empty(stored.end - stored.start, np.uint8)
        self.store.read(f"{self.folder}/{self._file[name]}", stored.start, [data.data])
        return typed(data, stored.dtype, stored.shape)

    def _header(self, name: str, size: int) -> dict[str, Stored]:
        where = f"{self.store.url}/{self.folder}/{name}"
        first = bytearray(min(8, size))
        self.store.read(f"{self.folder}/{name}", 0, [memoryview(first)])
        header = bytearray(header_length(bytes(first), size, where))
        self.store.read(f"{self.folder}/{name}", 0, [memoryview(header)])
        return parse_header(bytes(header), size, where)[0]

    def _json(self, name: str) -> dict[str, Any] | None:
        data = self.store.get(f"{self.folder}/{name}", _JSON_LIMIT)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CheckpointError(
                f"{self.store.url}/{self.folder}/{name}: {error}", remedy="download the file again"
            ) from error


def _spec(family: Family, config: dict[str, Any]) -> ModelSpec:
    try:
        return msgspec.convert(family.spec(config), ModelSpec)
    except KeyError as error:
        what = f"config.json: {error} is missing"
        raise CheckpointError(what, remedy="use the model's whole config.json") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"config.json: {error}"
        raise CheckpointError(what, remedy="use the model's own config.json") from error


def _resolve(links: list[Link], foreign: _Foreign, spec: ModelSpec) -> list[Link]:
    """Links with the names that the folder uses; refuses missing, spare and misshapen tensors."""
    found = []
    for link in links:
        bare = link.foreign.partition(".")[2]
        name = link.foreign if link.foreign in foreign.tensors else bare
        if name not in foreign.tensors:
            raise CheckpointError(
                f"{foreign.folder}: tensor {link.foreign} is missing",
                remedy="download all safetensors files of the model",
            )
        found.append(link._replace(foreign=name))
    spare = set(foreign.tensors) - {link.foreign for link in found}
    spare = {name for name in spare if not name.endswith(_BUFFERS)}
    spare -= {"lm_head.weight", "embed_out.weight"} if spec.tied else set()
    if spare:
        raise CheckpointError(
            f"{foreign.folder}: {len(spare)} tensors have no place here, e.g. {min(spare)}",
            remedy="import a plain model of this family, without adapters or extra heads",
        )
    return found


def _take(link: Link, foreign: Array, index: int, spec: ModelSpec) -> Array:
    """One of our tensors from the foreign one."""
    if link.form == "by_head":
        by_head = foreign.reshape(spec.heads, 3, spec.head_dim, *foreign.shape[1:])
        return by_head[:, index].reshape(-1, *foreign.shape[1:])
    plain = foreign.T if link.form.endswith("transposed") else foreign
    if len(link.ours) == 1:
        return plain
    return np.split(plain, len(link.ours))[index]


def _check(link: Link, foreign: Stored, spec: ModelSpec) -> None:
    first = shape_of(spec, link.ours[0])
    shape = (sum(shape_of(spec, name)[0] for name in link.ours), *first[1:])
    wanted = shape[::-1] if link.form.endswith("transposed") else shape
    if foreign.dtype not in FLOATS:
        raise CheckpointError(
            f"{link.foreign}: elements of type {foreign.dtype} are no weights",
            remedy=f"import a model in one of {', '.join(FLOATS)}, not a quantized one",
        )
    if foreign.shape != wanted:
        raise CheckpointError(
            f"{link.foreign}: shape {list(foreign.shape)}, config.json calls for {list(wanted)}",
            remedy="use the config.json that belongs to these weights",
        )


def _same(foreign: _Foreign, first: Link, second: Link) -> None:
    if not np.array_equal(foreign.read(first.foreign), foreign.read(second.foreign)):
        raise CheckpointError(
            f"{first.foreign} and {second.foreign} differ, and a parallel block here has one norm",
            remedy="import a model whose parallel blocks share their norm",
        )
