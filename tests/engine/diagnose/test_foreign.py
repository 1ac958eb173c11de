import gzip
import json
import os
import pickle
from pathlib import Path

import msgspec
import pytest

from engine.diagnose.finding import Report
from engine.diagnose.foreign import Inputs, diagnose_foreign, inputs_of
from engine.diagnose.logs.scan import Scanner
from engine.diagnose.readers import files, flight
from engine.diagnose.readers.files import FileFault
from engine.diagnose.readers.unpickle import load_plain
from engine.errors import TraceError

FIXTURES = Path(__file__).parent / "fixtures"
"""Recordings of eight real gloo processes (tp 2, pp 2, dp 2) with rank 5 at fault in step 6."""


@pytest.mark.parametrize(
    ("job", "kind", "category", "ranks"),
    [
        ("sleep", "hang", "rank_blocked", (5,)),
        ("sigstop", "hang", "rank_blocked", (5,)),
        ("skip", "hang", "desync", (4, 5)),
        ("exit", "crash", "crash", (5,)),
        ("mismatch", "crash", "desync", (4, 5)),
    ],
)
def test_a_real_job_with_a_fault(job, kind, category, ranks):
    verdict = diagnose_foreign(inputs_of(FIXTURES / job)).verdict
    assert (verdict.kind, verdict.category, verdict.ranks) == (kind, category, ranks)


def test_dumps_as_pickle_and_as_json_say_the_same(tmp_path):
    for path in (FIXTURES / "sleep" / "fr").iterdir():
        value = pickle.loads(path.read_bytes())
        (tmp_path / f"{path.name}.json").write_text(json.dumps(value))
    a = diagnose_foreign(inputs_of(FIXTURES / "sleep"))
    b = diagnose_foreign(inputs_of(FIXTURES / "sleep")._replace(fr=tmp_path))
    assert a.verdict.ranks == b.verdict.ranks == (5,)


def test_one_missing_dump_is_evidence_and_not_a_gap(tmp_path):
    folder = FIXTURES / "sigstop"
    report = diagnose_foreign(inputs_of(folder))
    assert "no dump or heartbeat of rank 5" in report.verdict.why


def test_what_was_not_given_is_listed():
    report = diagnose_foreign(Inputs(logs=FIXTURES / "exit" / "logs"))
    assert any("kernel logs" in gap for gap in report.not_looked_at)
    assert any("flight-recorder" in gap for gap in report.not_looked_at)


def test_a_report_survives_json():
    report = diagnose_foreign(inputs_of(FIXTURES / "skip"))
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_no_input_is_an_error_with_a_remedy():
    with pytest.raises(TraceError) as caught:
        diagnose_foreign(Inputs())
    assert "--logs" in caught.value.remedy
    with pytest.raises(TraceError):
        diagnose_foreign(Inputs(logs=Path("nowhere")))


# --- hostile input


class Malicious:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def test_no_code_runs_from_a_dump(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dump = tmp_path / "fr"
    dump.mkdir()
    (dump / "rank_0").write_bytes(pickle.dumps({"entries": [Malicious()]}))
    report = diagnose_foreign(Inputs(fr=dump))
    assert not (tmp_path / "pwned").exists()
    assert "refused" in report.unreadable[0].text


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol_of_plain_containers_is_read(protocol):
    value = {"a": [1, 2.5, None, True, "x" * 300, (1, 2, 3, 4)], "b": {"c": -(2**70)}}
    assert load_plain(pickle.dumps(value, protocol)) == value


def test_a_dump_whose_lists_hold_each_other_many_times_is_read_in_no_time():
    """Forty lists of two: a trillion leaves for whoever prints them."""
    value: list = []
    for _ in range(40):
        value = [value, value]
    entry = {"profiling_name": value, "input_sizes": value, "process_group": [value, value]}
    call = flight._call(0, entry | {"frames": [{"filename": value}]})
    assert len(str(call)) < 2000


@pytest.mark.parametrize("value", [os.system, Malicious(), slice(1), Path("x"), range(3), {1, 2j}])
def test_a_pickle_that_asks_for_a_name_is_refused(value):
    with pytest.raises(FileFault):
        load_plain(pickle.dumps(value))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80", b"\x80\x04", b"garbage", os.urandom(4096), b"\x80\x04]" * 10, b"{" * 100_000,
        b'{"entries": 3}', b'{"entries": [{"process_group": 3}]}', b"[1, 2]", b"null",
        pickle.dumps({"entries": [1, None, {}]}), b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        pickle.dumps({"entries": []})[:-3], b"\x80\x02X\xff\xff\xff\x7fabc.",
    ],
)  # fmt: skip
def test_a_damaged_dump_is_named_and_the_rest_is_read(data, tmp_path):
    fr = tmp_path / "fr"
    fr.mkdir()
    for path in (FIXTURES / "sleep" / "fr").iterdir():
        (fr / path.name).write_bytes(path.read_bytes())
    (fr / "rank_99").write_bytes(data)
    report = diagnose_foreign(inputs_of(FIXTURES / "sleep")._replace(fr=fr))
    assert report.verdict.ranks == (5,)
    assert report.read["dumps"] in (8, 9)


def test_garbage_among_logs_is_named_and_the_rest_is_read(tmp_path):
    healthy = "[rank{0}] INFO iteration 1/9 | lm loss: 2.0\n" * 20
    for rank in range(4):
        (tmp_path / f"rank_{rank}.log").write_text(healthy.format(rank))
    with (tmp_path / "rank_2.log").open("a") as log:
        log.write("[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    (tmp_path / "rank_7.log").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "rank_8.log.gz").write_bytes(gzip.compress(b"x" * 100_000)[:-40])
    (tmp_path / "rank_9.log").write_bytes("[rank9] iteration 1 loss 2\n".encode("utf-16"))
    (tmp_path / "empty.log").write_bytes(b"")
    report = diagnose_foreign(Inputs(logs=tmp_path))
    assert (report.verdict.category, report.verdict.ranks) == ("cuda_oom", (2,))
    named = {Path(e.file).name for e in report.unreadable}
    assert named == {"rank_7.log", "rank_8.log.gz"}


def test_an_error_in_utf16_is_read(tmp_path):
    log = tmp_path / "rank_3.log"
    log.write_bytes(
        "[rank3] ok\n[rank3]: CUDA error: uncorrectable ECC error encountered\n".encode("utf-16")
    )
    verdict = diagnose_foreign(Inputs(logs=tmp_path)).verdict
    assert (verdict.category, verdict.ranks, verdict.line) == ("gpu_ecc", (3,), 2)


def test_a_huge_line_is_not_read_whole(tmp_path):
    log = tmp_path / "rank_0.log"
    with log.open("wb") as file:
        file.write(b"[rank0] ok\n")
        for _ in range(64):
            file.write(b"x" * (1 << 18))
        file.write(b"\nOSError: [Errno 28] No space left on device\n")
    scan = Scanner().scan(log)
    (hits,) = scan.hits.values()
    assert hits[0].line == 3
    assert any("longer than" in fault for fault in scan.faults)


def test_a_zip_bomb_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "EXPANDED_LIMIT", 8 << 20)
    log = tmp_path / "rank_0.log.gz"
    log.write_bytes(gzip.compress(b"a\n" * (16 << 20)))
    scan = Scanner().scan(log)
    assert scan.size <= 9 << 20
    assert any("expands" in fault for fault in scan.faults)


def test_deep_json_is_a_fault_and_no_crash(tmp_path):
    deep = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    for kind in ("fr", "heartbeats", "ras", "segments", "traces"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "rank_0.json").write_bytes(deep)
        report = diagnose_foreign(Inputs(**{kind: folder}))
        assert report.verdict.state in ("unknown", "healthy")


def test_two_jobs_in_one_folder_do_not_mix_ranks(tmp_path):
    for job in ("a", "b"):
        for rank in range(3):
            path = tmp_path / job / f"rank_{rank}.log"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"[rank{rank}] iteration 1 loss 2\n" * 5)
    with (tmp_path / "b" / "rank_1.log").open("a") as log:
        log.write("KeyError: 'labels'\n")
    verdict = diagnose_foreign(Inputs(logs=tmp_path)).verdict
    assert (verdict.category, verdict.ranks) == ("code_error", (1,))
    assert verdict.file.endswith("b/rank_1.log")


def test_pipes_devices_and_what_may_not_be_read_are_left_out(tmp_path):
    (tmp_path / "rank_0.log").write_text("KeyError: 'labels'\n")
    os.mkfifo(tmp_path / "rank_1.log")
    (tmp_path / "rank_2.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "rank_3.log").write_text("ok\n")
    (tmp_path / "shut").chmod(0)
    try:
        report = diagnose_foreign(Inputs(logs=tmp_path))
        assert (report.verdict.category, report.verdict.ranks) == ("code_error", (0,))
    finally:
        (tmp_path / "shut").chmod(0o755)


def test_what_was_not_read_is_not_called_healthy(tmp_path):
    healthy = "[rank0] INFO iteration 1/9 | lm loss: 2.0\n" * 20
    (tmp_path / "a.log").write_bytes(b"")
    assert diagnose_foreign(Inputs(logs=tmp_path)).verdict.state == "unknown"
    (tmp_path / "b.log").write_bytes(b"\0\1\2" * 2000)
    assert diagnose_foreign(Inputs(logs=tmp_path)).verdict.state == "unknown"
    (tmp_path / "c.log").write_text(healthy)
    report = diagnose_foreign(Inputs(logs=tmp_path))
    assert (report.verdict.state, report.read, len(report.unreadable)) == (
        "healthy",
        {"logs": 1},
        1,
    )
    (tmp_path / "d.log").write_bytes(b"\0\1\2" * 2000)
    assert diagnose_foreign(Inputs(logs=tmp_path)).verdict.state == "unknown"  # most of it is dark


def test_a_look_at_stacks_alone_does_not_tell_that_all_is_well(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.txt").write_text(
            'Thread 1 (most recent call first):\n  File "train.py", line 3 in step\n'
        )
    assert diagnose_foreign(Inputs(stacks=tmp_path)).verdict.state == "unknown"


@pytest.mark.parametrize("kind", [k for k in Inputs._fields if k != "job"])
def test_a_pipe_that_is_named_is_refused_and_not_waited_for(kind, tmp_path):
    os.mkfifo(tmp_path / "input")
    with pytest.raises(TraceError, match="a pipe or a device") as caught:
        diagnose_foreign(Inputs(**{kind: tmp_path / "input"}))
    assert "to a file first" in caught.value.remedy


def test_a_pipe_in_a_job_folder_is_named_and_the_rest_is_read(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.log").write_text("KeyError: 'labels'\n")
    os.mkfifo(tmp_path / "dmesg.log")
    report = diagnose_foreign(inputs_of(tmp_path))
    assert (report.verdict.category, report.verdict.ranks) == ("code_error", (0,))
    assert [Path(e.file).name for e in report.unreadable] == ["dmesg.log"]


def test_a_place_that_may_not_be_looked_at_is_an_error_with_a_remedy(tmp_path):
    for name in ("x" * 300, "loop/logs"):
        (tmp_path / "loop").unlink(missing_ok=True)
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(TraceError, match="cannot be looked at"):
            diagnose_foreign(Inputs(logs=tmp_path / name))
        with pytest.raises(TraceError, match="cannot be looked at"):
            inputs_of(tmp_path / name)


def test_a_file_in_place_of_a_job_folder_is_told_how_to_be_named(tmp_path):
    (tmp_path / "rank_0.log").write_text("ok\n")
    with pytest.raises(TraceError) as caught:
        inputs_of(tmp_path / "rank_0.log")
    assert "--logs" in caught.value.remedy


@pytest.mark.parametrize("place", ["logs", "./logs", "sub/../logs", "../job/logs"])
def test_a_job_has_the_name_of_its_folder_wherever_one_stands(place, tmp_path, monkeypatch):
    for name in ("logs", "sub"):
        (tmp_path / "job" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "job")
    assert diagnose_foreign(Inputs(logs=Path(place))).job == "job"
    monkeypatch.chdir(tmp_path / "job" / "sub")
    assert diagnose_foreign(inputs_of(Path(".."))).job == "job"
