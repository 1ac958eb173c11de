"""metrics.jsonl: what a resumed run drops, and a tail that never sees half a line or an old one."""

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import TraceError
from engine.train.metrics import MetricsTail, MetricsWriter, StepMetrics, read_metrics


def line(step: int, loss: float = 1.0) -> StepMetrics:
    return StepMetrics(
        step=step, loss=loss, grad_norm=1.0, lr=1e-3, tokens=step, tokens_per_s=1.0, step_s=0.5,
        mfu=0.5, memory_bytes=1,
    )  # fmt: skip


def write(folder: Path, steps: range, *, loss: float = 1.0, tensorboard: bool = False) -> None:
    writer = MetricsWriter(folder, tensorboard=tensorboard, from_step=steps.start - 1)
    for step in steps:
        writer.write(line(step, loss))
    writer.close()


def test_lines_are_read_back_as_they_were_written(tmp_path: Path):
    write(tmp_path, range(1, 4))
    assert read_metrics(tmp_path / "metrics.jsonl") == [line(1), line(2), line(3)]
    first = (tmp_path / "metrics.jsonl").read_bytes().splitlines()[0]
    keys = msgspec.json.decode(first)
    assert {"step", "loss", "grad_norm", "tokens_per_s", "step_s"} <= set(keys)


@pytest.mark.parametrize("start", [1, 2, 4, 6])
def test_a_resumed_run_drops_the_steps_it_does_again(tmp_path: Path, start):
    write(tmp_path, range(1, 6))
    write(tmp_path, range(start, 8), loss=2.0)
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert [m.step for m in found] == list(range(1, 8))
    assert [m.loss for m in found] == [1.0] * (start - 1) + [2.0] * (8 - start)


def test_a_torn_last_line_is_left_out_and_written_over(tmp_path: Path):
    write(tmp_path, range(1, 4))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert [m.step for m in read_metrics(path)] == [1, 2]
    write(tmp_path, range(3, 5))
    assert [m.step for m in read_metrics(path)] == [1, 2, 3, 4]


def test_no_file_is_no_line(tmp_path: Path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    assert MetricsTail(tmp_path / "metrics.jsonl").new() == []


@pytest.mark.parametrize(
    "bad",
    [b"{}", b"null", b'{"step": "one"}', b"\xff\xfe", b"[" * 100_000, b"", b'{"step":1}garbage'],
    ids=["empty", "null", "type", "bytes", "deep", "blank", "tail"],
)
def test_a_line_that_is_none_of_ours_is_named(tmp_path: Path, bad):
    write(tmp_path, range(1, 3))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + bad + b"\n")
    with pytest.raises(TraceError, match=r"metrics\.jsonl: line 3"):
        read_metrics(path)


def test_a_tail_sees_each_new_line_once(tmp_path: Path):
    tail = MetricsTail(tmp_path / "metrics.jsonl")
    writer = MetricsWriter(tmp_path, tensorboard=False, from_step=0)
    assert tail.new() == []
    writer.write(line(1))
    assert tail.new() == [line(1)]
    assert tail.new() == []
    writer.write(line(2))
    writer.write(line(3))
    assert tail.new() == [line(2), line(3)]
    assert tail.last == line(3)
    writer.close()


def test_a_tail_waits_for_the_end_of_a_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    text = msgspec.json.encode(line(1)) + b"\n"
    path.write_bytes(text[:10])
    assert tail.new() == []
    path.write_bytes(text)
    assert tail.new() == [line(1)]


@given(
    st.integers(0, 6), st.integers(0, 6),
    st.lists(st.booleans(), min_size=7, max_size=7),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_tail_of_a_resumed_run_sees_its_lines_and_no_earlier_one(
    tmp_path_factory, before, done, looks
):
    """Whenever it looks: before the writer drops lines, after, or when lines were added already."""
    folder = tmp_path_factory.mktemp("tail")
    write(folder, range(1, before + 1))
    start = min(done, before)
    tail = MetricsTail(folder / "metrics.jsonl")
    assert tail.last == (line(before) if before else None)
    look = iter(looks)
    seen = tail.new() if next(look) else []
    writer = MetricsWriter(folder, tensorboard=False, from_step=start)
    for step in range(start + 1, start + 5):
        if next(look):
            seen += tail.new()
        writer.write(line(step, loss=2.0))
    writer.close()
    seen += tail.new()
    assert seen == [line(step, loss=2.0) for step in range(start + 1, start + 5)]
    assert tail.last == seen[-1]


def test_tensorboard_files_are_written_if_asked_for(tmp_path: Path):
    write(tmp_path, range(1, 4), tensorboard=True)
    files = list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))
    assert len(files) == 1
    data = files[0].read_bytes()
    for name in (b"train/loss", b"train/grad_norm", b"train/lr", b"train/tokens_per_s"):
        assert name in data
    assert b"train/val_loss" not in data


def test_nothing_is_left_beside_the_file(tmp_path: Path):
    for _ in range(2):
        write(tmp_path, range(1, 4))
    assert os.listdir(tmp_path) == ["metrics.jsonl"]
