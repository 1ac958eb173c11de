"""Processes of a job on this machine, found as an outsider finds them (Linux, /proc)."""

from pathlib import Path


def executor_of(folder: Path, node: str) -> int:
    """The executor of a node that joined the job of a run folder; 0 if there is none."""
    wanted = [b"-m", b"engine.job.join", str(folder.absolute()).encode(), node.encode()]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:5] == wanted:
            return int(path.name)
    return 0


def family_of(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        children.setdefault(parent_of(int(path.name)), []).append(int(path.name))
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        queue += children.get(one, [])
    return found


def parent_of(pid: int) -> int:
    """Parent of a process, 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])
