"""Flight-recorder dumps in both forms: what is open, what finished, and what is no dump."""

import json
import pickle

import pytest

from engine.diagnose.readers import flight
from engine.diagnose.readers.files import FileFault
from engine.diagnose.readers.flight import Call, dump_rank, read_dump, read_dumps


def entry(seq, state="completed", *, group="0", name="nccl:all_reduce", number=0, **more):
    return {
        "pg_id": number, "process_group": (group, "default_pg"), "collective_seq_id": seq,
        "p2p_seq_id": 0, "is_p2p": False, "profiling_name": name, "state": state,
        "input_sizes": [[64, 64]], "frames": [{"filename": "a.py", "line": 3, "name": "step"}],
    } | more  # fmt: skip


def read(path, value, form="pickle"):
    path.write_bytes(pickle.dumps(value) if form == "pickle" else json.dumps(value).encode())
    return read_dump(path, 3)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_what_is_open_what_finished_and_how_far_each_group_has_come(tmp_path, form):
    entries = [
        entry(1), entry(2), entry(1, group="7", number=1, name="nccl:all_gather"),
        entry(3, "started", input_sizes=[[8], [2, 4]]), entry(4, "scheduled"),
    ]  # fmt: skip
    config = {
        "0": {"desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
        "7": {"desc": "dp", "ranks": [1, 3]},
    }
    dump = read(tmp_path / "d", {"entries": entries, "pg_config": config}, form)
    assert (dump.rank, dump.file) == (3, str(tmp_path / "d"))
    assert dump.groups == {"0": ("default_pg", (0, 1, 2, 3)), "7": ("dp", (1, 3))}
    first, second = dump.pending
    frames = ("a.py:3 step",)
    assert first == Call(3, "0", 3, "nccl:all_reduce", False, None, "[[8], [2, 4]]", frames)
    assert (second.order, second.seq) == (4, 4)
    assert dump.enqueued == {"0": 4, "7": 1}
    assert dump.completed == {"0": 2, "7": 1}
    assert dump.finished == {
        ("0", 1): "nccl:all_reduce [[64, 64]]", ("0", 2): "nccl:all_reduce [[64, 64]]",
        ("7", 1): "nccl:all_gather [[64, 64]]",
    }  # fmt: skip


def test_gloo_tells_only_by_retired_and_names_its_group_in_the_entries(tmp_path):
    entries = [entry(1, "scheduled", retired=True), entry(2, "scheduled", retired=False)]
    dump = read(tmp_path / "d", {"entries": entries})
    assert [call.seq for call in dump.pending] == [2]
    assert dump.groups == {"0": ("default_pg", ())}
    assert (dump.enqueued, dump.completed) == ({"0": 2}, {"0": 1})


def test_a_ring_that_forgot_its_beginning_stands_before_its_first_entry(tmp_path):
    dump = read(tmp_path / "d", {"entries": [entry(900, "started"), entry(901, "scheduled")]})
    assert (dump.enqueued, dump.completed) == ({"0": 901}, {"0": 899})


def test_sends_have_a_peer_and_do_not_count_as_collectives(tmp_path):
    point = {"is_p2p": True, "p2p_seq_id": 5, "collective_seq_id": 2}
    dump = read(
        tmp_path / "d",
        {"entries": [entry(1), entry(2, "started", name="nccl:send 0->1", **point),
                     entry(2, "started", name="nccl:recv 1<-2", **point), entry(2, **point)]},
    )  # fmt: skip
    assert [(c.seq, c.peer, c.point_to_point) for c in dump.pending] == [(5, 1, True), (5, 2, True)]
    assert (dump.enqueued, dump.completed) == ({"0": 1}, {"0": 1})
    assert list(dump.finished) == [("0", 1)]


def test_the_status_counts_beyond_what_the_ring_still_holds(tmp_path):
    status = {"0": {"last_enqueued_collective": 40, "last_completed_collective": 38},
              "1": {"last_enqueued_collective": 9, "last_completed_collective": None}}  # fmt: skip
    config = {"0": {"desc": "world", "ranks": "[0, 1]"}, "5": {"desc": "tp", "ranks": "[1, 3]"}}
    value = {"entries": [entry(39)], "pg_config": config, "pg_status": status}
    dump = read(tmp_path / "d", value)
    assert (dump.enqueued, dump.completed) == ({"0": 40, "5": 9}, {"0": 39, "5": -1})
    # an entry that says otherwise ends the guess that both lists run in one order
    dump = read(tmp_path / "d", value | {"entries": [entry(39, group="5", number=0)]})
    assert dump.enqueued == {"5": 40}


def test_the_unnamed_group_and_numbers_of_nobody_are_left_out(tmp_path):
    config = {"": {"desc": "x", "ranks": ""}, "a": {"desc": "named", "ranks": "[2, 3]"}}
    value = {
        "entries": [],
        "pg_config": config,
        "pg_status": {"3": {"last_enqueued_collective": 2}},
    }
    dump = read(tmp_path / "d", value)
    assert dump.groups == {"a": ("named", (2, 3))}
    assert dump.enqueued == dump.completed == {}
    assert dump.pending == ()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_7", 7), ("_dump_12", 12), ("rank_3.json", 3), ("rank3.pickle.gz", 3),
        ("dump.15.dump", 15), ("a1b", None), ("rank_.json", None), ("rank_3.txt", None),
    ],
)  # fmt: skip
def test_the_name_of_a_file_ends_with_its_rank(tmp_path, name, rank):
    assert dump_rank(tmp_path / name) == rank


def test_long_and_nested_texts_are_cut(tmp_path):
    deep = [[[1]] * 500] * 500
    made = entry(
        1, "started", name="n" * 9999, input_sizes=deep, frames=[{"filename": "f" * 9999}] * 99
    )
    (call,) = read(tmp_path / "d", {"entries": [made]}).pending
    assert len(call.name) == 200
    assert len(call.sizes) < 210
    assert len(call.frames) == 12
    assert max(map(len, call.frames)) < 210


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (None, ""), (3, "3"), ("x", "x"), ({"a": 1}, ""), ([], "[]"), ([3], "[?]"),
        ([[8, 2], [4]], "[[8, 2], [4]]"), ([[], ()], "[[], []]"), ([[[1]]], "[[?]]"),
    ],
)  # fmt: skip
def test_shapes_of_any_form_are_text(tmp_path, sizes, text):
    (call,) = read(tmp_path / "d", {"entries": [entry(1, "started", input_sizes=sizes)]}).pending
    assert call.sizes == text


NO_DUMPS = [
    b"", b"{", b"   {", b"[1]", b"null", b'{"entries": 3}', b'{"entries": {}}', b"\xff\xff",
    b'{"entries": [], "pg_config": [1]}', b'{"entries": [], "pg_config": {"a": 1}}',
    b'{"entries": [], "pg_config": {"a": {"ranks": ["x"]}}}',
    b'{"entries": [], "pg_status": {"0": 3}, "pg_config": {"0": {"ranks": "0"}}}',
    b'{"entries": [{"process_group": 3}]}',
    b'{"entries": [{"collective_seq_id": "x"}]}', b'{"entries": [{"frames": 3}]}',
    b'{"a":' * 100_000, pickle.dumps([1]), pickle.dumps({"entries": ()}), pickle.dumps({1, 2})[:-1],
]  # fmt: skip


@pytest.mark.parametrize("data", NO_DUMPS)
def test_what_is_no_dump_is_a_fault(tmp_path, data):
    path = tmp_path / "d"
    path.write_bytes(data)
    with pytest.raises(FileFault):
        read_dump(path, 0)


def test_entries_that_are_no_entries_are_skipped_and_bare_ones_are_calls(tmp_path):
    dump = read(tmp_path / "d", {"entries": [1, None, "x", [], {}]})
    assert [(c.order, c.group, c.seq, c.name) for c in dump.pending] == [(0, "?", -1, "")]


def test_a_dump_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "d"
    value = {"entries": []}
    read(path, value)
    monkeypatch.setattr(flight, "_SIZE_LIMIT", path.stat().st_size - 1)
    with pytest.raises(FileFault, match="larger"):
        read_dump(path, 0)


@pytest.mark.multi
def test_on_several_cores_the_same_is_read_and_faults_keep_their_place(tmp_path, monkeypatch):
    for rank in range(6):
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps({"entries": [], "version": "2.9"}, 2))
    (tmp_path / "dump_3").write_bytes(b"")
    paths = [*sorted(tmp_path.iterdir()), tmp_path / "gone_7", tmp_path / "no-number"]
    alone = list(read_dumps(paths))
    monkeypatch.setattr(flight, "_ALONE", 0)
    assert list(read_dumps(paths)) == alone
    assert [path for path, _ in alone] == paths
    assert [n for n, (_, found) in enumerate(alone) if isinstance(found, str)] == [3, 6, 7]
