"""Ranks out of names of files."""

import pytest

from engine.diagnose.readers.names import rank_of_name


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("pyspy_rank2_pid12325.txt", 2), ("rank_00012.jsonl", 12), ("r7.log", 7),
        ("node-3.rank-5.txt", 5), ("_dump_12", 12), ("_dump_12.pickle", 12),
        ("stack.4.txt", 4), ("train.log", None), ("server7x", None),
    ],
)  # fmt: skip
def test_what_is_called_a_rank_counts_else_the_last_number(name, rank):
    assert rank_of_name(name) == rank
