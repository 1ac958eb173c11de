"""Timed segments of any framework: names, units, sums, and lines that are none."""

import json

import numpy as np
import pytest

from engine.diagnose.parts import PARTS
from engine.diagnose.readers.segments import part_of_segment, read_segments


def write(folder, rank, rows):
    path = folder / f"rank_{rank}.jsonl"
    path.write_bytes(
        b"\n".join(r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows)
    )
    return path


def row(step, seg="forward", **more):
    return {"step": step, "seg": seg} | (more or {"dur_ms": 1000})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("forward", "forward"), ("fwd_mb0", "forward"), ("backward", "backward"),
        ("Bwd", "backward"),
        ("send_fwd", "wait_pp"), ("recv_backward", "wait_pp"), ("pipeline_flush", "wait_pp"),
        ("tp_all_reduce", "wait_tp"), ("tensor_gather", "wait_tp"), ("dp_reduce", "wait_dp"),
        ("grad_sync", "wait_dp"), ("param_all_gather", "wait_dp"), ("barrier", "wait_other"),
        ("dataloader", "data"), ("load_batch", "data"), ("clip_grad", "clip"),
        ("grad_norm", "clip"),
        ("optimizer", "optimizer"), ("adam", "optimizer"), ("validation", "eval"),
        ("save_ckpt", "checkpoint"), ("gc", "gc"), ("garbage_collect", "gc"), ("misc", "other"),
        ("", "other"), ("gcd", "other"),
    ],
)  # fmt: skip
def test_a_name_is_sorted_by_its_words(name, part):
    assert part_of_segment(name) == part
    assert part in PARTS


@pytest.mark.parametrize(
    ("key", "value"),
    [("dur_ms", 1500), ("duration_ms", "1500"), ("dur_us", 1.5e6), ("dur_ns", 1_500_000_000),
     ("dur_s", 1.5), ("duration_s", 1.5), ("seconds", 1.5)],
)  # fmt: skip
@pytest.mark.parametrize("label", ["seg", "name", "phase"])
def test_units_and_names_under_every_key(tmp_path, key, value, label):
    path = write(tmp_path, 4, [{"step": "7", label: "fwd", key: value}])
    found, faults = read_segments([path])
    assert (found.ranks.tolist(), found.steps.tolist(), faults) == ([4], [7], [])
    assert found.seconds["forward"].tolist() == [[1.5]]
    assert sum(v.sum() for v in found.seconds.values()) == 1.5


def test_segments_of_a_part_are_added_by_rank_and_step(tmp_path):
    paths = [
        write(tmp_path, 10, [row(1), row(1, "fwd2", dur_ms=500), row(1, "bwd"), row(2)]),
        write(tmp_path, 2, [row(2, dur_ms=250), row(1)]),
    ]
    found, _ = read_segments(paths)
    assert found.ranks.tolist() == [2, 10]
    assert found.steps.tolist() == [1, 2]
    assert found.seconds["forward"].tolist() == [[1.0, 0.25], [1.5, 1.0]]
    assert found.seconds["backward"].tolist() == [[0, 0], [1.0, 0]]


def test_steps_that_some_rank_lacks_are_left_out_and_the_last_of_many(tmp_path):
    a = write(tmp_path, 0, [row(s) for s in range(6)])
    b = write(tmp_path, 1, [row(s) for s in range(1, 9)])
    assert read_segments([a, b])[0].steps.tolist() == [1, 2, 3, 4]
    c = write(tmp_path, 1, [row(s) for s in range(3, 9)])
    assert read_segments([a, c])[0].steps.tolist() == [3, 4, 5]


BAD = [
    b"{", b"[]", b"3", b"null", b'"dur_ms"', b'{"step": 1}', b'{"seg": "fwd", "dur_ms": 1}',
    b'{"step": "x", "dur_ms": 1}', b'{"step": 1, "dur_ms": "long"}', b'{"step": 1, "dur_ms": null}',
    b'{"step": 1, "dur_ms": "nan"}', b'{"step": 1, "dur_ms": "inf"}', b'{"step": 1, "dur_ms": -5}',
    b'{"step": 1e30, "dur_ms": 1}', b'{"step": 1, "dur_s": ' + b"9" * 400 + b"}",
    b'{"step": 1, "dur_s": 1e300}', b'{"step": -1e30, "dur_ms": 1}', b'{"a":' * 9999, b"\xff",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_line_that_is_no_segment_is_skipped(tmp_path, bad):
    path = write(tmp_path, 0, [bad, row(1), b"", bad])
    found, faults = read_segments([path])
    assert faults == []
    assert found.steps.tolist() == [1]
    assert found.seconds["forward"].tolist() == [[1.0]]
    assert np.isfinite(sum(found.seconds.values())).all()


def test_files_without_segments_or_rank_are_named_and_the_rest_is_read(tmp_path):
    nameless = tmp_path / "events.jsonl"
    nameless.write_text("")
    paths = [
        nameless, write(tmp_path, 1, BAD), write(tmp_path, 3, []), write(tmp_path, 2, [row(5)]),
        tmp_path / "rank_9.jsonl",
    ]  # fmt: skip
    found, faults = read_segments(paths)
    assert found.ranks.tolist() == [2]
    assert [(file, fault.split()[0]) for file, fault in faults] == [
        (str(nameless), "its"), (str(paths[1]), "holds"), (str(paths[4]), "cannot"),
    ]  # fmt: skip
    assert read_segments([])[0] is None
