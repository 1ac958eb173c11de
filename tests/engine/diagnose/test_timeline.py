"""The timeline of two stages made by hand: times, lanes, arrows and what is left out."""

import json

import pytest

from engine.diagnose import timeline
from engine.diagnose.eventlines import Line
from engine.diagnose.timeline import _arrows, lanes_of, write_timeline
from engine.errors import MissingError, TraceError
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(pp=2)
US = 1000


def event(name, start_us, dur_us, step=1, stream="compute", kind="span", **attrs):
    return {"kind": kind, "name": name, "t_ns": start_us * US, "dur_ns": dur_us * US,
            "step": step, "stream": stream, "attrs": attrs}  # fmt: skip


def run(folder, *more):
    """Stage 0 sends to stage 1 and gets a gradient; the clock of rank 1 is 5,000 us ahead."""
    first = [
        event("forward", 100, 50, chunk=0, microbatch=0),
        event("send_f", 150, 20, stream="pp_f", chunk=0, microbatch=0),
        event("backward", 400, 60, chunk=0, microbatch=0),
        event("clip", 500, 10),
    ]
    second = [
        event("forward", 5180, 70, chunk=1, microbatch=0),
        event("send_b", 5300, 20, stream="pp_b", chunk=1, microbatch=0),
        event("clip", 5490, 20),
    ]
    (folder / "events").mkdir(parents=True)
    for rank, rows in enumerate((first, second)):
        clock = event("clock", 0, 0, -1, kind="instant", wall_ns=7, tp=1, pp=2, dp=1)
        rows = [clock, *rows, *more, event("end", 9000, 0, -1, kind="instant")]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "events" / f"rank-{rank:05d}.jsonl").write_text(text)
    return folder


def read(path):
    return json.loads(path.read_bytes())["traceEvents"]


def test_times_are_those_of_one_clock_from_zero(tmp_path):
    out = tmp_path / "t.json"
    made = write_timeline(run(tmp_path), out, LAYOUT, steps=(1, 1))
    slices = {(e["pid"], e["name"]): (e["ts"], e["dur"]) for e in read(out) if e["ph"] == "X"}
    assert slices == {
        (0, "forward"): (0, 50), (0, "send_f"): (50, 20), (0, "backward"): (300, 60),
        (0, "clip"): (400, 10), (1, "forward"): (80, 70), (1, "send_b"): (200, 20),
        (1, "clip"): (390, 20),
    }  # fmt: skip
    assert made == (str(out), 2, (1, 1), 7, 2, 0, ())


def test_an_arrow_leads_from_each_send_to_who_takes_it(tmp_path):
    out = tmp_path / "t.json"
    write_timeline(run(tmp_path), out, LAYOUT, steps=(1, 1))
    rows = read(out)
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in rows if e["name"] == "thread_name"}
    arrows = {
        e["id"]: (e["name"], e["pid"], threads[e["pid"], e["tid"]], e["ts"])
        for e in rows
        if e["ph"] == "s"
    }
    taken = {
        e["id"]: (e["pid"], threads[e["pid"], e["tid"]], e["ts"]) for e in rows if e["ph"] == "f"
    }
    found = sorted((*arrows[n], *taken[n]) for n in arrows)
    assert found == [
        ("send_b", 1, "pp_b", 200, 0, "compute", 300), ("send_f", 0, "pp_f", 50, 1, "compute", 80)
    ]  # fmt: skip


def test_processes_carry_rank_and_place_and_arguments_the_step(tmp_path):
    out = tmp_path / "t.json"
    opened = event("wait", 8000, 30, kind="open", on="dp_reduce")
    write_timeline(run(tmp_path, opened), out, LAYOUT, steps=(1, 1))
    rows = read(out)
    names = [e["args"]["name"] for e in rows if e["name"] == "process_name"]
    assert names == ["rank 0 (tp 0 pp 0 dp 0)", "rank 1 (tp 0 pp 1 dp 0)"]
    waits = [e["args"] for e in rows if e["ph"] == "X" and e["name"] == "wait"]
    assert waits == [{"step": 1, "on": "dp_reduce", "open": True}] * 2
    forward = next(e["args"] for e in rows if e["name"] == "forward")
    assert forward == {"step": 1, "chunk": 0, "microbatch": 0}


@pytest.mark.parametrize(("steps", "slices"), [((1, 1), 7), ((1, 2), 9), ((2, 3), 2), ((2, 2), 2)])
def test_only_the_steps_asked_for_are_written(tmp_path, steps, slices):
    folder = run(tmp_path, event("forward", 7000, 10, 2, chunk=0, microbatch=0))
    made = write_timeline(folder, tmp_path / "t.json", LAYOUT, steps=steps)
    assert made.slices == slices


def test_of_many_ranks_the_first_are_written(tmp_path):
    made = write_timeline(run(tmp_path), tmp_path / "t.json", LAYOUT, steps=(1, 1), most_ranks=1)
    assert (made.ranks, made.slices, made.arrows) == (1, 4, 0)


@pytest.mark.parametrize(
    ("name", "limit"), [("t.json", "_MOST_JSON"), ("t.pftrace", "_MOST_PERFETTO")]
)
def test_how_many_a_viewer_opens_depends_on_the_form(tmp_path, monkeypatch, name, limit):
    monkeypatch.setattr(timeline, limit, 1)
    made = write_timeline(run(tmp_path), tmp_path / name, LAYOUT, steps=(1, 1))
    assert made.ranks == 1


def test_no_events_of_the_steps_is_an_error_and_no_file(tmp_path):
    out = tmp_path / "t.json"
    with pytest.raises(TraceError, match="no events of steps 4-9"):
        write_timeline(run(tmp_path), out, LAYOUT, steps=(4, 9))
    assert not out.exists()


def test_a_message_is_matched_by_replica_step_chunk_and_microbatch():
    layout = ParallelLayout(pp=2, dp=2)

    def line(name, chunk, micro, step=1):
        return Line("span", name, 0, step=step, attrs={"chunk": chunk, "microbatch": micro})

    sent = line("send_f", 0, 1)
    others = [line("send_f", 0, 0), line("send_f", 2, 1), line("send_f", 0, 1, step=2)]
    taken = line("forward", 1, 1)
    lines = {0: [sent, *others], 1: [line("send_f", 0, 1)], 2: [taken, line("forward", 1, 9)]}
    (arrow,) = _arrows(lines, layout)
    assert arrow.sent is sent
    assert arrow.taken is taken
    assert (arrow.number, arrow.source, arrow.target) == (1, 0, 2)


def test_the_gradient_goes_to_either_form_of_backward():
    def line(name, chunk):
        return Line("span", name, 0, step=1, attrs={"chunk": chunk})

    lines = {0: [line("backward_input", 0), line("backward_weight", 0)], 1: [line("send_b", 1)]}
    assert [(a.source, a.target, a.taken.name) for a in _arrows(lines, LAYOUT)] == [
        (1, 0, "backward_input")
    ]


def test_attributes_that_are_no_numbers_match_as_zero():
    lines = {
        0: [Line("span", "send_f", 0, step=1, attrs={"chunk": "x"})],
        1: [Line("span", "forward", 0, step=1, attrs={"chunk": 1, "microbatch": []})],
    }
    assert len(list(_arrows(lines, LAYOUT))) == 1


def test_known_lanes_have_fixed_places_and_others_follow():
    lines = [Line("span", "x", 0, stream=s, dur_ns=9) for s in ("zzz", "compute", "host", "pp_f")]
    lines.append(Line("span", "y", 5, stream="compute", dur_ns=9))
    lanes = {lane.name: lane.number for lane in lanes_of(lines)}
    assert lanes == {"host": 0, "compute": 1, "pp_f": 3, "compute 2": 8, "zzz": 9}


def test_files_that_the_report_names_as_unreadable_cost_only_their_ranks(tmp_path):
    events = run(tmp_path) / "events"
    (events / "rank-00001.jsonl").write_text("no event\n")
    (events / "rank-00007.jsonl").write_text((events / "rank-00000.jsonl").read_text())
    made = write_timeline(tmp_path, tmp_path / "t.json", LAYOUT, steps=(1, 1))
    assert made.ranks == 1


@pytest.mark.parametrize("name", ["nowhere/t.json", "nowhere/t.pftrace", "events"])
def test_a_timeline_that_cannot_be_written_is_an_error(tmp_path, name):
    with pytest.raises(MissingError, match="cannot be written: "):
        write_timeline(run(tmp_path), tmp_path / name, LAYOUT, steps=(1, 1))
