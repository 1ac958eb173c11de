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


@pytest.mark.parametrize("fault", ["stop", "slow"])
def test_a_stop_of_all_and_a_longer_step_are_seen_within_two_periods(fault):
    first = find_alarms(series(fault=fault))[0]
    assert first.nic is None
    assert 0 < first.at_s - 240 <= 2 * STEP


def test_the_longer_step_is_told_with_its_lengths():
    what = find_alarms(series(fault="slow"))[0].what
    before, after = map(float, re.findall(r"[0-9.]+", what))
    assert before == pytest.approx(STEP, rel=0.01)
    assert after == pytest.approx(1.08 * STEP, rel=0.03)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("at", [0.1, 0.5, 0.7, 0.95])
def test_a_single_pause_is_no_longer_step(share, at):
    healthy = series(seconds=500)
    x, begin = healthy.bytes_per_s, round((40 + at) * STEP / DT)
    still = np.zeros((len(x), round(share * STEP / DT)), np.float32)
    paused = np.concatenate([x[:, :begin], still, x[:, begin:]], axis=1)
    assert find_alarms(healthy._replace(bytes_per_s=paused)) == []


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
