"""Heartbeats: the last state of a rank, for whom it waits, and lines that are none."""

import json

import pytest

from engine.diagnose.readers.beats import HANG_S, Beat, beat_waits, gone_on_without, read_beats
from engine.diagnose.readers.job import NOTHING, Job

JOB = Job("j", 8, (("tp", 2), ("dp", 2), ("pp", 2)), {})
"""Rank 5 is tp 1, dp 0, pp 1: its neighbours are 4 (tp), 7 (dp), 1 (pp)."""


def write(path, *rows):
    path.write_bytes(
        b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows)
    )
    return path


def beat(rank, phase, *, time=100.0, since=0.0, step=6, micro=0):
    return Beat(rank, time, since, step, phase, micro, f"b{rank}")


def waits(*beats, job=JOB):
    return beat_waits({b.rank: b for b in beats}, job)


def test_the_last_beat_of_each_rank_with_the_time_since_which_it_stands(tmp_path):
    one = write(
        tmp_path / "rank_3.jsonl",
        {"t": 1.0, "step": 6, "phase": "forward"},
        {"t": 2.0, "step": 6, "phase": "backward", "mb": 1},
        {"t": 3.0, "step": 6, "phase": "backward", "mb": 1},
        {"t": 4.5, "step": 6, "phase": "backward", "mb": 1},
    )
    last, faults = read_beats([one])
    assert last == {3: Beat(3, 4.5, 2.0, 6, "backward", 1, str(one))}
    assert faults == []


def test_one_file_may_hold_many_ranks_under_other_names_and_in_any_order(tmp_path):
    rows = [
        {"timestamp": 9, "global_rank": 1, "iteration": 4, "state": "data"},
        {"time": 7, "rank": 1, "iter": 3, "action": "old"},
        {"ts": 8, "rank": 0, "step": 4, "section": "norm", "micro_batch": 2, "phase_since": 5},
    ]
    last, _ = read_beats([write(tmp_path / "beats.jsonl", *rows)])
    assert last[1][:6] == (1, 9.0, 9.0, 4, "data", 0)
    assert last[0][:6] == (0, 8.0, 5.0, 4, "norm", 2)


BAD = [
    b"{", b"[]", b"3", b"null", b'{"rank": 0}', b'{"t": "soon", "rank": 0}', b'{"t": 1}',
    b'{"t": 1, "rank": -1}', b'{"t": 1, "rank": 1048576}', b'{"t": 1, "rank": 0, "step": "x"}',
    b'{"t": 1, "rank": 0, "step": [1]}',
    b'{"t": "nan", "rank": 0}', b'{"t": "inf", "rank": 0}', b'{"t": 1, "since": "inf", "rank": 0}',
    b'{"t": ' + b"9" * 400 + b', "rank": 0}', b'{"a":' * 9999, b"\xff\xff",
    b'{"t": 1, "rank": {}}',
    b'{"t": 1, "rank": 0, "mb": "many"}',
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_line_that_is_no_heartbeat_is_counted_and_the_rest_is_read(tmp_path, bad):
    path = write(tmp_path / "beats", bad, {"t": 5, "rank": 2, "step": 1}, bad)
    last, faults = read_beats([path])
    assert list(last) == [2]
    assert faults == [(str(path), "2 lines are no heartbeats")]


def test_a_torn_last_line_is_what_a_kill_leaves_and_no_fault(tmp_path):
    path = write(tmp_path / "beats", {"t": 5, "rank": 2, "step": 1})
    with path.open("ab") as file:
        file.write(b'{"t": 6, "ra')
    last, faults = read_beats([path])
    assert (last[2].time, faults) == (5.0, [])


def test_a_last_line_without_an_end_counts_if_it_is_whole(tmp_path):
    path = tmp_path / "beats"
    path.write_text('{"t": 5, "rank": 2, "step": 1}')
    assert list(read_beats([path])[0]) == [2]


def test_an_endless_line_and_a_missing_file_are_faults_and_the_rest_is_read(tmp_path):
    long = tmp_path / "long"
    long.write_bytes(b'{"t": 1, "rank": 0}\n' + b"x" * 300_000)
    last, faults = read_beats([tmp_path / "none", long, write(tmp_path / "b", {"t": 1, "rank": 4})])
    assert sorted(last) == [0, 4]
    assert [file for file, _ in faults] == [str(tmp_path / "none"), str(long)]
    assert "longer than" in faults[1][1]


@pytest.mark.parametrize(
    ("phase", "targets"),
    [
        ("recv_forward", {1}), ("recv-fwd", {1}), ("recv_b", {1}), ("send_forward", {1}),
        ("send_backward", {1}), ("tp_all_reduce", {4}), ("tensor_gather", {4}),
        ("dp_reduce_scatter", {7}), ("fsdp_unshard", {7}), ("grad_sync", {7}), ("pp_barrier", {1}),
        ("barrier", set(range(8)) - {5}), ("all_to_all", set(range(8)) - {5}),
        ("forward", set()), ("optimizer", set()), ("", set()),
    ],
)  # fmt: skip
def test_a_phase_tells_for_whom_a_rank_waits(phase, targets):
    made = waits(beat(5, phase), beat(0, "tp_barrier"))
    assert made[5].waits_for == targets
    assert made[5].at == f"step 6 {phase} microbatch 0"
    assert made[5].age_s == 100.0


def test_of_a_pipeline_the_direction_counts():
    line = Job("j", 3, (("pp", 3),), {})
    made = waits(beat(1, "recv_f"), beat(0, "recv_f"), beat(2, "recv_b"), job=line)
    assert [set(made[r].waits_for) for r in range(3)] == [{2}, {0}, {0}]
    made = waits(beat(1, "send_f"), beat(0, "send_b"), job=line)
    assert [set(made[r].waits_for) for r in range(2)] == [{2}, {2}]


def test_members_in_the_same_state_do_not_wait_for_one_another():
    group = Job("j", 4, (("dp", 4),), {})
    made = waits(*(beat(r, "dp_reduce") for r in range(3)), beat(3, "data"), job=group)
    assert [set(made[r].waits_for) for r in range(4)] == [{3}, {3}, {3}, set()]
    made = waits(*(beat(r, "dp_reduce") for r in range(4)), job=group)
    assert set(made[0].waits_for) == {1, 2, 3}


def test_a_member_in_a_later_step_has_passed():
    group = Job("j", 3, (("dp", 3),), {})
    made = waits(
        beat(0, "dp_reduce"), beat(1, "dp_reduce", step=7), beat(2, "dp_reduce", step=6), job=group
    )
    assert made[0].parted_from == {1}
    assert made[1].parted_from == frozenset()


def test_a_young_state_is_work_in_progress():
    young = beat(5, "tp_reduce", since=100 - HANG_S + 0.1)
    assert waits(young, beat(0, "barrier"))[5].waits_for == frozenset()
    assert waits(young._replace(since=100 - HANG_S), beat(0, "barrier"))[5].waits_for == {4}


def test_a_rank_whose_beats_stop_is_silent():
    made = waits(beat(5, "tp_reduce", time=100 - HANG_S - 1, since=1.0), beat(0, "barrier"))
    assert (made[5].silent, made[5].waits_for, made[5].age_s) == (True, frozenset(), HANG_S + 1)
    made = waits(beat(5, "tp_reduce", time=100 - HANG_S), beat(0, "barrier"))
    assert (made[5].silent, set(made[5].waits_for)) == (False, {4})


def test_without_the_jobs_degrees_a_wait_is_known_but_not_for_whom():
    assert waits(beat(5, "tp_reduce"), job=NOTHING)[5].lost
    assert waits(beat(5, "recv_f"), job=NOTHING)[5].lost
    assert waits(beat(5, "forward"), job=NOTHING) == {}
    assert beat_waits({}, JOB) == {}


def test_without_degrees_who_waits_waits_for_who_is_silent_lags_or_works_alone():
    busy = beat(2, "forward")
    states = waits(beat(0, "dp_allreduce"), beat(1, "tp_reduce"), busy, job=NOTHING)
    assert {r: set(s.waits_for) for r, s in states.items()} == {0: {2}, 1: {2}, 2: set()}
    late = waits(beat(0, "dp_allreduce", step=7), beat(1, "tp_reduce"), job=NOTHING)
    assert (late[0].waits_for, late[1].lost) == ({1}, True)
    young = beat(2, "forward", since=99.0)
    assert waits(beat(0, "dp_allreduce"), young, job=NOTHING)[0].lost


def test_a_job_that_goes_on_without_a_rank_that_fell_silent():
    silent = beat(2, "forward", time=40.0, step=40)
    others = {r: beat(r, "forward", step=99) for r in (0, 1, 3)}
    assert gone_on_without({**others, 2: silent}) == [silent]
    assert gone_on_without({**others, 2: silent._replace(step=98)}) == []  # the last step
    assert gone_on_without({0: others[0], 2: silent}) == []  # who of the two is gone?
    assert gone_on_without({}) == []
