import os

import numpy as np
import pytest

from engine.errors import MissingError
from engine.health import host_rate
from engine.health.look import Look
from engine.health.probe import RealProbe
from engine.health.profile import Bar, Profile


def look(folder="/tmp", **profile):
    return Look(probe=RealProbe(env=os.environ), profile=Profile(**profile), folder=str(folder))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(host_rate, "_SECONDS", 0.0)
    monkeypatch.setattr(host_rate, "_GEMM_N", 128)
    monkeypatch.setattr(host_rate, "_COPY_BYTES", 4 << 20)
    monkeypatch.setattr(host_rate, "_DISK_BYTES", 8 << 20)


def test_this_machine_computes_copies_and_writes_correctly(tmp_path):
    for check in (host_rate.gemm, host_rate.memory_rate, host_rate.disk_rate):
        (result,) = check(look(tmp_path))
        assert result.status == "ok", result
        assert result.measured > 0
    assert list(tmp_path.iterdir()) == []
    (cores,) = host_rate.each_core(look())
    assert cores.status in ("ok", "warn")
    assert os.sched_getaffinity(0)


def test_a_rate_below_its_bar_fails_and_says_where_the_bar_comes_from():
    bars = {"host.gemm": Bar(at_least=1e18, unit="FLOP/s", source="learned from 9 nodes")}
    (result,) = host_rate.gemm(look(bars=bars))
    assert (result.status, result.bar) == ("fail", "learned from 9 nodes")


def test_a_wrong_product_is_found_although_nothing_raises(monkeypatch):
    rng = np.random.default_rng

    class Lying(np.ndarray):
        def __matmul__(self, other):
            out = np.asarray(self) @ np.asarray(other)
            if out.ndim == 2:
                out[3, 5] += 1  # one bit of one value
            return out

    class Generator:
        def __init__(self, seed):
            self.inner = rng(seed)

        def integers(self, *args):
            return self.inner.integers(*args).view(Lying)

    monkeypatch.setattr(host_rate.np.random, "default_rng", Generator)
    (result,) = host_rate.gemm(look())
    assert (result.status, result.action) == ("fail", "rma")


def test_a_slow_core_is_named():
    (found,) = host_rate.judge_cores({0: 1.0, 1: 1.1, 2: 0.9, 3: 4.0})
    assert (found.status, found.target) == ("warn", "cpu3")
    assert host_rate.judge_cores({0: 1.0, 1: 2.5})[0].status == "ok"


def test_no_room_is_a_skip():
    with pytest.raises(MissingError, match="no room"):
        host_rate.disk_rate(look("/proc"))
