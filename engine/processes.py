"""Other processes of this machine, as /proc shows them (Linux)."""

from pathlib import Path


def state_of(pid: int) -> str:
    """The kernel's letter for a process's state: R, S, D, T, Z; empty if there is none."""
    return _after_name(pid)[0]


def parent_of(pid: int) -> int:
    """Parent of a process, 0 if it is gone."""
    return int(_after_name(pid)[1] or 0)


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


def _after_name(pid: int) -> tuple[str, str]:
    """State and parent: what follows the name, which may hold anything, in /proc/PID/stat."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "", ""
    words = text.rpartition(")")[2].split()
    return (words[0], words[1]) if len(words) > 1 else ("", "")
