"""Reads of regions: which chunks, into which memory, and what is believed."""

import functools

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from engine.ckpt import reading
from engine.ckpt.geometry import Region, whole
from engine.ckpt.local_store import LocalStore
from engine.ckpt.manifest import (
    CheckpointMeta,
    FileEntry,
    Manifest,
    Shard,
    SlotEntry,
    TensorEntry,
)
from engine.ckpt.reading import Want, fill, locate, plan_jobs, run_jobs, tensors_in
from engine.errors import CheckpointError

SHAPE = (6, 10)
VALUES = np.arange(60, dtype=np.int32).reshape(SHAPE)
LEFT, RIGHT = ((0, 6), (0, 4)), ((0, 6), (4, 10))


def shard(file, offset, box, flat):
    return Shard(file=file, offset=offset, box=box, flat=flat)


def digests(data, size):
    return "".join(
        xxhash.xxh3_128_hexdigest(data[at : at + size]) for at in range(0, len(data), size)
    )


RANGES = VALUES[:, 4:].tobytes()
CONTENTS = (b"head" + VALUES[:, :4].tobytes(), RANGES[40:] + b"gap" + RANGES[:40])
SHARDS = (
    shard(0, 4, LEFT, (0, 24)), shard(1, 107, RIGHT, (0, 10)), shard(1, 0, RIGHT, (10, 36))
)  # fmt: skip
"""The left 4 columns in one file, the right 6 in two ranges of the other."""


@functools.cache
def two_files(chunk):
    files = (
        FileEntry(
            name=f"f{index}", bytes=len(data), chunk_bytes=chunk, digests=digests(data, chunk)
        )
        for index, data in enumerate(CONTENTS)
    )
    return manifest_of(files, SHARDS)


def lay(folder):
    (folder / "s").mkdir()
    for index, data in enumerate(CONTENTS):
        (folder / "s" / f"f{index}").write_bytes(data)
    return folder


def manifest_of(files, shards):
    entry = TensorEntry(shape=SHAPE, slots={"param": SlotEntry(dtype="I32", shards=shards)})
    return Manifest(
        created_s=0.0, world=1, meta=CheckpointMeta(step=1), files=tuple(files),
        tensors={"w": entry},
    )  # fmt: skip


def want(region, dtype="I32", name="w", slot="param"):
    return Want(name, slot, dtype, region, np.full(4 * region.size, 255, np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return lay(tmp_path_factory.mktemp("reading"))


@st.composite
def regions(draw):
    box = []
    for size in SHAPE:
        lo = draw(st.integers(0, size))
        box.append((lo, draw(st.integers(lo, size))))
    count = (box[0][1] - box[0][0]) * (box[1][1] - box[1][0])
    lo = draw(st.integers(0, count))
    return Region(SHAPE, tuple(box), (lo, draw(st.integers(lo, count))))


def dense(region):
    inside = VALUES[tuple(slice(lo, hi) for lo, hi in region.box)].reshape(-1)
    return inside[region.flat[0] : region.flat[1]]


@given(regions(), st.integers(1, 200), st.sampled_from([0, 1, 256]))
def test_any_region_is_read_out_of_any_chunks(folder, region, chunk, limit):
    """Also where every chunk is read whole and copied by index."""
    manifest, wanted = two_files(chunk), want(region)
    before = reading.PARTS_LIMIT
    reading.PARTS_LIMIT = limit
    try:
        report = fill(LocalStore(folder), "s", manifest, [wanted])
    finally:
        reading.PARTS_LIMIT = before
    assert np.array_equal(wanted.out.view(np.int32), dense(region))
    assert report.wanted_bytes == 4 * region.size
    assert report.read_bytes >= report.wanted_bytes


@given(regions(), st.integers(1, 200))
def test_a_jobs_memory_is_each_wanted_byte_once(region, chunk):
    wanted = want(region)
    for job in plan_jobs(two_files(chunk), [wanted]):
        for part in job.memory():
            part += 1
    assert (wanted.out == 0).all()  # 255 + 1


def test_only_chunks_that_hold_something_wanted_are_read_and_each_once(folder):
    manifest = two_files(16)
    row = Region(SHAPE, ((0, 1), (0, 10)), (0, 10))
    jobs = plan_jobs(manifest, [want(row), want(row)])
    # row 0: bytes 4 to 20 of the first file, 107 to 131 of the second
    assert [(job.file.name, job.chunk) for job in jobs] == [
        ("f0", 0), ("f0", 1), ("f1", 6), ("f1", 7), ("f1", 8)
    ]  # fmt: skip
    assert [len(job.parts) for job in jobs] == [2, 2, 2, 2, 2]
    single = plan_jobs(manifest, [want(row)])
    assert run_jobs(LocalStore(folder), "s", manifest, single, threads=1) == 5 * 16
    assert run_jobs(LocalStore(folder), "s", manifest, [], threads=2) == 0


def test_the_last_chunk_is_as_long_as_the_file(folder):
    manifest = two_files(64)
    wanted = want(whole(SHAPE))
    report = fill(LocalStore(folder), "s", manifest, [wanted], threads=3)
    assert report == (100 + 147, 240)
    assert np.array_equal(wanted.out.view(np.int32), VALUES.reshape(-1))


@pytest.mark.parametrize("limit", [0, 256])
def test_damage_names_file_chunk_and_tensor_and_is_seen_in_bytes_nobody_wants(
    tmp_path, monkeypatch, limit
):
    monkeypatch.setattr(reading, "PARTS_LIMIT", limit)
    manifest = two_files(64)
    path = lay(tmp_path) / "s" / "f1"
    data = bytearray(path.read_bytes())
    data[105] ^= 1  # between the two ranges
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"s/f1: chunk 1 \(bytes from 64\) .* w \(param\)"):
        fill(LocalStore(tmp_path), "s", manifest, [want(whole(SHAPE))])
    path.write_bytes(data[:100])
    with pytest.raises(CheckpointError, match="truncated"):
        fill(LocalStore(tmp_path), "s", manifest, [want(whole(SHAPE))])
    path.unlink()
    with pytest.raises(CheckpointError, match="s/f1"):
        fill(LocalStore(tmp_path), "s", manifest, [want(whole(SHAPE))])


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (want(whole(SHAPE), name="v"), r"no v \(param\)"),
        (want(whole(SHAPE), slot="exp_avg"), r"no w \(exp_avg\)"),
        (want(whole((10, 6))), r"w: shape \[6, 10\] in the checkpoint, \[10, 6\] in the model"),
        (want(whole(SHAPE), dtype="F32"), r"w \(param\): I32 in the checkpoint, F32 in the model"),
    ],
)
def test_another_model_is_refused(wanted, says):
    with pytest.raises(CheckpointError, match=says):
        plan_jobs(two_files(64), [wanted])


def test_a_hole_is_not_filled_with_what_is_held_twice():
    files = two_files(64).files
    left, low, _ = SHARDS
    with pytest.raises(CheckpointError, match="only 34 of 60 elements are there"):
        list(locate(manifest_of(files, (left, low)), want(whole(SHAPE))))
    again = shard(1, 0, RIGHT, (0, 26))
    with pytest.raises(CheckpointError, match=r"w \(param\): elements are held twice"):
        list(locate(manifest_of(files, (left, low, again)), want(whole(SHAPE))))
    part = Region(SHAPE, RIGHT, (0, 10))
    assert len(list(locate(manifest_of(files, (left, low)), want(part)))) == 1


def test_tensors_that_share_bytes_are_refused(folder):
    files = two_files(64).files
    left, low, _ = SHARDS
    high = shard(1, 40, RIGHT, (10, 36))  # begins inside its own range and ends in the next
    manifest = manifest_of(files, (left, low, high))
    with pytest.raises(CheckpointError, match="f1: two tensors lie on byte 107"):
        fill(LocalStore(folder), "s", manifest, [want(whole(SHAPE))], threads=1)


def test_the_tensors_of_a_chunk_are_those_with_a_byte_in_it():
    manifest = two_files(4)
    first, second = manifest.files
    assert tensors_in(manifest, first, 0) == ["the header"]
    assert tensors_in(manifest, first, 1) == ["w (param)"]
    assert tensors_in(manifest, second, 0) == ["the header", "w (param)"]
    gap = manifest_of(two_files(1).files, SHARDS)
    named = [bool(tensors_in(gap, gap.files[1], byte)) for byte in range(103, 108)]
    assert named == [True, False, False, False, True]
