"""Run the anchors and msctl on the same dumps and traces, and print answers and seconds.

python bench/peers/diagnose/run_peers.py [--fr DIR] [--jobs DIR] [--logs DIR] [--traces DIR ...]
    [--hta PYTHON] [--nvrx PYTHON --nvrx-source DIR] [--rounds N]

With rounds every tool answers so often, in turn, and medians are printed. Compare compiled files: a
Python in which msctl is installed, not the source tree, and the others after `compileall`.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HTA = """
import sys, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
print("stragglers", analysis.get_potential_stragglers())
"""

NVRX_LOGS = """
import sys
from nvidia_resiliency_ext.attribution.restart_agent.l0 import build_l0_bundle
for path in sys.argv[1:]:
    primary = build_l0_bundle(path).deterministic_primary_candidate
    print(path.rsplit("/", 1)[-1], primary.line if primary else 0)
"""
NVRX_FR = "nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution"


def timed(command: list[str], **variables: str) -> tuple[str, float]:
    """Output of a whole process, and its seconds."""
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False,
            env=os.environ | variables,
        )  # fmt: skip
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        text = "more than 300 s"
    return text, time.perf_counter() - begin


def msctl(*arguments: str) -> tuple[str, float]:
    command = Path(sys.executable).with_name("msctl")
    text, seconds = timed([str(command), "diagnose", *arguments, "--json"])
    try:
        verdict = json.loads(text)["verdict"]
        return f"{verdict['category'] or verdict['state']} {verdict['ranks']}", seconds
    except (ValueError, KeyError):
        return text.strip().splitlines()[-1][:100] if text.strip() else "nothing", seconds


def torchfrtrace(folder: Path, prefix: str) -> tuple[str, float]:
    """What PyTorch's own analyzer prints as missing ranks, in its order."""
    module = "torch.distributed.flight_recorder.fr_trace"
    text, seconds = timed([sys.executable, "-m", module, str(folder), "-p", prefix])
    missing = re.findall(r"(?i)missing ranks:? *\{([\d, ]+)\}", text)
    if missing:
        return f"{len(missing)} lines, ranks {sorted(set(missing))}", seconds
    last = text.strip().splitlines()[-1][:100] if text.strip() else "nothing"
    return last, seconds


def nvrx_fr(python: str, source: Path, folder: Path, pattern: str) -> tuple[str, float]:
    """Ranks in the last column of the table that NVIDIA's resiliency extension prints."""
    text, seconds = timed(
        [python, "-m", NVRX_FR, "--fr-path", str(folder), "-p", pattern, "--emit-stdout"],
        PYTHONPATH=str(source),
    )
    rows = re.findall(r"(?m)^\d+ +\|.*\| *([\d, ]+)$", text)
    ranks = sorted({int(r) for row in rows for r in re.findall(r"\d+", row)})
    last = text.strip().splitlines()[-1:] or ["nothing"]
    return (f"{len(rows)} lines, ranks {ranks}" if rows else last[0][:100]), seconds


def compare_logs(cases: Path, python: str | None, source: Path | None) -> None:
    """Decisive lines found (within one) in the log cases, by each tool in one process."""
    answers = [json.loads(line) for line in (cases / "answers.jsonl").read_text().splitlines()]
    score = Path(__file__).parents[2] / "diagnose" / "score.py"
    text, seconds = timed([sys.executable, str(score), "logs", str(cases)])
    show("log cases", "msctl", (text.strip().splitlines()[-1][:110], seconds))
    if python is None or source is None:
        return
    paths = [str(cases / answer["file"]) for answer in answers]
    text, seconds = timed([python, "-c", NVRX_LOGS, *paths], PYTHONPATH=str(source))
    lines = dict(re.findall(r"(?m)^(\S+) (\d+)$", text))
    near = [a for a in answers if abs(int(lines.get(a["file"], 0)) - a["decisive_line"]) <= 1]
    none = sum(line == "0" for line in lines.values())
    found = f"{len(lines)} cases, decisive line within one {len(near)}, no primary {none}"
    show("log cases", "NVRx L0", (found if lines else text.strip()[-100:], seconds))


SECONDS: dict[tuple[str, str], list[float]] = {}
"""Of every case and tool, each round."""


def show(case: str, tool: str, answer: tuple[str, float]) -> None:
    SECONDS.setdefault((case, tool), []).append(answer[1])
    print(f"{case:24s} {tool:14s} {answer[1]:6.3f} s  {answer[0]}", flush=True)


def medians() -> None:
    """Of all rounds."""
    print("\nmedians")
    for (case, tool), seconds in SECONDS.items():
        middle = statistics.median(seconds)
        print(f"{case:24s} {tool:14s} {middle:6.3f} s ({len(seconds)} rounds)")


def copied(folder: Path, pattern: str) -> Path:
    """Only the inputs of a folder, since the anchors read every file in it."""
    place = Path(tempfile.mkdtemp())
    for path in folder.glob(pattern):
        (place / path.name).write_bytes(path.read_bytes())
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fr", type=Path)
    parser.add_argument("--jobs", type=Path)
    parser.add_argument("--traces", type=Path, nargs="*", default=[])
    parser.add_argument("--logs", type=Path, help="log cases with their answers.jsonl")
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--nvrx", help="a Python that has what nvidia-resiliency-ext needs")
    parser.add_argument("--nvrx-source", type=Path, help="the `src` folder of its repository")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    for _ in range(given.rounds):
        one_round(given)
    if given.rounds > 1:
        medians()


def one_round(given: argparse.Namespace) -> None:
    """Every tool on every input once."""
    if given.fr is not None:
        for folder in sorted(p for p in given.fr.iterdir() if p.is_dir()):
            show(folder.name, "msctl", msctl("--fr", str(folder)))
            show(folder.name, "torchfrtrace", torchfrtrace(copied(folder, "_dump_*"), "_dump_"))
            if given.nvrx:
                show(folder.name, "NVRx", nvrx_fr(given.nvrx, given.nvrx_source, folder, "_dump_*"))
    for name in ("sleep", "sigstop", "skip") if given.jobs is not None else ():
        show(name, "msctl", msctl(str(given.jobs / name)))
        dumps = given.jobs / name / "fr"
        show(name, "torchfrtrace", torchfrtrace(dumps, "rank_"))
        if given.nvrx:
            show(name, "NVRx", nvrx_fr(given.nvrx, given.nvrx_source, dumps, "rank_*"))
    if given.logs is not None:
        compare_logs(given.logs, given.nvrx, given.nvrx_source)
    for folder in given.traces:
        show(folder.name, "msctl", msctl("--traces", str(folder)))
        if given.hta:
            text, seconds = timed([given.hta, "-c", HTA, str(copied(folder, "rank*"))])
            lines = [line for line in text.splitlines() if line.startswith("stragglers")]
            error = text.strip().splitlines()[-1:] or ["nothing"]
            show(folder.name, "HTA", ((lines or error)[0][:100], seconds))


if __name__ == "__main__":
    main()
