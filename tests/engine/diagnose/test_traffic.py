import re

import numpy as np
import pytest

from engine.diagnose.readers.counters import Traffic
from engine.diagnose.traffic import find_alarms, period_s, traffic_findings

DT, STEP = 0.1, 6.34


def series(seconds=400, nics=16, seed=0, fault=None):
    """Bursts with the step's period; `fault` changes NIC 3, or all, from the middle on."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds / DT)) * DT
    half = t > seconds * 0.6
    since = np.clip(t - seconds * 0.6, 0, None)
    steps = (t - since) / STEP + since / (STEP * (1.08 if fault == "slow" else 1))
    rows = []
    for nic in range(nics):
        late = 0.02 * since / STEP if nic == 3 and fault == "late" else 0
        phase = (steps - late + 0.002 * rng.standard_normal()) % 1
        y = 18e9 * np.exp(-(((phase - 0.8) / 0.09) ** 2)) + 9e9 * np.exp(
            -(((phase - 0.2) / 0.05) ** 2)
        )
        y = y * (1 + 0.05 * rng.standard_normal(len(t)))
        if nic == 3 and fault == "sag":
            y = np.where(half, 0.7 * y, y)
        if nic == 3 and fault == "flap":
            y = np.where(half & (since % 4 < 1.5), 0, y)
        if fault == "stop":
            y = np.where(half, 0, y)
        rows.append(y)
    names = tuple(f"nic{n}" for n in range(nics))
    return Traffic(names, np.clip(np.stack(rows), 0, None).astype(np.float32), DT)


def test_the_period_is_that_of_the_step():
    total = series().bytes_per_s.mean(axis=0).astype(np.float64)
    assert period_s(total, DT) == pytest.approx(STEP, abs=DT)


def test_health_is_silent():
    assert find_alarms(series(seconds=900, seed=4)) == []


@pytest.mark.parametrize("fault", ["sag", "flap", "late"])
def test_the_nic_is_named_within_two_periods(fault):
    alarms = find_alarms(series(fault=fault))
    assert {a.nic for a in alarms} == {"nic3"}
    assert alarms[0].at_s - 240 <= 2 * STEP


def test_a_stop_of_all_is_nobodys_fault():
    (finding,) = traffic_findings(series(fault="stop"))
    assert finding.nodes == ()
    assert "stopped" in finding.what


def test_a_stop_is_seen_within_two_periods_and_a_longer_period_within_five():
    (stop,) = find_alarms(series(fault="stop"))
    assert 0 < stop.at_s - 240 <= 2 * STEP
    (slow,) = find_alarms(series(fault="slow"))
    assert slow.nic is None
    assert "period grew" in slow.what
    assert 0 < slow.at_s - 240 <= 5 * STEP


def test_an_alarm_says_whether_volume_or_time_differs():
    (sag,) = traffic_findings(series(fault="sag"))
    assert sag.nodes == ("nic3",)
    assert re.search(r"NIC nic3 carries [78][0-9](\.\d)? % of the median's bytes from", sag.what)
    (late,) = traffic_findings(series(fault="late"))
    assert "NIC nic3 is out of step from" in late.what
    assert sag.evidence[0].text.startswith("first at 2")


def test_a_nic_that_always_carries_less_or_lags_is_not_alarming():
    healthy = series(seconds=900, seed=4)
    rates = healthy.bytes_per_s.copy()
    rates[5] *= 0.5
    rates[7, 4:] = rates[7, :-4]
    assert find_alarms(healthy._replace(bytes_per_s=rates)) == []


def test_noise_and_a_flat_line_have_no_period():
    noise = np.random.default_rng(3).standard_normal(4000)
    assert period_s(noise, DT) == 0.0
    assert period_s(np.full(4000, 7.0), DT) == 0.0


def test_a_named_nic_goes_before_what_all_of_them_did():
    faulty = series(fault="sag")
    rates = faulty.bytes_per_s.copy()
    rates[:, 3600:] = 0.0
    (finding,) = traffic_findings(faulty._replace(bytes_per_s=rates))
    assert finding.nodes == ("nic3",)
