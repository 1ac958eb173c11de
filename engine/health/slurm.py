"""What Slurm knows of an allocation: its nodes, and the switch above each."""

import re
import shutil
import subprocess
from collections.abc import Sequence

from engine.errors import MissingError

_MOST_NODES = 1 << 20
_LIMIT_S = 30.0


def slurm_nodes(job: str) -> list[str]:
    """Names of the nodes of an allocation: of a job, or of the one this runs in."""
    if job and not re.fullmatch(r"[0-9]+(_[0-9]+)?", job):
        raise MissingError(f"--job {job}: not the id of a job", remedy="see ids with `squeue`")
    command = ["scontrol", "show", "hostnames"]
    if job:
        shown = output(["squeue", "--noheader", f"--jobs={job}", "--format=%N"]).strip()
        if not shown:
            raise MissingError(
                f"job {job} has no nodes", remedy="see with `squeue` whether it runs yet"
            )
        command.append(shown)
    names = output(command).split()
    if not names:
        raise MissingError(
            "no Slurm allocation", remedy="run it inside one (salloc -N 4), or give --job ID"
        )
    return names


def slurm_switches(text: str) -> dict[str, str]:
    """Node -> leaf switch from `scontrol show topology`; empty where Slurm knows no tree."""
    found = {}
    for line in text.splitlines():
        facts = dict(re.findall(r"(\w+)=(\S+)", line))
        if facts.get("Level") == "0":
            for node in expand(facts.get("Nodes", "")):
                found[node] = facts.get("SwitchName", "")
    return found


def expand(names: str) -> list[str]:
    """`n[1-3,7],m05` as `n1 n2 n3 n7 m05`; zeros in front are kept."""
    found: list[str] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)?", names):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            found.append(part)
            continue
        head, ranges, tail = match.groups()
        for one in ranges.split(","):
            low, _, high = one.partition("-")
            if not (low.isdigit() and (high or low).isdigit()):
                continue
            last = min(int(high or low), int(low) + _MOST_NODES)
            found += [f"{head}{n:0{len(low)}d}{tail}" for n in range(int(low), last + 1)]
    return found


def topology() -> dict[str, str]:
    """Node -> leaf switch, as the controller says."""
    return slurm_switches(output(["scontrol", "show", "topology"]))


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[0][:200]


def output(command: Sequence[str]) -> str:
    """What a scheduler's command prints. MissingError if it is absent, fails or hangs."""
    if shutil.which(command[0]) is None:
        raise MissingError(
            f"{command[0]} is not installed", remedy="run this where the scheduler's commands are"
        )
    try:
        ended = subprocess.run(
            list(command), capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingError(
            f"`{' '.join(command[:3])}` did not answer within {_LIMIT_S:.0f} s",
            remedy="check that the scheduler answers here",
        ) from None
    if ended.returncode:
        raise MissingError(
            f"`{' '.join(command[:3])}` failed: {_first_line(ended.stderr)}",
            remedy="check that the scheduler answers here",
        )
    return ended.stdout
