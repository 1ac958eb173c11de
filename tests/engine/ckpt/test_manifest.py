import json

import pytest
import torch
import xxhash

from engine.ckpt.catalog import describe, read_manifest
from engine.ckpt.manifest import Manifest, encode
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.store import open_store
from engine.errors import CheckpointError
from tests.engine.ckpt.state import dense, pieces_of, save

NAME = "step-00000001"


@pytest.fixture
def saved(tmp_path):
    save(tmp_path, 1, 2, 1, dense(torch.float32))
    return tmp_path


def rewrite(root, change):
    """Change the manifest and give it a marker that matches: a hostile author, not damage."""
    path = root / NAME / "manifest.json"
    document = json.loads(path.read_bytes())
    change(document)
    body = json.dumps(document).encode()
    path.write_bytes(body)
    marker = {"manifest": "manifest.json", "bytes": len(body)}
    marker["xxh3_128"] = xxhash.xxh3_128_hexdigest(body)
    (root / NAME / "COMMITTED").write_text(json.dumps(marker))


def shard(document):
    return document["tensors"]["embed.weight"]["slots"]["param"]["shards"][0]


def put(mapping, key, value):
    mapping[key] = value


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: put(d, "version", 2), "version = 2"),
        (lambda d: put(d, "surprise", 1), "unknown field"),
        (lambda d: d.pop("files"), "missing required field"),
        (lambda d: put(d["files"][0], "name", "../../etc/passwd"), "not a plain name"),
        (lambda d: put(d["files"][0], "name", d["files"][1]["name"]), "listed twice"),
        (lambda d: put(d["files"][0], "digests", "00"), "2 hex digits for 1 chunks"),
        (lambda d: put(d["files"][0], "bytes", -1), "bytes"),
        (lambda d: d["files"][0].update(bytes=2**60 + 1, chunk_bytes=2**30), "too large"),
        (lambda d: d["files"][0].update(bytes=10**400), "too large"),
        (lambda d: put(d["files"][0], "chunk_bytes", 2**30 + 1), "too large"),
        (lambda d: put(d["files"][0], "chunk_bytes", 0), "chunk_bytes"),
        (lambda d: put(d["tensors"]["embed.weight"], "shape", [2**31, 2**31]), "2.60 elements"),
        (lambda d: put(d["tensors"]["embed.weight"], "shape", [0, 10**400]), "2.60 elements"),
        (lambda d: put(shard(d), "file", 7), "file = 7, there are 2"),
        (lambda d: put(shard(d), "offset", 10**15), "ends behind the end"),
        (lambda d: put(shard(d), "flat", [0, 10**9]), "leaves a box"),
        (lambda d: put(shard(d), "box", [[0, 6]]), "dims"),
        (lambda d: put(d["tensors"]["embed.weight"], "shape", [2, 3]), "leaves the shape"),
        (lambda d: put(d["tensors"]["embed.weight"], "shape", [1] * 9), "at most 8"),
        (lambda d: put(d["tensors"]["embed.weight"]["slots"]["param"], "dtype", "F8"), "dtype"),
    ],
)
def test_every_reference_is_checked_at_the_door(saved, change, says):
    rewrite(saved, change)
    with pytest.raises(CheckpointError, match=says):
        read_manifest(open_store(saved), NAME)
    assert describe(open_store(saved), NAME).state == "damaged"


def test_holes_and_overlaps_are_named(saved):
    rewrite(saved, lambda d: d["tensors"]["embed.weight"]["slots"]["param"]["shards"].pop())
    manifest = read_manifest(open_store(saved), NAME)
    assert manifest.covers() == ["embed.weight (param): elements 48 to 96 are held by no shard"]
    with pytest.raises(CheckpointError, match="only 48 of 96 elements"):
        load_checkpoint(saved / NAME, pieces_of(0, 1, 1, torch.float32))


def test_another_model_is_refused_with_both_shapes(saved):
    pieces = pieces_of(0, 1, 1, torch.float64)
    with pytest.raises(CheckpointError, match="F32 in the checkpoint, F64 in the model"):
        load_checkpoint(saved / NAME, pieces)


def test_encode_is_stable(saved):
    manifest = read_manifest(open_store(saved), NAME)
    body, _ = encode(manifest)
    assert body == (saved / NAME / "manifest.json").read_bytes()
    assert isinstance(manifest, Manifest)
    assert manifest.slots == ("param", "exp_avg", "exp_avg_sq")
