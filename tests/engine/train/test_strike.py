"""When a fault came is written once, by whoever injected it."""

import time
from pathlib import Path

from engine.train.strike import count_strikes, note_strike, read_strikes


def test_each_time_is_counted_and_the_first_is_told(tmp_path: Path):
    before = time.time()
    note_strike(tmp_path, "crash:rank=0@step=2", in_s=5.0)
    note_strike(tmp_path, "crash:rank=0@step=2")
    note_strike(tmp_path, "nan:rank=0@step=2")
    found = read_strikes(tmp_path)
    assert set(found) == {"crash:rank=0@step=2", "nan:rank=0@step=2"}
    assert found["crash:rank=0@step=2"] >= before + 5.0
    assert count_strikes(tmp_path, "crash:rank=0@step=2") == 2
    assert count_strikes(tmp_path, "kill") == 0


def test_a_file_that_is_none_is_left_out(tmp_path: Path):
    note_strike(tmp_path, "kill")
    (tmp_path / "drills" / "zz.json").write_bytes(b"\xff{")
    assert list(read_strikes(tmp_path)) == ["kill"]
