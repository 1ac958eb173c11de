"""Second cut: every hit as a claim of a rank or node, weighed by what followed it.

An error after which the same rank goes on training was survived; a line that only talks about
errors is advice. Both stay visible but cannot be the cause while anything else is there.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from engine.diagnose.categories import CATEGORIES
from engine.diagnose.logs.places import (
    Place,
    bus_in,
    gpu_in,
    is_progress,
    node_in,
    peer_in,
    place_of,
    rank_in,
    ranks_listed,
)
from engine.diagnose.logs.scan import FileScan, Hit
from engine.diagnose.logs.summary import (
    ENTRY,
    Failed,
    entry_above,
    first_failed,
    is_packed,
    read_part,
)
from engine.diagnose.logs.table import RULES, WAKE
from engine.diagnose.logs.watchdog import is_timeout

_AFTER = 1 << 18
"""Bytes after a hit that are searched for progress."""
_PID = re.compile(r"\bpid[ =:]+(\d{2,8})\b|^\S+?:(\d{2,8}):\d+ \[\d+\]", re.MULTILINE)
_HOST = re.compile(
    r"\b(?:node|host(?:name)?)(?: *[=:]+ *| (?=\S*\d))([\w.-]{1,62})"
    r"|^([A-Za-z][\w.-]{0,62}):\d+:\d+ \[\d+\]",
    re.MULTILINE,
)
_WORLD = re.compile(r"\b(?:world(?:_size)?|nranks|num_processes)[ =:]+(\d{1,7})\b")


class Claim(NamedTuple):
    """One line that shows a cause or a wake, and who it speaks of."""

    category: str
    weight: float
    rank: int | None
    """The rank that says it, by its file or by the line."""
    named: tuple[int, ...]
    """Ranks that the line names as concerned."""
    node: str
    device: str
    file: str
    line: int
    text: str
    kernel: bool


class Source(NamedTuple):
    """One log file with its place and what its head says."""

    scan: FileScan
    place: Place
    pids: tuple[int, ...]
    host: str
    world: int


def source_of(scan: FileScan, root: Path, *, kernel: bool = False) -> Source:
    """Place, process ids, host and world size of a file; `kernel` says that it is a kernel's."""
    place = place_of(scan.path, root)
    place = place._replace(kernel=True, rank=None) if kernel else place
    pids = (
        tuple(int(a or b) for a, b in _PID.findall(scan.head)[:4]) if place.rank is not None else ()
    )
    host = _HOST.search(scan.head)
    world = _WORLD.search(scan.head)
    name = place.node or ((host[1] or host[2]) if host and not place.kernel else "")
    return Source(scan, place, pids, name, int(world[1]) if world else 0)


def claims_of(source: Source) -> list[Claim]:
    """All hits of a file as claims, in the order of lines."""
    claims = []
    for row, hits in source.scan.hits.items():
        for number, hit in enumerate(hits):
            claim = _claim(source, row, hit, check=number < 4)
            claim = _in_context(source.scan, hit, claim) if number < 4 else claim
            claims.append(_in_table(source, hit, claim))
    return sorted(claims, key=lambda claim: claim.line)


_SHARED = re.compile(
    rb"multiprocessing/(?:shared_memory|heap)|/dev/shm|torch_shm|shm_open", re.IGNORECASE
)
_FRAME = re.compile(rb"\bline \d+, in (\w+)")
_WRITES = re.compile(rb"save|write|dump|mkdir|makedirs|rename|replace|sync")
_READS = re.compile(rb"read|load|fetch|getitem|collate|decode|next")
_BEFORE, _FRAMES = 4096, 4


def _in_context(scan: FileScan, hit: Hit, claim: Claim) -> Claim:
    """What the traceback above an error tells: the same words of another call have another cause.

    A full device is /dev/shm if the call came through shared memory, and an I/O error of a call
    that writes is no bad sample.
    """
    is_io = claim.category == "data_error" and "[Errno 5]" in claim.text
    if (claim.category != "disk_full" and not is_io) or is_packed(scan.path):
        return claim
    above = read_part(scan.path, max(0, hit.offset - _BEFORE), min(_BEFORE, hit.offset))
    if not is_io:
        return claim._replace(category="shm_limit") if _SHARED.search(above) else claim
    calls = b" ".join(_FRAME.findall(above)[-_FRAMES:])
    writes = _WRITES.search(calls) and not _READS.search(calls)
    return claim._replace(category="node_fault") if writes else claim


def _in_table(source: Source, hit: Hit, claim: Claim) -> Claim:
    """An exit code in torchrun's table is that of the entry's rank, first of all the root cause."""
    if source.place.rank is not None or claim.category == WAKE or not ENTRY.search(hit.text):
        return claim
    entry = entry_above(source.scan, hit.offset)
    if entry is None:
        return claim
    rank, root = entry
    return claim._replace(rank=rank, named=(rank,), weight=claim.weight + (_ROOT if root else 0.0))


def first_worker(source: Source) -> Failed | None:
    """The worker that torchrun saw fail first: by its table, else by what the agent printed."""
    if source.place.rank is not None:
        return None
    hits = (
        hit for row, hits in source.scan.hits.items() if not RULES[row].strength for hit in hits
    )
    found = [first_failed(source.scan, hit.offset, hit.line, hit.text) for hit in hits]
    named = [failed for failed in found if failed is not None]
    return min(named, key=lambda failed: (not failed.root, failed.line), default=None)


_RETOLD = re.compile(r"unhandled (?:system|cuda) error|nccl(?:System|UnhandledCuda)Error")


def is_retold(claim: Claim) -> bool:
    """NCCL's word for a failed call, with which a call given up after a time-out ends as well."""
    return claim.weight <= 1 and _RETOLD.search(claim.text) is not None


def is_menu(claim: Claim) -> bool:
    """A list of what may have happened, which says less than any time-out."""
    return _MENU in claim.text


SURVIVED, _CALM = -1.0, 3
"""Weight of a wake after which the rank made more steps than could still stand in a buffer."""
_ALL = 9.0
"""More than any rule weighs."""
_OF_OTHERS = frozenset({"desync", "rank_blocked", "rendezvous", "rank_layout"})
"""Causes that every rank reports: who says so came, or waits, and is not to blame for it."""
_ROOT = 0.6
"""More than the weights between which a candidate's ranks are all culprits."""


def _claim(source: Source, row: int, hit: Hit, *, check: bool) -> Claim:
    rule, place = RULES[row], source.place
    said = rank_in(hit.text) if not place.kernel else None
    rank = place.rank if place.rank is not None else said
    weight = float(rule.strength)
    if rule.category != WAKE:
        if hit.advice and rule.strength < 3:
            weight -= 0.5
        asked = check and not rule.lasting and not place.kernel
        if (hit.advice and _is_remark(hit.text)) or _only_warns(rule.category, hit.text):
            weight = 0.1
        elif place.kernel:
            weight += _after_boot(source.scan, hit)
        elif asked and _went_on(source.scan, hit, rank):
            weight = 0.1
        if _ECHO.search(hit.text):
            weight -= 0.4
        if _MENU in hit.text:
            weight = 0.5
    elif check and not is_timeout(hit.text) and _went_on(source.scan, hit, rank, for_lines=_CALM):
        weight = SURVIVED
    named = ranks_listed(hit.named["rank"]) if "rank" in hit.named else ()
    named += ranks_listed(hit.named["ranks"]) if "ranks" in hit.named else ()
    named += tuple(int(rank) for rank in _CULPRITS.findall(hit.text))
    if place.rank is None and said is not None and rule.category not in _OF_OTHERS:
        named += (said,)
    pid = (hit.named.get("pid") or hit.named.get("reaped") or "").split(",")[0].strip()
    bus = hit.named.get("gpu") or (bus_in(hit.text) if rule.category.startswith("gpu_") else "")
    device = _bus(bus) or (f"pid {pid}" if pid else "") or gpu_in(hit.text)
    peer = peer_in(hit.text) if rule.category == "net_unreachable" else ""
    node = peer or node_in(hit.text) or source.host or place.node
    return Claim(
        rule.category, weight, rank, named, node, device, str(source.scan.path), hit.line, hit.text,
        place.kernel,
    )  # fmt: skip


def _bus(text: str) -> str:
    """A PCI address in one form: `PCI:0000:a1:00` as `0000:a1:00.0`."""
    address = text.lower().removeprefix("pci:")
    return f"{address}.0" if address.count(":") == 2 and "." not in address else address


_APPENDED = re.compile(r"[.;] +hint: .*", re.IGNORECASE)
"""Advice after a report does not make the report advice."""
_CULPRITS = re.compile(r"\bCulprit rank (\d{1,7})\b")
"""torch's reader of flight-recorder dumps names several in one line."""
_REMARK = re.compile(
    r"\bhint\b|\bcaught (?:a |an )?[\w.]+|\brun ?book\b|\btrying \d|\bignored?\b",
    re.I,
)


_MENU = "There are some potential root causes"
"""Ray lists what may have ended a worker, and prints the list whatever it was."""
_ECHO = re.compile(r"(?:^|[\]:)|])\s{4,}(?:raise|return|assert|self\.|[\w.]+\(|\w+ = )")
"""A source line that a traceback quotes: the line with the exception says more."""


def _is_remark(text: str) -> bool:
    """Advice or a caught error: the line itself says that nothing ended here."""
    return _REMARK.search(_APPENDED.sub("", text)) is not None


_WARNING = re.compile(r"\.py:\d+: \w*Warning: ")
_MACHINE = ("hardware", "host")


def _only_warns(category: str, text: str) -> bool:
    """A warning of Python, after which a program goes on; of an unfit machine it only warns."""
    return _WARNING.search(text) is not None and CATEGORIES[category].domain not in _MACHINE


_DOWN = re.compile(rb"(\S+): NIC Link is Down")
_SINCE_BOOT = re.compile(r"^\[ *(\d+)\.\d+\]")
_BOOT_S = 120


def _after_boot(scan: FileScan, hit: Hit) -> float:
    """A kernel's word weighs a little more; not that of a link that comes up as a host boots."""
    down = _DOWN.search(hit.text.encode())
    since = _SINCE_BOOT.match(hit.text)
    if down is None or since is None or int(since[1]) > _BOOT_S or is_packed(scan.path):
        return 0.25
    back = re.compile(re.escape(down[1]) + rb": NIC Link is Up")
    return -_ALL if back.search(read_part(scan.path, hit.offset, _AFTER)) else 0.25


def _went_on(scan: FileScan, hit: Hit, rank: int | None, *, for_lines: int = 1) -> bool:
    """Whether the rank reports progress after the hit, in at least so many lines."""
    if is_packed(scan.path):
        return False
    seen = 0
    for line in read_part(scan.path, hit.offset, _AFTER).split(b"\n")[1:]:
        text = line[:512].decode(errors="replace")
        seen += is_progress(text) and (rank_in(text) in (None, rank) or rank is None)
        if seen >= for_lines:
            return True
    return False


def pid_ranks(sources: Iterable[Source]) -> dict[int, int]:
    """Process id -> rank, where a rank's log tells it at its start."""
    return {pid: s.place.rank for s in sources for pid in s.pids if s.place.rank is not None}
