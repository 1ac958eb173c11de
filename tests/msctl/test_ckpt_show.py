"""What `msctl ckpt` prints of each answer."""

import time

import pytest

from engine.ckpt.catalog import CheckpointInfo
from engine.ckpt.dcp import DcpReport
from engine.ckpt.hf_export import ExportReport
from engine.ckpt.prune import Decision
from engine.ckpt.reshard import ReshardPlan
from engine.ckpt.show import CheckpointDetail, Difference, ShardRow, TensorRow
from engine.ckpt.verify import Damage, VerifyReport
from engine.spec.layout import ParallelLayout
from msctl.commands import ckpt_show
from tests.msctl.shown import shown

LAYOUT = ParallelLayout(tp=2, pp=3, vpp=4, dp=5, zero=1)
SHOWN = "tp=2 pp=3 vpp=4 dp=5 zero=1"


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def info(**changes):
    given = {
        "name": "step-00000008", "step": 8, "attempt": 1, "state": "committed", "bytes": 3 << 20,
        "files": 4, "created_s": 86400.0, "layout": LAYOUT, "where": "w",
    }  # fmt: skip
    return CheckpointInfo(**given | changes)


def test_a_list_has_a_row_a_folder(capsys):
    bare = info(state="partial", layout=None, why="no marker", mark="spike", val_loss=2.5)
    header, first, second = shown(capsys, ckpt_show.show_list, [info(), bare]).rows
    assert " ".join(header) == "name step time size files state layout val loss where why"
    assert first == [
        "step-00000008", "8", "1970-01-02 00:00:00", "3.00 MiB", "4", "committed", SHOWN, "-", "w",
        "",
    ]  # fmt: skip
    assert second[5:] == ["partial", "-", "2.5", "w", "spike; no marker"]


@pytest.mark.parametrize("seconds", [1e300, -1e300, 1e12, 253402300800.0])
def test_a_time_that_no_calendar_has_does_not_end_the_list(capsys, seconds):
    _, row = shown(capsys, ckpt_show.show_list, [info(created_s=seconds)]).rows
    assert row[2] == "-"


def detail(**changes):
    tensors = (
        TensorRow(name="w", shape=(12, 8), dtype="BF16/F32", slots=("param", "exp_avg"), shards=6,
                  ranks=(0, 1, 2, 3), bytes=2048),
        TensorRow(name="v", shape=(), dtype="F32", slots=("param",), shards=9,
                  ranks=(0, 2, 4, 6, 9), bytes=4),
    )  # fmt: skip
    given = {
        "where": "r/s", "step": 8, "run": "", "created_s": 0.0, "world": 30, "layout": LAYOUT,
        "parameters": 175_000_000_000, "bytes": 1 << 40, "files": 30, "slots": ("param", "exp_avg"),
        "versions": {"torch": "2.1", "python": "3.11"}, "rng": {"secret": 1},
        "data": {"at": [1, 2]}, "extra": {"why": "end"}, "recipe_toml": "[model]\nlayers = 2",
        "tensors": tensors,
    }  # fmt: skip
    return CheckpointDetail(**given | changes)


def test_a_checkpoint_in_facts_and_tensors(capsys):
    found = shown(capsys, ckpt_show.show_detail, detail())
    facts = dict(row for row in found.rows[1:] if len(row) == 2)
    assert facts == {
        "where": "r/s", "run": "-", "step": "8", "saved": "1970-01-01 00:00:00", "layout": SHOWN,
        "ranks": "30", "parameters": "175 G", "size": "1.00 TiB", "files": "30",
        "slots": "param, exp_avg", "versions": "torch 2.1, python 3.11", "data.at": "[1, 2]",
        "extra.why": "end",
    }  # fmt: skip
    assert found.table("tensors") == [
        ["w", "12x8", "BF16/F32", "2", "6", "0,1,2,3", "2.00 KiB"],
        ["v", "", "F32", "1", "9", "0..9 (5)", "4 B"],
    ]
    assert "[model]" not in found.out


def test_the_recipe_is_for_who_asks_for_more(capsys):
    found = shown(capsys, ckpt_show.show_detail, detail(), verbose=1)
    assert found.out.endswith("\n\n[model]\nlayers = 2\n")
    assert (
        shown(capsys, ckpt_show.show_detail, detail(recipe_toml=""), verbose=1).out.count("\n\n")
        == 1
    )


def test_shards(capsys):
    row = ShardRow(slot="param", file="f", rank=1, offset=4096, bytes=512, box="[0:6, 0:8]",
                   flat=(10, 48))  # fmt: skip
    _, found = shown(capsys, ckpt_show.show_shards, [row]).rows
    assert found == ["param", "[0:6, 0:8]", "10:48", "f", "4096", "512 B"]


def test_differences_or_none(capsys):
    some = shown(capsys, ckpt_show.show_diff, [Difference(what="step", left="1", right="2")])
    assert some.rows[1] == ["step", "1", "2"]
    assert some.err == ""
    assert "no difference" in shown(capsys, ckpt_show.show_diff, []).err


def report(*damage, seconds=2.0):
    return VerifyReport(where="r/s", step=8, bytes=4 << 30, chunks=1024, seconds=seconds,
                        damage=damage)  # fmt: skip


def test_a_whole_checkpoint_is_one_line(capsys):
    found = shown(capsys, ckpt_show.show_verify, report())
    assert found.out == "whole    r/s\n"
    assert "checked 1024 chunks, 4.00 GiB in 2 s, 2.00 GiB/s" in found.err
    assert "0 B/s" in shown(capsys, ckpt_show.show_verify, report(seconds=0.0)).err


def test_damage_is_a_row_a_fault(capsys):
    faults = (
        Damage(file="a", what="is absent"),
        Damage(file="b", chunk=0, what="digest differs", tensors=("t1", "t2", "t3", "t4", "t5")),
    )
    found = shown(capsys, ckpt_show.show_verify, report(*faults))
    assert found.rows[0] == ["damaged  r/s"]
    assert found.rows[2:] == [
        ["a", "-", "is absent", "-"],
        ["b", "0", "digest differs", "t1, t2, t3, t4"],
    ]
    assert "hint: resume from an older checkpoint" in found.err


def test_what_was_or_will_be_written(capsys):
    plan = ReshardPlan(source="s", step=8, layout=LAYOUT, files=2, pieces=9, bytes=2048,
                       largest_file_bytes=1024)  # fmt: skip
    assert shown(capsys, ckpt_show.show_plan, plan).rows[1] == [
        "s", SHOWN, "2", "9", "2.00 KiB", "1.00 KiB"
    ]  # fmt: skip
    export = ExportReport(where="w", family="llama", tensors=21, files=2, bytes=5)
    assert shown(capsys, ckpt_show.show_export, export).rows[1] == ["w", "llama", "21", "2", "5 B"]
    dcp = DcpReport(where="w", tensors=21, bytes=5)
    assert shown(capsys, ckpt_show.show_dcp, dcp).rows[1] == ["w", "21", "5 B"]
    decision = Decision(name="n", step=8, state="partial", bytes=5, action="remove", why="old")
    assert shown(capsys, ckpt_show.show_decisions, [decision]).rows[1] == [
        "remove", "n", "partial", "5 B", "old"
    ]  # fmt: skip
