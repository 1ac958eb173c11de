"""Score `msctl diagnose` on folders of cases with known answers.

    python bench/diagnose/score.py logs CASES          # S01.log ... and answers.jsonl
    python bench/diagnose/score.py big CASES [--ranks 2048]
    python bench/diagnose/score.py jobs CASES          # one folder a job, with truth.json
    python bench/diagnose/score.py fr CASES            # a folder of dumps a case
    python bench/diagnose/score.py traces

`big` puts the lines of every log case into one rank's log among many (biglogs.py); `traces` makes
its own (kineto.py).
"""

import argparse
import json
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from biglogs import write_logs
from kineto import OLD, write_traces

from engine.diagnose.finding import Finding, Report
from engine.diagnose.foreign import Inputs, diagnose_foreign, inputs_of

HANGS = {"sleep": "rank_blocked", "sigstop": "rank_blocked", "skip": "desync", "mismatch": "desync"}
JOBS = {"slow": "perf_straggler", "drift": "perf_straggler", "gc": "perf_gc", "none": ""}


def first(report: Report) -> Finding | None:
    return next((f for f in report.findings if f.kind != "input"), None)


def value_of(finding: Finding, kind: str) -> str:
    if kind in ("rank", "ranks", "silent"):
        return ",".join(map(str, finding.ranks))
    if kind == "node":
        return finding.nodes[0] if finding.nodes else ""
    return finding.device.removeprefix("pid ")


def score_logs(cases: Path) -> None:
    answers = [json.loads(line) for line in (cases / "answers.jsonl").read_text().splitlines()]
    strict = accepted = lines = culprits = with_culprit = cascades = 0
    for answer in answers:
        found = first(diagnose_foreign(Inputs(logs=cases / answer["file"])))
        category = found.category if found else ""
        line = found.evidence[0].line if found and found.evidence else None
        strict += category == answer["category"]
        right = category == answer["category"] or category in answer["accept"]
        accepted += right
        cascades += not right and category in answer["cascade"]
        near = line is not None and abs(line - answer["decisive_line"]) <= 1
        lines += near
        who = True
        if answer["culprit"]["kind"] != "none":
            with_culprit += 1
            value = value_of(found, answer["culprit"]["kind"]) if found else ""
            who = value == str(answer["culprit"]["value"])
            culprits += who
        if not (right and near and who):
            print(f"  {answer['id']} {answer['category']}: {category or '-'}, line {line}, {who=}")
    print(
        f"logs: {len(answers)} cases, category {strict} strict, {accepted} accepted, symptom for "
        f"cause {cascades}, decisive line within one {lines}, culprit {culprits} of {with_culprit}"
    )


def score_big(cases: Path, ranks: int) -> None:
    answers = [json.loads(line) for line in (cases / "answers.jsonl").read_text().splitlines()]
    right = who = 0
    slowest = 0.0
    for answer in answers:
        folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
        lines = (cases / answer["file"]).read_text().rstrip("\n").split("\n")
        bad = write_logs(folder, lines, ranks=ranks, kb=4, seed=int(answer["id"][1:]))
        begin = time.perf_counter()
        found = first(diagnose_foreign(Inputs(logs=folder)))
        slowest = max(slowest, time.perf_counter() - begin)
        shutil.rmtree(folder)
        category = found.category if found else ""
        good = category == answer["category"] or category in answer["accept"]
        named = found is not None and list(found.ranks) == [bad]
        right += good
        who += named
        if not (good and named):
            print(f"  {answer['id']} {answer['category']}: {category}, rank right {named}")
    print(
        f"big: {len(answers)} cases in {ranks} ranks, category {right}, culprit rank {who}, "
        f"slowest {slowest:.1f} s"
    )


def score_jobs(cases: Path) -> None:
    count = right = 0
    for folder in sorted(p for p in cases.iterdir() if (p / "truth.json").is_file()):
        truth = json.loads((folder / "truth.json").read_text())
        verdict = diagnose_foreign(inputs_of(folder)).verdict
        fault = truth["fault"]
        want = (HANGS | JOBS).get(fault)
        ranks = [4, 5] if fault in ("skip", "mismatch") else [truth["rank"]]
        good = want is None or verdict.category == want
        good &= fault in ("none", "gc") or list(verdict.ranks) == ranks
        count += 1
        right += good
        print(
            f"  {fault:10s} {verdict.category:15s} {verdict.ranks} {'right' if good else 'WRONG'}"
        )
    print(f"jobs: {right} of {count} right")


def score_fr(cases: Path) -> None:
    hits = victims = total = 0
    begin = time.perf_counter()
    folders = sorted(p for p in cases.iterdir() if (p / "fault_injection.log").is_file())
    for folder in folders:
        text = (folder / "fault_injection.log").read_text()
        truth = {int(n) for n in re.findall(r"^Rank (\d+)", text, re.MULTILINE)}
        named = set(diagnose_foreign(Inputs(fr=folder)).verdict.ranks)
        hits += len(truth & named)
        victims += len(named - truth)
        total += len(truth)
        print(f"  {folder.name}: {sorted(named)}")
    seconds = time.perf_counter() - begin
    print(f"fr: {hits} of {total} culprits, {victims} victims, {seconds:.2f} s in all")


def score_traces() -> None:
    variants: dict[str, dict[str, Any]] = {
        "new names, 3 ms": {},
        "new names, slow links": {"comm_us": 600.0},
        "old names, no offset": {"skew_us": 0.0, "comm_us": 600.0, "nccl": OLD},
        "compressed": {"gz": True},
    }
    for name, options in variants.items():
        for slow in (5, None):
            folder = Path(tempfile.mkdtemp())
            write_traces(folder, slow=slow, **options)
            ranks = diagnose_foreign(Inputs(traces=folder)).verdict.ranks
            shutil.rmtree(folder)
            good = ranks == (() if slow is None else (slow,))
            print(f"  {name}, slow {slow}: {ranks} {'right' if good else 'WRONG'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["logs", "big", "jobs", "fr", "traces"])
    parser.add_argument("cases", type=Path, nargs="?")
    parser.add_argument("--ranks", type=int, default=2048)
    given = parser.parse_args()
    if given.what != "traces" and given.cases is None:
        parser.error("name the folder of cases")
    {
        "logs": lambda: score_logs(given.cases),
        "big": lambda: score_big(given.cases, given.ranks),
        "jobs": lambda: score_jobs(given.cases),
        "fr": lambda: score_fr(given.cases),
        "traces": lambda: score_traces(),
    }[given.what]()


if __name__ == "__main__":
    main()
