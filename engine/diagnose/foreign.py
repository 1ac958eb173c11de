"""Diagnose a job of any framework from what it left behind.

Each kind of input has its reader and its detector; the arbiter joins what they say. What is not
there is listed as not looked at, and what cannot be read is named with its reason; the rest is
still analysed. A detector with much to load (rule tables, numpy) is imported with its first input.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from engine.diagnose import arbiter
from engine.diagnose.finding import Evidence, Finding, RankWait, Report
from engine.diagnose.foreignhang import hang_findings, ras_findings, states_of
from engine.diagnose.hang import rank_waits
from engine.diagnose.readers.beats import Beat, read_beats
from engine.diagnose.readers.files import FileFault, check_place, files_below
from engine.diagnose.readers.flight import Dump, read_dumps
from engine.diagnose.readers.job import NOTHING, Job, read_job, read_members
from engine.diagnose.readers.ras import Ras, read_ras
from engine.diagnose.readers.stacks import Stack, read_stack
from engine.errors import TraceError

if TYPE_CHECKING:
    from engine.diagnose.logs.triage import Triage
    from engine.diagnose.readers.counters import Traffic
    from engine.diagnose.readers.kineto import Trace
    from engine.diagnose.readers.segments import Segments

T = TypeVar("T")
_NOTES = frozenset({"fault_injection.log", "truth.json", "README.md", "answers.jsonl"})


class Inputs(NamedTuple):
    """Where to look; each a file or a folder, None where there is none."""

    logs: Path | None = None
    fr: Path | None = None
    traces: Path | None = None
    heartbeats: Path | None = None
    dmesg: Path | None = None
    stacks: Path | None = None
    ras: Path | None = None
    segments: Path | None = None
    traffic: Path | None = None
    job: Path | None = None
    """Folder with job.json and groups/, if the launcher wrote them."""


class Gathered(NamedTuple):
    """Everything that could be read."""

    job: Job
    triage: "Triage | None"
    dumps: tuple[Dump, ...]
    beats: dict[int, Beat]
    stacks: dict[int, Stack]
    traces: "tuple[Trace, ...]"
    segments: "Segments | None"
    ras: tuple[tuple[str, Ras], ...]
    traffic: "tuple[tuple[str, Traffic], ...]"
    faults: tuple[tuple[str, str], ...]
    read: dict[str, int]


_FOLDERS = (
    ("logs", ("logs", "log")), ("fr", ("fr", "fr_json", "flight_recorder")),
    ("traces", ("traces",)), ("heartbeats", ("heartbeat", "heartbeats", "heartbeats.jsonl")),
    ("dmesg", ("dmesg", "dmesg.log")),
    ("stacks", ("stacks", "py-spy", "pyspy")), ("ras", ("ras", "ras.txt", "ras.json")),
    ("segments", ("events", "segments")), ("traffic", ("traffic", "traffic.csv", "traffic.jsonl")),
)  # fmt: skip


def inputs_of(folder: Path) -> Inputs:
    """The inputs of a job folder under their usual names; a bare folder is taken for logs.

    Raises TraceError if it is no folder, or one that may not be entered.
    """
    check_place(folder, missing="name a run folder, or --job last")
    if not folder.is_dir():
        raise TraceError(
            f"{folder}: a file, not the folder of a run or job",
            remedy=f"say what it holds, e.g. --logs {folder}",
        )
    found = {}
    for kind, names in _FOLDERS:
        for name in names:
            if (folder / name).exists():
                found[kind] = folder / name
                break
    if not found:
        found["logs"] = folder
    return Inputs(**found, job=folder)


def diagnose_foreign(
    inputs: Inputs, *, on_progress: Callable[[float], None] = lambda share: None
) -> Report:
    """What happened to a foreign job.

    on_progress is called with the share of log bytes read, 0..1
    Raises TraceError if an input that was named does not exist, or none was named.
    """
    begin = time.perf_counter()
    _check(inputs)
    gathered = _gather(inputs, on_progress)
    findings = list(_findings(gathered, inputs))
    ordered = arbiter.arrange(findings)
    world = _world(gathered)
    healthy = f"nothing wrong in what was read ({_listed(gathered.read)})"
    verdict = arbiter.conclude(ordered, healthy=healthy, enough=_tells_enough(gathered))
    beats = gathered.beats.values()
    return Report(
        verdict=verdict, job=gathered.job.name or _name(inputs), world=world,
        layout=dict(gathered.job.degrees), read=gathered.read, findings=tuple(ordered),
        last_step=max((b.step for b in beats), default=None),
        symptoms=gathered.triage.symptoms if gathered.triage else (),
        not_looked_at=_gaps(inputs, gathered),
        waits=_waits(gathered, ordered),
        unreadable=tuple(Evidence(file=f, text=text) for f, text in gathered.faults),
        seconds=time.perf_counter() - begin,
    )  # fmt: skip


def _check(inputs: Inputs) -> None:
    named = [(kind, path) for kind, path in inputs._asdict().items() if path is not None]
    if not [kind for kind, _ in named if kind != "job"]:
        raise TraceError(
            "no input was named",
            remedy="give --logs DIR, --fr DIR, --traces DIR, --heartbeats PATH or --dmesg FILE",
        )
    for kind, path in named:
        missing = f"correct the path of --{kind}"
        check_place(path, missing=missing, pipes=inputs.job is not None)


def _gather(inputs: Inputs, on_progress: Callable[[float], None]) -> Gathered:
    faults: list[tuple[str, str]] = []
    job = _job(inputs, faults)
    triage, read = None, {}
    if inputs.logs or inputs.dmesg:
        triage, read["logs"] = _triage(inputs, on_progress, faults)
    dumps = tuple(_dumps(inputs.fr, faults))
    beats, bad_beats = read_beats(files_of(inputs.heartbeats))
    faults += bad_beats
    stacks = {s.rank: s for _, s in _each(inputs.stacks, read_stack, faults)}
    ras = tuple(_each(inputs.ras, read_ras, faults))
    segments, traces, traffic = _series(inputs, faults)
    counts = {
        "dumps": len(dumps), "heartbeats": len(beats), "stacks": len(stacks), "traces": len(traces),
        "segments": len(segments.ranks) if segments else 0, "RAS reports": len(ras),
        "traffic files": len(traffic),
    }  # fmt: skip
    read |= {kind: count for kind, count in counts.items() if count}
    return Gathered(
        job, triage, dumps, beats, stacks, traces, segments, ras, traffic, tuple(faults), read
    )


def _triage(
    inputs: Inputs, on_progress: Callable[[float], None], faults: list[tuple[str, str]]
) -> "tuple[Triage, int]":
    """What the logs say, and how many there are."""
    from engine.diagnose.logs.reading import read_logs

    logs = [inputs.logs] if inputs.logs is not None else []
    triage, count, bad = read_logs(logs, kernel=inputs.dmesg, on_progress=on_progress)
    faults += bad
    return triage, count


def _series(
    inputs: Inputs, faults: list[tuple[str, str]]
) -> "tuple[Segments | None, tuple[Trace, ...], tuple[tuple[str, Traffic], ...]]":
    """Inputs with numbers over time: segments, traces, traffic."""
    if inputs.segments is inputs.traces is inputs.traffic is None:
        return None, (), ()
    from engine.diagnose.readers.counters import read_traffic
    from engine.diagnose.readers.kineto import read_trace
    from engine.diagnose.readers.segments import read_segments

    segments, bad = read_segments(files_of(inputs.segments))
    faults += bad
    traces = tuple(t for _, t in _each(inputs.traces, read_trace, faults))
    traffic = tuple(_each(inputs.traffic, read_traffic, faults))
    faults += [(file, fault) for file, read in traffic for fault in read.faults]
    return segments, traces, traffic


def _job(inputs: Inputs, faults: list[tuple[str, str]]) -> Job:
    """What the launcher wrote, beside the inputs if no place was named."""
    places = [inputs.job] if inputs.job else []
    places += [p.parent for p in (inputs.fr, inputs.heartbeats, inputs.logs) if p is not None]
    for place in places:
        if (place / "job.json").is_file() or (place / "groups").is_dir():
            try:
                return read_job(place)
            except FileFault as fault:
                faults.append((str(place / "job.json"), str(fault)))
                return NOTHING._replace(members=read_members(place / "groups"))
    return NOTHING


def _dumps(place: Path | None, faults: list[tuple[str, str]]) -> Iterator[Dump]:
    for path, found in read_dumps(list(files_of(place))):
        if isinstance(found, str):
            faults.append((str(path), found))
        else:
            yield found


def _each(
    place: Path | None, reader: Callable[[Path], T], faults: list[tuple[str, str]]
) -> Iterator[tuple[str, T]]:
    for path in files_of(place):
        try:
            yield str(path), reader(path)
        except FileFault as fault:
            faults.append((str(path), str(fault)))


def files_of(place: Path | None) -> Iterable[Path]:
    """The files below a place, in the order of their names; notes and hidden files are left out."""
    return [] if place is None else files_below(place, _NOTES)


def _findings(gathered: Gathered, inputs: Inputs) -> Iterator[Finding]:
    yield from hang_findings(gathered.job, gathered.dumps, gathered.beats, gathered.stacks)
    yield from ras_findings(gathered.ras)
    if gathered.triage is not None:
        from engine.diagnose.crash import crash_findings

        yield from crash_findings(gathered.triage, gathered.job, gathered.beats)
    if gathered.segments or gathered.traces:
        from engine.diagnose.foreignpace import segment_findings, trace_findings

        yield from segment_findings(gathered.segments, gathered.job)
        yield from trace_findings(gathered.traces, gathered.job)
    for file, traffic in gathered.traffic:
        from engine.diagnose.traffic import traffic_findings

        yield from traffic_findings(traffic, file)


def _waits(gathered: Gathered, findings: list[Finding]) -> tuple[RankWait, ...]:
    """Who stood where, if the job hung."""
    if not any(finding.kind == "hang" for finding in findings):
        return ()
    g = gathered
    return rank_waits(states_of(g.job, g.dumps, g.beats, g.stacks))


def _world(gathered: Gathered) -> int:
    ranks = {d.rank for d in gathered.dumps} | set(gathered.beats) | set(gathered.stacks)
    ranks |= {t.rank for t in gathered.traces}
    top = max((r for r in ranks if r is not None), default=-1) + 1
    seen = max(gathered.triage.world, len(gathered.triage.ranks)) if gathered.triage else 0
    return gathered.job.world or max(top, seen)


def _tells_enough(gathered: Gathered) -> bool:
    """Whether a job without a finding may be called healthy.

    Not by stacks, which are one instant, nor by traces in which nothing could be compared, nor if
    most of what there was could not be read.
    """
    read = {kind: count for kind, count in gathered.read.items() if kind != "stacks"}
    if set(read) == {"traces"} and not any(len(trace.compute) for trace in gathered.traces):
        return False
    return sum(read.values()) >= max(1, len({file for file, _ in gathered.faults}))


def _name(inputs: Inputs) -> str:
    named = next(p for p in inputs if p is not None)
    place = Path(os.path.abspath(named))  # `logs` or `..` in the job's folder are no name
    return place.name if place.name not in ("logs", "log", "fr", "traces") else place.parent.name


def _listed(read: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in read.items()) or "nothing"


def _gaps(inputs: Inputs, gathered: Gathered) -> tuple[str, ...]:
    names = {
        "logs": "logs", "fr": "flight-recorder dumps", "traces": "profiler traces",
        "heartbeats": "heartbeats", "dmesg": "kernel logs", "stacks": "stacks",
        "traffic": "network counters",
    }  # fmt: skip
    gaps = [f"{text} (not given)" for kind, text in names.items() if getattr(inputs, kind) is None]
    if gathered.dumps and gathered.job.world > len(gathered.dumps):
        have = {d.rank for d in gathered.dumps}
        missing = [r for r in range(gathered.job.world) if r not in have][:8]
        gaps.append(f"dumps of rank {', '.join(map(str, missing))} (none written)")
    return tuple(gaps)
