"""The job's public word: written whole, read back, never in the driver's way."""

from pathlib import Path

from engine.job.view import JobView, NodeView, ViewWriter, read_view

VIEW = JobView(
    job="j", state="running", attempt=1, driver_pid=3, time_s=1.0, step=4, total_steps=9,
    nodes=(NodeView(node="a", state="active", ranks=(0, 1)),),
)  # fmt: skip


def test_it_reads_back(tmp_path: Path):
    writer = ViewWriter(tmp_path)
    assert writer.is_due
    assert writer.write(VIEW)
    assert not writer.is_due
    assert read_view(tmp_path) == VIEW


def test_a_folder_that_is_gone_does_not_end_a_driver(tmp_path: Path):
    assert not ViewWriter(tmp_path / "gone").write(VIEW)


def test_nonsense_is_no_view(tmp_path: Path):
    assert read_view(tmp_path) is None
    for data in (b"", b"{", b"\xff", b'{"job":1}', b"[" * 9000):
        (tmp_path / "job.json").write_bytes(data)
        assert read_view(tmp_path) is None
