"""Run the anchors and msctl on the same dumps and traces, and print answers and seconds.

python bench/peers/diagnose/run_peers.py --fr DIR [--jobs DIR] [--traces DIR] [--hta PYTHON]
"""

import argparse
import json
import re
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


def timed(command: list[str]) -> tuple[str, float]:
    """Output of a whole process, and its seconds."""
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        text = "more than 300 s"
    return text, time.perf_counter() - begin


def msctl(*arguments: str) -> tuple[str, float]:
    text, seconds = timed([sys.executable, "-m", "msctl", "diagnose", *arguments, "--json"])
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


def show(case: str, tool: str, answer: tuple[str, float]) -> None:
    print(f"{case:24s} {tool:14s} {answer[1]:6.2f} s  {answer[0]}", flush=True)


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
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    given = parser.parse_args()
    if given.fr is not None:
        for folder in sorted(p for p in given.fr.iterdir() if p.is_dir()):
            show(folder.name, "msctl", msctl("--fr", str(folder)))
            show(folder.name, "torchfrtrace", torchfrtrace(copied(folder, "_dump_*"), "_dump_"))
    for name in ("sleep", "sigstop", "skip") if given.jobs is not None else ():
        show(name, "msctl", msctl(str(given.jobs / name)))
        show(name, "torchfrtrace", torchfrtrace(given.jobs / name / "fr", "rank_"))
    for folder in given.traces:
        show(folder.name, "msctl", msctl("--traces", str(folder)))
        if given.hta:
            text, seconds = timed([given.hta, "-c", HTA, str(copied(folder, "rank*"))])
            lines = [line for line in text.splitlines() if line.startswith("stragglers")]
            error = text.strip().splitlines()[-1:] or ["nothing"]
            show(folder.name, "HTA", ((lines or error)[0][:100], seconds))


if __name__ == "__main__":
    main()
