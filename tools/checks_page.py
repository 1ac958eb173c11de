"""The reference page of checks, made from the literal list in `engine/health/suite.py`."""

from engine.health.profile import builtin_profiles
from engine.health.result import ACTIONS
from engine.health.suite import CHECKS
from engine.health.xid import XIDS

_HEAD = """# Checks

<!-- Made by tools/generate.py from engine/health/suite.py. Do not edit. -->

`msctl selfcheck` runs the checks below. A level contains those before it: `passive` loads nothing,
so it is safe beside a running job; `light` uses the node for about a minute; `full` needs the node
for itself. A check that does not end within its deadline is an `error`.

## Verdicts

| status | means |
| --- | --- |
| ok | looked at and found well |
| warn | the node may go on, somebody should know |
| fail | the node is unfit |
| error | the check broke or did not end: not shown to be fit |
| skip | there was nothing to look at; the reason is printed |

`error` and `skip` never count as ok. Actions, from mild to severe: {actions}.

## Exit codes

| `--exit` | all well | warn | fail | error | nothing looked at |
| --- | --- | --- | --- | --- | --- |
| house | 0 | 0 | 4 | 4 | 5 |
| nagios | 0 | 1 | 2 | 3 | 3 |
| npd | 0 | 0 | 1 | 2 | 2 |

## All checks

| check | level | deadline (s) | leans on | it is well if |
| --- | --- | --- | --- | --- |
"""


_GROUP = """
With `--on`, several nodes are compared and tested together:

| check | it is well if |
| --- | --- |
| `group.silent` | Every node's agent came and answered in time |
| `group.skew` | All nodes have the same versions |
| `group.outlier` | No node's rate is below 80 % of the fleet's median |
| `pair.neighbour` | All-reduce with both neighbours under the same switch is right and fast |
| `group.bisect` | All nodes together are well; else the smallest groups that fail |

## Xid

Numbers that the GPU driver writes to the kernel log. `hardware` fails a node, the rest warns.

| Xid | kind | meaning | action |
| --- | --- | --- | --- |"""

_TYPES = """
## Machine types

Chosen by the GPU's name; `--profiles FILE` adds a site's own, `selfcheck learn` writes one.

| type | GPU name contains | GPUs | NVLinks | PCIe | network cards |
| --- | --- | --- | --- | --- | --- |"""


def checks_page() -> str:
    """The page as text."""
    lines = [_HEAD.format(actions=", ".join(ACTIONS[1:])).rstrip()]
    for c in CHECKS:
        needs = ", ".join(c.needs) or "-"
        lines.append(f"| `{c.name}` | {c.level} | {c.deadline_s:g} | {needs} | {c.about} |")
    lines += [_GROUP]
    lines += [f"| {n} | {m.kind} | {m.text} | {m.action} |" for n, m in sorted(XIDS.items())]
    lines += ["| 154 | hardware | the driver names the recovery it wants | as it says |", _TYPES]
    for p in builtin_profiles():
        cards = f"{p.rnics} x {p.rnic_gbps} Gb/s" if p.rnics else "-"
        lines.append(f"| `{p.name}` | {p.match} | {p.gpus or '-'} | {p.nvlinks or '-'} | "
                     f"gen {p.pcie_gen} x{p.pcie_width} | {cards} |")  # fmt: skip
    return "\n".join(lines) + "\n"
