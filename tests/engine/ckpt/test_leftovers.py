"""Starting the node's flusher, for a run's own saves and for what a dead run left."""

import time

import pytest

from engine.ckpt import leftovers
from engine.ckpt.arena import Spool
from engine.ckpt.flush import FlushOptions


@pytest.mark.multi
def test_a_flusher_that_is_slow_to_start_is_not_started_again(tmp_path, monkeypatch):
    """On a busy machine an interpreter takes seconds to start; who asks meanwhile starts none."""
    program, started = tmp_path / "slow", tmp_path / "started"
    program.write_text(f"#!/bin/sh\necho one >> {started}\nsleep 2\n")
    program.chmod(0o700)
    monkeypatch.setattr(leftovers.sys, "executable", str(program))
    spool = Spool(tmp_path / "spool")
    for _ in range(20):
        leftovers.start_flusher(spool, FlushOptions())
    deadline = time.monotonic() + 20
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    assert started.read_text() == "one\n"
