import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import TraceError
from engine.events.reader import event_bytes, event_files, read_events
from engine.events.schema import Event

GOOD = msgspec.json.encode(Event(rank=0, seq=0, kind="span", name="data", t_ns=1)) + b"\n"


@pytest.fixture
def file(tmp_path):
    def write(raw: bytes):
        path = tmp_path / "rank-00000.jsonl"
        path.write_bytes(raw)
        return path

    return write


def test_files_of_a_run_by_rank(tmp_path):
    for name in ("rank-00010.jsonl", "rank-00002.jsonl", "rank-x.jsonl", "rank-00002.jsonl.tmp"):
        (tmp_path / name).touch()
    assert list(event_files(tmp_path)) == [2, 10]


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_folder_without_events(tmp_path, name):
    with pytest.raises(TraceError, match="no event files") as caught:
        event_files(tmp_path / name)
    assert "monitor.events = true" in caught.value.remedy


def test_a_torn_last_line_is_skipped(file):
    for cut in range(1, len(GOOD)):
        assert len(list(read_events(file(GOOD + GOOD[:cut])))) == 1 + (cut == len(GOOD))


@pytest.mark.parametrize(
    ("line", "fault"),
    [(b"\n", "Input data was truncated"), (b"{}\n", "missing required field"),
     (b"[1]\n", "Expected"),
     (b"\xff\xfe\n", ""), (b"[" * 100_000 + b"\n", ""),
     (GOOD.replace(b'"data"', b'"dota"'), "unknown event name"),
     (GOOD.replace(b'"rank":0', b'"rank":"0"'), "Expected `int`"),
     (GOOD.replace(b"{", b'{"x":1,', 1), "unknown field"),
     (GOOD.replace(b'"v":1', b'"v":99'), "schema version 99"),
     (b"x" * (1 << 20) + b"\n", "line longer"),
     (b"y" * (3 << 20), "line longer")],
)  # fmt: skip
def test_any_other_bad_line_is_named(file, line, fault):
    path = file(GOOD + line)
    with pytest.raises(TraceError) as caught:
        list(read_events(path))
    assert caught.value.what.startswith(f"{path}:2: not an event: ")
    assert fault in caught.value.what


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_a_trace_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("any") / "rank-00000.jsonl"
    path.write_bytes(raw)
    try:
        assert all(isinstance(e, Event) for e in read_events(path))
    except TraceError as error:
        assert str(path) in error.what  # noqa: PT017 - both outcomes are right


def test_what_is_no_file_is_not_waited_for(tmp_path):
    path = tmp_path / "rank-00000.jsonl"
    for make in (os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)):
        make(path)
        with pytest.raises(TraceError, match="cannot be read"):
            next(read_events(path))
        with pytest.raises(TraceError, match="cannot be read"):
            event_bytes(path, 1 << 20)
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_folder_that_may_not_be_listed_is_an_error(tmp_path):
    (tmp_path / "events").symlink_to("events")  # as a folder without rights, but also for root
    with pytest.raises(TraceError, match="events: cannot be read: Too many levels") as caught:
        event_files(tmp_path / "events")
    assert caught.value.remedy


def test_a_file_that_is_shut_or_breaks_off_is_an_error(file, monkeypatch):
    path = file(GOOD)

    def shut(*arguments, **more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", shut)
    monkeypatch.setattr("pathlib.Path.read_bytes", shut)
    with pytest.raises(TraceError, match="cannot be read: Permission denied"):
        next(read_events(path))
    with pytest.raises(TraceError, match="cannot be read: Permission denied"):
        event_bytes(path, 1 << 20)
