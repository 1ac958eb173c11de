"""The campaign's rows as a page: per fault how often it was noticed, located, mended, how fast."""

import os
import platform
import statistics
from collections.abc import Iterable
from pathlib import Path

import torch

from bench.faults.campaign import FAULTS, HARMLESS, read_rows

_HEAD = """# The fault campaign

What happens to a job of eight ranks on four nodes when things go wrong: measured, a row per fault.

Nodes are network namespaces on one machine (four that carry ranks and a spare), executors join
through Redis, the model is small, a checkpoint is taken every 5 steps. Faults come one after the
other into a running job, in random order, at random ranks and moments; a node that is taken out
comes back as a spare. After each batch the losses and gradient norms of all steps are compared with
those of an undisturbed job, bit by bit.

```sh
python -m bench.faults.campaign --out build/faults --times {times}
python -m bench.faults.campaign --out build/faults --report docs/explanation/fault-campaign.md
```

Machine: {cores} cores, {system}, Python {python}, torch {torch}, load average {load:.0f} when this
page was written. Other programs ran beside it, so an idle machine would show shorter times.

"""
_COLUMNS = ("fault", "runs", "passed", "noticed after", "located", "first new step after",
            "steps lost", "losses equal")  # fmt: skip


def write_report(out: Path, page: Path) -> None:
    """The page of all rows in a folder; `measured.md` beside them is added at its end."""
    rows = read_rows(out)
    counts = [sum(row["fault"] == fault for row in rows) for fault in FAULTS]
    text = _HEAD.format(
        times=max(counts, default=1), cores=os.cpu_count(), system=platform.system(),
        python=platform.python_version(), torch=torch.__version__, load=os.getloadavg()[0],
    )  # fmt: skip
    table = [_COLUMNS, ("---",) * len(_COLUMNS), *(_row(fault, rows) for fault in FAULTS)]
    text += "\n".join(f"| {' | '.join(cells)} |" for cells in table) + "\n"
    more = out / "measured.md"
    if more.exists():
        text += "\n" + more.read_text()
    page.write_text(text)


def _row(fault: str, rows: list[dict]) -> tuple[str, ...]:
    mine = [row for row in rows if row["fault"] == fault]
    if not mine:
        return (fault, "0", *("not run",) * 6)
    passed = f"{sum(bool(r['passed']) for r in mine)} of {len(mine)}"
    equal = f"{sum(bool(r['bitwise']) for r in mine)} of {len(mine)}"
    if fault in HARMLESS:
        restarts = sum(r["restarts"] for r in mine)
        quiet = "no restart" if not restarts else f"{restarts} restarts"
        return (fault, str(len(mine)), passed, "-", "-", quiet, "-", equal)
    located = f"{sum(bool(r.get('located')) for r in mine)} of {len(mine)}"
    return (
        fault, str(len(mine)), passed, _times(r.get("detected_s") for r in mine), located,
        _times(r.get("recovered_s") for r in mine),
        str(max((r.get("steps_lost", 0) for r in mine), default=0)), equal,
    )  # fmt: skip


def _times(values: Iterable[float | None]) -> str:
    """Median and worst, in seconds."""
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    return f"{statistics.median(found):.1f} s (worst {max(found):.1f})"
