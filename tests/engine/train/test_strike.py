"""When a fault came is written once, by whoever injected it."""

import time
from pathlib import Path

from engine.train.strike import note_strike, read_strikes


def test_only_the_first_time_counts(tmp_path: Path):
    before = time.time()
    note_strike(tmp_path, "crash:rank=0@step=2", in_s=5.0)
    note_strike(tmp_path, "crash:rank=0@step=2")
    note_strike(tmp_path, "nan:rank=0@step=2")
    found = read_strikes(tmp_path)
    assert set(found) == {"crash:rank=0@step=2", "nan:rank=0@step=2"}
    assert found["crash:rank=0@step=2"] >= before + 5.0


def test_a_file_that_is_none_is_left_out(tmp_path: Path):
    note_strike(tmp_path, "kill")
    (tmp_path / "drills" / "zz.json").write_bytes(b"\xff{")
    assert list(read_strikes(tmp_path)) == ["kill"]
