"""Processes as an outsider sees them."""

import os

from engine.processes import family_of, parent_of, state_of


def test_a_process_and_its_parent():
    assert family_of(os.getpid())[0] == os.getpid()
    assert parent_of(os.getpid()) == os.getppid()
    assert state_of(os.getpid()) == "R"


def test_a_process_that_is_not_there():
    assert parent_of(1 << 22) == 0
    assert state_of(1 << 22) == ""
