"""A run's own account of itself, whole, missing, torn or hostile."""

import json
import os

import pytest

from engine.diagnose import record
from engine.diagnose.record import read_incident, read_record, read_result

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
SEEN = {"kind": "hang", "what": "rank 3 stands still", "ranks": [3], "step": 6, "confidence": 0.8}


def test_an_empty_folder_says_nothing(tmp_path):
    empty = read_record(tmp_path / "nowhere")
    assert empty == (None, (), {}, None, ())
    assert empty.mfu is None


def test_metrics_skip_torn_lines_and_turn_what_is_no_number_into_none(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(
        b'{"step": 0, "loss": 2.5, "mfu": 0.9}\n'
        b'{"step": 1, "loss": null, "tokens": 5}\n'
        b'{"step": "two"}\n\xff\xfe\n' + DEEP + b"\n"
        b'{"step": 3, "grad_norm": 1.5, "mfu": 0.4}\n{"step": 4, "mfu": 0.2}\n{"step": 5, "lo'
    )
    found = read_record(tmp_path)
    assert [m.step for m in found.metrics] == [0, 1, 3, 4]
    assert [m.loss for m in found.metrics[:2]] == [2.5, None]
    assert found.metrics[2].grad_norm == 1.5
    assert found.mfu == pytest.approx(0.3)  # of 0.4 and 0.2: the first step is warm-up


def test_an_mfu_of_zero_was_not_measured(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "mfu": 0}\n' * 3)
    assert read_record(tmp_path).mfu is None


def test_metrics_beyond_the_limit_are_not_read(tmp_path, monkeypatch):
    row = b'{"step": 1}\n'
    (tmp_path / "metrics.jsonl").write_bytes(row * 10)
    monkeypatch.setattr(record, "_LIMIT", 10 * len(row))
    assert len(read_record(tmp_path).metrics) == 10
    monkeypatch.setattr(record, "_LIMIT", 10 * len(row) - 1)
    assert read_record(tmp_path).metrics == ()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b"3", b'"\xff"', DEEP, b" " * (1 << 20) + b"{}"]
)
def test_a_result_that_is_no_small_object_is_none(tmp_path, data):
    (tmp_path / "result.json").write_bytes(data)
    assert read_result(tmp_path) == {}


def test_a_result_is_read(tmp_path):
    (tmp_path / "result.json").write_text('{"ended": "done"}')
    assert read_record(tmp_path).result == {"ended": "done"}


def test_an_incident_is_read_bare_or_out_of_its_recovery(tmp_path):
    (tmp_path / "recovery.json").write_text(json.dumps({"incident": SEEN, "steps_lost": 2}))
    found = read_incident(tmp_path)
    assert (found.kind, found.ranks, found.step, found.confidence) == ("hang", (3,), 6, 0.8)
    (tmp_path / "incident.json").write_text(json.dumps(SEEN | {"step": 7}))
    assert read_incident(tmp_path).step == 7
    (tmp_path / "incident.json").write_bytes(b'{"kind": ')
    assert read_incident(tmp_path).step == 6


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"ranks": ["a"]}', b'{"step": 1.5}', DEEP, b" " * (1 << 20) + b"{}"]
)
def test_what_is_no_incident_is_none(tmp_path, data):
    (tmp_path / "incident.json").write_bytes(data)
    assert read_incident(tmp_path) is None


def test_a_run_lists_the_incidents_that_it_came_back_from_oldest_first(tmp_path):
    for number in (2, 1, 10):
        folder = tmp_path / "incidents" / f"{number:03d}"
        folder.mkdir(parents=True)
        (folder / "recovery.json").write_text(json.dumps({"incident": SEEN | {"step": number}}))
    (tmp_path / "incidents" / "005").mkdir()
    (tmp_path / "incidents" / "note.txt").write_text("{}")
    assert [i.step for i in read_record(tmp_path).mended] == [1, 2, 10]


@pytest.mark.parametrize("text", ["name = ", "a = " + "[" * 5000, "unknown = 1\n"])
def test_a_recipe_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / "recipe.toml").write_text(text)
    assert read_record(tmp_path).recipe is None


def test_pipes_in_a_run_folder_are_not_waited_for(tmp_path):
    for name in ("recipe.toml", "metrics.jsonl", "result.json", "incident.json", "recovery.json"):
        os.mkfifo(tmp_path / name)
    assert read_record(tmp_path) == (None, (), {}, None, ())
