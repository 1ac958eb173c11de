"""What an executor knows of its ranks: from the nursery, from their slots, from the kernel."""

import os
import time
from pathlib import Path

from engine.health.heartbeat import Health, RankBeat
from engine.health.heartbeat_slot import Slots
from engine.job.nursery import Report
from engine.processes import state_of

_SILENT_S = 1.5
_OVERLOAD = 2.0
_TAIL_BYTES = 4096
_SIGNS = ("error", "Error", "ERROR", "fatal", "Traceback", "No space left", "out of memory")
_MOST_WORKS = 32


class _Rank:
    """One rank of the present start."""

    def __init__(self, rank: int, index: int) -> None:
        self.rank, self.index = rank, index
        self.pid, self.code = 0, None if rank >= 0 else 0
        self.alive, self.alive_at = -1, time.monotonic()
        self.told = -1
        """The newest step whose work was sent."""
        self.asked = 0


class Ranks:
    """The ranks of one node."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._all: dict[int, _Rank] = {}
        self._error = ("", 0.0)

    @property
    def running(self) -> bool:
        """Whether any rank has not ended."""
        return any(one.code is None for one in self._all.values())

    def expect(self, ranks: tuple[int, ...]) -> None:
        """A new start: these ranks will be forked, in this order of slots."""
        first = min(ranks, default=0)
        self._all = {rank: _Rank(rank, rank - first) for rank in ranks}
        for one in self._all.values():
            self._slots.clear(one.index)

    def report(self, report: Report) -> None:
        """The nursery says that one began or ended."""
        one = self._all.get(report.rank)
        if one is None:
            return
        if report.event == "started":
            one.pid, one.alive_at = report.pid, time.monotonic()
        elif report.event == "exit" and report.pid == one.pid:  # of this start, not an older one
            one.code = report.code

    def all_gone(self) -> None:
        """The nursery died, and the kernel ended its children."""
        for one in self._all.values():
            if one.code is None:
                one.code = -9

    def pid(self, rank: int) -> int:
        """Process of a rank, 0 if there is none."""
        one = self._all.get(rank)
        return one.pid if one is not None and one.code is None else 0

    def beats(self) -> tuple[RankBeat, ...]:
        """One line for every rank."""
        return tuple(self._beat(one) for one in self._all.values())

    def _beat(self, one: _Rank) -> RankBeat:
        seen = self._slots.see(one.index, after=one.told)
        now = time.monotonic()
        if seen.alive != one.alive:
            one.alive, one.alive_at = seen.alive, now
        if seen.works:
            one.told = seen.works[-1].step
        age = max(0.0, now - seen.since_s) if seen.since_s else 0.0
        return RankBeat(
            rank=one.rank, pid=one.pid, health=self._health(one, now), step=seen.step,
            doing=seen.doing, age_s=age, actions=seen.actions, code=one.code,
            works=tuple((w.step, w.length_s, w.own_s) for w in seen.works[-_MOST_WORKS:]),
        )  # fmt: skip

    def _health(self, one: _Rank, now: float) -> Health:
        if one.code is not None:
            return "ended"
        state = state_of(one.pid) if one.pid else ""
        if state in ("T", "t"):
            return "stopped"
        if state == "R" and _is_overloaded():
            return "starved"
        if one.alive > 0 and now - one.alive_at > _SILENT_S:
            return "silent"
        return "runs"

    def ask_dump(self) -> None:
        """Ask all ranks for their open spans."""
        for one in self._all.values():
            one.asked = self._slots.ask(one.index)

    def without_dump(self) -> list[int]:
        """Ranks that run and have not written them yet."""
        return [
            one.rank
            for one in self._all.values()
            if one.code is None and self._slots.see(one.index).dumped < one.asked
        ]

    def described(self, missing: list[int]) -> str:
        """Where ranks without a dump are, as the kernel sees it."""
        lines = []
        for rank in missing[:32]:
            pid = self.pid(rank)
            wait = _read(Path(f"/proc/{pid}/wchan")) or "-"
            lines.append(f"rank {rank}: no dump, state {state_of(pid) or '-'}, in {wait}")
        return "; ".join(lines) or "all ranks wrote their open spans"

    def last_error(self, folder: Path) -> str:
        """The last line of a rank's log that tells of trouble; looked for at most once a second."""
        text, at = self._error
        now = time.monotonic()
        if now - at >= 1.0:
            found = (trouble_in(folder / "log" / f"rank-{rank:05d}.log") for rank in self._all)
            text = next((f"rank log: {line}" for line in found if line), "")
            self._error = (text, now)
        return text


def _is_overloaded() -> bool:
    """Whether far more wants to run than there are processors."""
    try:
        return os.getloadavg()[0] > _OVERLOAD * (os.cpu_count() or 1)
    except OSError:
        return False


def trouble_in(log: Path) -> str:
    """The last line in a log's end that tells of trouble, made printable."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return ""
    for line in reversed(data.decode("utf-8", "replace").splitlines()):
        if any(sign in line for sign in _SIGNS):
            return "".join(c if c.isprintable() else "?" for c in line)[:300]
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
