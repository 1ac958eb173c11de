"""Signals are counted while a run goes on, and do their own again afterwards."""

import os
import signal

from engine.job.interrupts import Interrupts


def test_signals_are_counted_and_each_count_is_told_once():
    interrupts = Interrupts()
    before = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    with interrupts.counted():
        assert not interrupts.any
        assert interrupts.fresh() == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.any
        assert (interrupts.fresh(), interrupts.fresh()) == (1, 0)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.fresh() == 3
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == before
