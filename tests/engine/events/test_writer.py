import resource
import threading

import pytest

from engine.events.reader import read_events
from engine.events.schema import check
from engine.events.writer import EventWriter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events" / "rank-00003.jsonl"


def test_what_is_written_reads_back_in_order(path):
    with EventWriter(path, 3) as writer:
        writer.clock(
            world=8, degrees={"tp": 2, "pp": 2, "dp": 2}, index={"tp": 1, "pp": 1, "dp": 0}
        )
        writer.step = 5
        with writer.span("step"), writer.span("forward", "compute", chunk=0, microbatch=1):
            pass
        writer.value("loss", 2.5)
    events = list(read_events(path))
    assert [e.name for e in events] == ["clock", "forward", "step", "loss", "end"]
    assert [e.seq for e in events] == list(range(5))
    assert all(check(e) is None and e.rank == 3 for e in events)
    forward, step = events[1], events[2]
    assert step.t_ns <= forward.t_ns
    assert forward.t_ns + forward.dur_ns <= step.t_ns + step.dur_ns
    assert forward.stream == "compute"
    assert (events[0].step, step.step) == (-1, 5)


def test_a_name_outside_the_schema_is_refused_where_it_is_written(path):
    with EventWriter(path, 0) as writer, pytest.raises(KeyError, match="schema"):
        writer.instant("fowrard", {})


def test_without_a_path_nothing_is_kept():
    writer = EventWriter(None, 0)
    assert not writer.active
    with writer.span("forward", chunk=0, microbatch=0):
        writer.dump_open()
    writer.close(ended=True)


def test_open_spans_are_dumped_outermost_first(path):
    writer = EventWriter(path, 0)
    with writer.span("step"), writer.span("recv_f", "pp_f", chunk=1, microbatch=0):
        writer.dump_open()
        seen = list(read_events(path))  # flushed while the spans are open
    assert [(e.kind, e.name) for e in seen] == [("open", "step"), ("open", "recv_f")]
    assert seen[0].dur_ns >= seen[1].dur_ns >= 0
    writer.close(ended=False)


def test_under_pressure_lines_are_dropped_and_counted(path):
    writer = EventWriter(path, 0, limit=10)
    for _ in range(25):
        writer.value("loss", 1.0)
    assert writer.dropped == 15
    writer.flush()
    writer.close(ended=True)
    events = list(read_events(path))
    assert len(events) == 12
    assert events[-2].attrs == {"value": 15}


def test_an_exception_becomes_an_event_and_goes_on(path):
    with pytest.raises(ValueError, match="bad"), EventWriter(path, 0):
        raise ValueError("bad " * 1000)
    (event,) = read_events(path)
    assert (event.name, event.attrs["type"]) == ("error", "ValueError")
    assert len(str(event.attrs["what"])) == 2000


def test_writing_again_appends(path):
    for _ in range(2):
        EventWriter(path, 0).close(ended=True)
    assert [e.name for e in read_events(path)] == ["end", "end"]


def test_callbacks_of_other_threads_keep_the_order_of_seq(path):
    writer = EventWriter(path, 0)

    def note() -> None:
        for i in range(200):
            writer.add("value", "loss", "host", i, 0, {"value": i})

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close(ended=False)
    assert [e.seq for e in read_events(path)] == list(range(800))


@pytest.mark.parametrize("cut", [1, 20, 0])
def test_a_restart_does_not_write_onto_the_line_that_a_killed_rank_left(path, cut):
    """Torn by `cut` bytes or not at all: every line that is there is whole."""
    with EventWriter(path, 3) as writer:
        writer.value("loss", 1.0)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - cut])
    with EventWriter(path, 3) as writer:
        writer.value("loss", 2.0)
    names = [e.name for e in read_events(path)]
    assert names == ["loss", *(["end"] if cut == 0 else []), "loss", "end"]


def test_a_file_that_is_one_torn_line_begins_anew(path):
    path.parent.mkdir()
    path.write_bytes(b'{"v":1,"rank":')
    with EventWriter(path, 3) as writer:
        writer.value("loss", 2.0)
    assert [e.name for e in read_events(path)] == ["loss", "end"]


def test_a_watched_writer_without_a_file_tells_what_runs_and_counts_own_work_once():
    writer = EventWriter(None, 0, watched=True)
    writer.step = 4
    with writer.span("step"):
        writer.enter("forward", "compute", chunk=0)
        assert writer.doing == ("step", "forward")
        with writer.span("tp_comm", "tp", op="gather", bytes=1):
            threading.Event().wait(0.02)  # what it measures, not what it waits for
        writer.leave()
    assert writer.doing == ()
    assert writer.actions == 6
    (work,) = writer.works
    assert work.step == 4
    assert work.length_s >= 0.02
    assert work.own_s < work.length_s - 0.015, "waiting inside a forward is not own work"


@pytest.mark.parametrize("aside", ["eval", "sdc"])
def test_validation_and_comparison_are_no_work_of_the_next_step(aside: str):
    writer = EventWriter(None, 0, watched=True)
    with writer.span(aside), writer.span("forward", "compute", chunk=0):
        threading.Event().wait(0.02)
    with writer.span("step"):
        pass
    assert writer.works[0].own_s == 0.0


def step(writer: EventWriter, number: int, spans: int = 1) -> None:
    writer.step = number
    with writer.span("step"):
        for microbatch in range(spans):
            with writer.span("forward", "compute", chunk=0, microbatch=microbatch):
                pass
    writer.flush()


def test_the_first_steps_of_a_start_and_every_nth_are_kept_span_by_span(path):
    with EventWriter(path, 0, every=10) as writer:
        for number in range(7, 33):
            step(writer, number, spans=5)
    kept = {e.step: 0 for e in read_events(path)} | {-1: 0}
    for event in read_events(path):
        kept[event.step] += event.name == "forward"
    whole = [number for number in range(7, 33) if kept[number] == 5]
    assert whole == [7, 8, 9, 10, 20, 30]
    assert all(kept[number] == 1 for number in range(7, 33) if number not in whole)


def test_of_a_file_that_grows_too_large_the_newest_stays(path):
    most = 20_000
    with EventWriter(path, 3, most_bytes=most) as writer:
        writer.clock(world=4, degrees={"tp": 1, "pp": 1, "dp": 4},
                     index={"tp": 0, "pp": 0, "dp": 3})  # fmt: skip
        for number in range(1, 400):
            step(writer, number)
            files = [one for one in path.parent.iterdir() if one.name.startswith(path.name)]
            assert sum(one.stat().st_size for one in files) < most + 1000
    events = list(read_events(path))
    assert all(check(event) is None for event in events)
    assert events[0].name == "clock"
    assert (events[0].attrs["world"], events[0].attrs["dp_index"]) == (4, 3)
    steps = [event.step for event in events if event.name == "step"]
    assert steps == list(range(steps[0], 400))
    assert len(steps) > 20
    seqs = [event.seq for event in events]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def test_a_full_disk_costs_events_and_not_the_step(path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EventWriter(path, 0) as writer:
        step(writer, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, hard))
        try:
            step(writer, 2, spans=50)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        step(writer, 3)
    assert [e.step for e in read_events(path) if e.name == "step"] == [1, 3]
    (dropped,) = [e for e in read_events(path) if e.name == "dropped"]
    assert dropped.attrs == {"value": 51}
