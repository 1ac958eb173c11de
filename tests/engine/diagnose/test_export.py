"""Findings as JSON lines and OpenMetrics text, read back by a parser that knows nothing of them."""

import json
import re

import pytest

from engine.diagnose.export import open_metrics, write_findings, write_metrics
from engine.diagnose.finding import Attribution, Finding, Report, Times, TimeShare, Verdict
from engine.diagnose.html import write_html
from engine.errors import MissingError

SLOW = Finding(kind="straggler", category="perf_straggler", what="w", ranks=(5, 6), cost=0.125)
GC = Finding(kind="perf", category="perf_gc", what='a "quoted"\nline', cost=0.25)
TIMES = Times(
    steps=(1, 9), ranks=8, step_s=1.5, per_rank=(),
    parts=(TimeShare(name="forward", seconds=1.0, share=2 / 3),
           TimeShare(name="wait_dp", seconds=0.5, share=1 / 3)),
)  # fmt: skip


def report(state="degraded", job="j", findings=(), **more):
    return Report(verdict=Verdict(state=state), job=job, findings=findings, **more)


def samples(text):
    """(name, labels) -> value of OpenMetrics text; asserts its grammar on the way."""
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""]
    found, kinds, done = {}, {}, []
    for line in lines[:-2]:
        meta = re.fullmatch(r"# (TYPE|HELP|UNIT) (\w+) (.+)", line)
        if meta:
            if meta[1] == "TYPE":
                assert meta[2] not in kinds, "a family is declared once"
                kinds[meta[2]] = meta[3]
                done.append(meta[2])
            if meta[1] == "UNIT":
                assert meta[2].endswith(f"_{meta[3]}")
            assert meta[2] == done[-1]
            continue
        name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()
        assert name == done[-1], "samples of a family stand together"
        pairs = re.findall(r'(\w+)="((?:[^"\\\n]|\\[\\"n])*)"', labels)
        assert ",".join(f'{k}="{v}"' for k, v in pairs) == labels
        key = (name, tuple(pairs))
        assert key not in found
        found[key] = float(value)
    return found


def test_one_state_is_set():
    for state in ("healthy", "degraded", "faulty", "unknown"):
        found = samples(open_metrics(report(state)))
        states = {dict(labels)["msctl_job_state"]: value for (_, labels), value in found.items()}
        assert states.pop(state) == 1
        assert list(states.values()) == [0, 0, 0]


def test_findings_are_counted_by_category():
    found = samples(open_metrics(report(findings=(GC, SLOW, GC))))
    counts = {
        dict(labels)["category"]: v
        for (name, labels), v in found.items()
        if name == "msctl_findings"
    }
    assert counts == {"perf_gc": 2, "perf_straggler": 1}


def test_times_stragglers_and_mfu_where_they_are_known():
    attribution = Attribution(
        measured_s=1.5, ideal_s=1.0, mfu=0.4375, rows=(), critical_path=(), what_if=()
    )
    found = samples(open_metrics(report(findings=(SLOW,), times=TIMES, attribution=attribution)))
    job = ("job", "j")
    assert found["msctl_step_seconds", (job,)] == 1.5
    assert found["msctl_step_part_seconds", (job, ("part", "wait_dp"))] == 0.5
    assert found["msctl_step_part_seconds", (job, ("part", "forward"))] == 1.0
    assert found["msctl_straggler_cost_ratio", (job, ("rank", "6"))] == 0.125
    assert found["msctl_mfu", (job,)] == 0.4375


def test_what_is_not_known_is_left_out():
    names = {name for name, _ in samples(open_metrics(report()))}
    assert names == {"msctl_job_state"}


def test_a_name_cannot_end_its_label():
    evil = 'x"} 1\nmsctl_mfu{job="\\'
    found = samples(open_metrics(report(job=evil)))
    assert len(found) == 4
    ((_, labels), *_) = found
    escaped = dict(labels)["job"]
    back = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), escaped)
    assert back == evil


def test_findings_are_lines_in_causal_order(tmp_path):
    path = tmp_path / "f.jsonl"
    assert write_findings(report(job="run-1", findings=(GC, SLOW)), path) == 2
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["id"], first["order"], first["what"]) == ("run-1-0", 0, 'a "quoted"\nline')
    assert (second["id"], second["order"], second["ranks"]) == ("run-1-1", 1, [5, 6])
    assert write_findings(report(), path) == 0
    assert path.read_bytes() == b""


@pytest.mark.parametrize("write", [write_findings, write_metrics, write_html])
def test_a_file_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path, write):
    for path in (tmp_path, tmp_path / "nowhere" / "file"):
        with pytest.raises(MissingError, match="cannot be written: ") as caught:
            write(report(), path)
        assert caught.value.what.startswith(str(path))


def test_metrics_are_written_as_told(tmp_path):
    write_metrics(report(), tmp_path / "m.prom")
    assert (tmp_path / "m.prom").read_text() == open_metrics(report())
