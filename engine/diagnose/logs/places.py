"""Which rank and node a file or a line belongs to.

A file per rank names the rank in its path, and then a prefix in a line says nothing more. In a
merged file the prefix that torchrun, NCCL, Slurm, Ray or a logger puts before each line tells
the rank.
"""

import re
from pathlib import Path
from typing import NamedTuple

_FILE_RANK = re.compile(
    r"(?:^|[._/-])(?:rank|r|task|proc|process|worker|pe)[_.-]?0*(\d{1,7})(?=$|[._/-])",
    re.IGNORECASE,
)
_TORCHRUN = re.compile(r"(?:^|/)0*(\d{1,5})/(?:stdout|stderr|error)\.(?:log|json)(?:\.gz|\.zst)?$")
_NODE_FILE = re.compile(
    r"(?:^|[._/-])((?:node|host|worker|gpu|ip|nid|dgx)[-_]?[A-Za-z0-9-]*\d+)(?=$|[._/])",
    re.IGNORECASE,
)
_KERNEL = re.compile(r"dmesg|kern(?:el)?\.log|journal|syslog|messages", re.IGNORECASE)

_LINE_RANK = (
    re.compile(r"^\s*\[(?:default|rank|local_rank:?|Rank |RANK )\s?(\d{1,7})\]"),
    re.compile(
        r"^\[(?!(?:node|host|gpu|cuda|npu|step|epoch|iter|pid|batch))[A-Za-z_]{1,20}(\d{1,7})\]:"
    ),  # torchrun --role
    re.compile(r"(?:^|\s)\[\d+,(\d{1,7})\]<std(?:out|err)>"),
    re.compile(r'"(?:global_)?rank\\?"\s*:\s*\\?"?(\d{1,7})\b'),
    re.compile(r"^\[(\d{1,7})\] \S+:\d+:\d+ \[\d+\] "),
    re.compile(r"\[Rank (\d{1,7})\]"),
    re.compile(r"\bPG(?: ID)? \d+ .*?Rank (\d{1,7})\]"),
    re.compile(r"\(.{0,60}?\brank[= ](\d{1,7})\b"),
    re.compile(r"\[.{0,40}?\brank[ =:]?(\d{1,7})\b.{0,20}?\]", re.IGNORECASE),
    re.compile(r"^\W*(?:\S+ ){0,3}?(?:rank|task|worker|proc)[ =:#_-]?(\d{1,7})\b", re.IGNORECASE),
    re.compile(r" - rank[ _-]?(\d{1,7})\b"),
    re.compile(r"^\s{0,6}(\d{1,6}): "),
    re.compile(r"\b[Rr]ank[ :=]+(\d{1,7})\b"),
    re.compile(r"'--(?:local[_-])?rank[= ](\d{1,7})'"),
    re.compile(r"\blocal_rank: (\d{1,5}) \(pid"),
)
"""Where a line names its rank, most telling first."""

_LINE_NODE = (
    re.compile(r"(?:^|[\s>]|>:)([A-Za-z][\w.-]{1,62}):\d+:\d+ \[\d+\] "),
    re.compile(
        r"^(?:\w{3} +\d+ \d\d:\d\d:\d\d |\d{4}-\d\d-\d\dT\S+ )?([A-Za-z][\w.-]{1,62}) kernel:"
    ),
    re.compile(r"\b(?:node|host(?:name)?)\\?\"?\s*[:=]\s*\\?\"?([\w.-]{1,62})", re.IGNORECASE),
    re.compile(r"^(?:srun|pdsh@\S+|slurmstepd): (?:error: )?([A-Za-z][\w.]*[\d-][\w.-]*): "),
    re.compile(r"^((?:node|host|gpu|worker|dgx|ip)-[a-z0-9.-]{1,40}): "),
    re.compile(r"^(\d{1,3}(?:\.\d{1,3}){3}): "),
    re.compile(r"^([A-Za-z]{1,12}-?\d{2,10}): "),
    re.compile(r"\bnode id: \w+ and (?:ip|address): (\d{1,3}(?:\.\d{1,3}){3})"),
    re.compile(r"\b(?:ON|on) ((?:node|host)[\w.-]{1,40})"),
)
_PEER = re.compile(
    r"(?:[Cc]onnect\w*|[Rr]oute|reach\w*|\bssh(?: -\w(?: \w+=\w+)?)*) (?:to )?"
    r"\[?(\d{1,3}(?:\.\d{1,3}){3})"
)
_GPU_INDEX = re.compile(r"^(?:\S+ )?\[(\d{1,3})\] .*(?:NCCL|WARN|Cuda)")


class Place(NamedTuple):
    """What a path says about where a file comes from."""

    rank: int | None
    node: str
    kernel: bool
    """A kernel log: its lines belong to a node, not to a rank."""


def place_of(path: Path, root: Path) -> Place:
    """Rank and node by the path below the folder that was named."""
    try:
        text = path.relative_to(root).as_posix()
    except ValueError:
        text = path.name
    kernel = _KERNEL.search(path.name) is not None
    node = _NODE_FILE.search(text)
    rank = None if kernel else _TORCHRUN.search(text) or _FILE_RANK.search(text)
    return Place(int(rank[1]) if rank else None, node[1] if node else "", kernel)


def rank_in(text: str) -> int | None:
    """The rank that a line names as its own, None if it names none."""
    for pattern in _LINE_RANK:
        found = pattern.search(text)
        if found is not None:
            return int(found[1])
    return None


def node_in(text: str) -> str:
    """The host that a line names, empty if none."""
    for pattern in _LINE_NODE:
        found = pattern.search(text)
        if found is not None:
            return found[1]
    return ""


def peer_in(text: str) -> str:
    """The address that a connection was tried to, empty if none."""
    found = _PEER.search(text)
    return found[1] if found else ""


def gpu_in(text: str) -> str:
    """The device index in an NCCL line without a host, empty if none."""
    found = _GPU_INDEX.search(text)
    return found[1] if found else ""


_BUS = re.compile(
    r"(?:GPU|NVRM|amdgpu|Xid).{0,40}?\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\b",
    re.IGNORECASE,
)


def bus_in(text: str) -> str:
    """The PCI address of a GPU that a line names, empty if none."""
    found = _BUS.search(text)
    return found[1] if found else ""


_NUMBERS = re.compile(r"\d+")


def ranks_listed(text: str) -> tuple[int, ...]:
    """`3 and rank 0`, `1, 5, 7` as numbers."""
    return tuple(int(n) for n in _NUMBERS.findall(text)[:64])


_PROGRESS = re.compile(
    r"\biter(?:ation)?\b[ :=#]*\d+|\bstep[ :=#]*\d+.*(?:loss|time|lr)|\blm loss\b|\bit/s\b|"
    r"\bs/it\b|\b(?:iteration|step) took \d|"
    r"\bsamples/s|\btokens/s|\btps\b|\bloss[ :=]+[-+]?\d",
    re.IGNORECASE,
)


def is_progress(text: str) -> bool:
    """Whether a line reports a step that was done."""
    return _PROGRESS.search(text) is not None
