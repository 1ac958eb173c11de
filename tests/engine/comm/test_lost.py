"""A lost peer as an error: short, with who talked to whom."""

import pytest

from engine.comm.lost import PeerLost, first_line, lost
from engine.errors import RunFailed


def test_it_is_a_failed_run_whose_first_line_is_kept():
    error = lost("all_reduce in group tp of ranks [0, 1]", RuntimeError("closed\nat frame 1\n"))
    assert isinstance(error, RunFailed)
    assert isinstance(error, PeerLost)
    assert error.what == "all_reduce in group tp of ranks [0, 1] failed: closed"


@pytest.mark.parametrize(
    ("message", "kept"), [("", "RuntimeError"), ("\n  \n", "RuntimeError"), ("x" * 5000, "x" * 300)]
)
def test_messages_may_be_empty_or_endless(message, kept):
    assert first_line(RuntimeError(message)) == kept
