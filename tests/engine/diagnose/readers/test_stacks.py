import pytest

from engine.diagnose.readers.files import FileFault
from engine.diagnose.readers.stacks import merge, read_stack

PY_SPY = """Process 812: python train.py
Python v3.11.7

Thread 812 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    wrapper (torch/distributed/c10d_logger.py:83)
    step (train.py:40)
Thread 900 (active): "Thread-1"
    run (threading.py:982)
"""
FAULT = """Thread 0x01 (most recent call first):
  File "/lib/python3.11/threading.py", line 331 in wait

Thread 0x02 (most recent call first):
  File "/app/data.py", line 12 in read
  File "/app/train.py", line 90 in main
"""


def test_both_forms_give_the_main_thread(tmp_path):
    (tmp_path / "rank_0.txt").write_text(PY_SPY)
    (tmp_path / "rank_1.txt").write_text(FAULT)
    first, second = read_stack(tmp_path / "rank_0.txt"), read_stack(tmp_path / "rank_1.txt")
    assert first.in_communication
    assert first.own == "step at train.py:40"
    assert not second.in_communication
    assert second.own == "read at data.py:12"
    assert sorted(merge({0: first, 1: second}).values()) == [(0,), (1,)]


def test_text_without_a_stack_is_a_fault(tmp_path):
    (tmp_path / "rank_0.txt").write_text("nothing here\n")
    with pytest.raises(FileFault):
        read_stack(tmp_path / "rank_0.txt")


@pytest.mark.parametrize("line", ["9" * 5000, "-1", "x", ""])
def test_a_line_number_that_is_none_is_no_frame(tmp_path, line):
    path = tmp_path / "rank_0.txt"
    path.write_text(PY_SPY.replace("train.py:40", f"train.py:{line}"))
    assert [frame.function for frame in read_stack(path).frames] == ["all_reduce", "wrapper"]
    path.write_text(FAULT.replace("line 90", f"line {line}"))
    assert [frame.function for frame in read_stack(path).frames] == ["read"]


def test_a_file_without_a_rank_in_its_name_is_a_fault(tmp_path):
    (tmp_path / "stack.txt").write_text(FAULT)
    with pytest.raises(FileFault, match="rank"):
        read_stack(tmp_path / "stack.txt")
