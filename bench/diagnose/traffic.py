"""How soon the traffic detector speaks, and whether it is silent in health.

    python bench/diagnose/traffic.py [--nics 64] [--seeds 5]

NIC byte series with the period of a training step, as the paper's section 5.1 shows them; one NIC
goes wrong: it stops, sags by 30 %, flaps, or its bursts come later and later (2 % of a period each
step). Or all do: everything stops, everything becomes 8 % slower. Delay is the first alarm that
names the right NIC, in periods. Health is an hour without a fault, and one in which every fiftieth
step is followed by a pause of up to 0.6 steps, as for a checkpoint; a longer one is a stop.
"""

import argparse
import statistics

import numpy as np

from engine.diagnose.readers.counters import Traffic
from engine.diagnose.traffic import find_alarms

DT, STEP = 0.1, 6.34
ONE = ("stop", "sag", "flap", "late")
ALL = ("all stop", "all slow")


def series(seconds: float, nics: int, seed: int, fault: str, at: float) -> Traffic:
    """Two bursts a step on every NIC; the fault begins at `at` seconds on NIC 3, or on all."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds / DT)) * DT
    late = t > at
    since = np.clip(t - at, 0, None)
    steps = t / STEP
    if fault == "all slow":
        steps = np.where(late, at / STEP + since / (1.08 * STEP), steps)
    if fault == "pauses":
        steps = _with_pauses(t, rng)
    jitter = np.cumsum(rng.normal(0, 0.002, int(steps[-1]) + 2))[steps.astype(int)]
    rows = []
    for nic in range(nics):
        own = steps + jitter + rng.normal(0, 0.002)
        if nic == 3 and fault == "late":
            own = own - 0.02 * since / STEP
        phase = own % 1
        y = 18e9 * np.exp(-(((phase - 0.8) / 0.09) ** 2))
        y += 9e9 * np.exp(-(((phase - 0.2) / 0.05) ** 2)) + 0.2e9
        y *= (1 + 0.03 * rng.normal()) * (1 + 0.05 * rng.normal(size=len(t)))
        if nic == 3 and fault == "stop":
            y = np.where(late, 0, y)
        elif nic == 3 and fault == "sag":
            y = np.where(late, 0.7 * y, y)
        elif nic == 3 and fault == "flap":
            y = np.where(late & ((since % 4) < 1.5), 0, y)
        elif fault == "all stop":
            y = np.where(late, 0, y)
        rows.append(y)
    names = tuple(f"nic{n}" for n in range(nics))
    return Traffic(names, np.clip(np.stack(rows), 0, None).astype(np.float32), DT)


def _with_pauses(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Steps done at each moment where every fiftieth is followed by a pause."""
    long = np.full(int(t[-1] / STEP) + 2, STEP)
    long[49::50] += STEP * rng.uniform(0.05, 0.6, len(long[49::50]))
    ends = np.cumsum(long)
    done = np.searchsorted(ends, t, side="right")
    return done + np.minimum(1.0, (t - (ends - long)[done]) / STEP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nics", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    for fault in ONE + ALL:
        delays, wrong, early = [], 0, 0
        for seed in range(given.seeds):
            at = 240.0 + 13.7 * seed
            alarms = find_alarms(series(at + 160, given.nics, seed, fault, at))
            right = [a for a in alarms if (a.nic == "nic3") == (fault in ONE) and a.at_s > at]
            early += sum(a.at_s <= at for a in alarms)
            wrong += len({a.nic for a in alarms if a.nic not in ("nic3", None)})
            delays.append((right[0].at_s - at) / STEP if right else float("inf"))
        shown = f"median {statistics.median(delays):.1f}, worst {max(delays):.1f} periods"
        print(f"{fault:9s} {shown}; early alarms {early}, wrong NICs {wrong}")
    for health in ("", "pauses"):
        quiet = sum(
            len(find_alarms(series(3600, given.nics, 100 + seed, health, 1e9)))
            for seed in range(given.seeds)
        )
        print(f"{health or 'health':9s} {given.seeds} hours, {quiet} alarms")


if __name__ == "__main__":
    main()
