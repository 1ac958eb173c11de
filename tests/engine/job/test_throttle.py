"""A slowed process gets about its share of the processor, and all of it afterwards."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.job.throttle import Throttle

pytestmark = pytest.mark.multi


def stopped_share(pid: int, looks: int = 200) -> float:
    states = []
    for _ in range(looks):
        states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.003)
    return states.count("T") / looks


def test_it_is_stopped_for_most_of_the_time_then_never():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    throttle = Throttle()
    try:
        throttle.start([process.pid, 0], 0.2)
        assert stopped_share(process.pid) > 0.3
        throttle.stop()
        assert stopped_share(process.pid, 20) == 0.0
    finally:
        throttle.stop()
        process.kill()
        process.wait()
