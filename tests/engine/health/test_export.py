import re

import msgspec
import pytest

from engine.errors import MissingError, TraceError
from engine.health.export import (
    prometheus_text,
    read_reports,
    write_prometheus,
    write_recording,
)
from engine.health.recording import read_recording
from engine.health.result import CheckResult, NodeReport
from tests.engine.health.machines import machine


def report(node="n1"):
    results = (
        CheckResult(check="gpu.ecc", target="gpu3", status="fail", message="m", action="rma"),
        CheckResult(check="host.gemm", status="ok", measured=5e10, unit="FLOP/s", message="m"),
        CheckResult(check="net.state", target='a"b', status="skip", message="m"),
    )
    return NodeReport(node=node, machine="m", profile="p", level="light", time_s=1.7e9, seconds=1,
                      results=results)  # fmt: skip


def test_the_textfile_is_in_the_form_that_node_exporter_takes():
    text = prometheus_text(report())
    assert 'msctl_selfcheck_status{node="n1"} 4' in text
    assert 'msctl_selfcheck_result{node="n1",check="gpu.ecc",target="gpu3"} 4' in text
    assert 'target="a\\"b"' in text
    line = re.compile(r'^(#.*|[a-z_]+\{([a-z]+="(\\.|[^"\\])*",?)+\} [0-9.e+]+)$')
    assert all(line.match(row) for row in text.splitlines())


def test_it_is_put_in_place_whole(tmp_path):
    write_prometheus(tmp_path / "m.prom", report())
    assert [p.name for p in tmp_path.iterdir()] == ["m.prom"]
    with pytest.raises(MissingError):
        write_prometheus(tmp_path / "no" / "m.prom", report())


def test_reports_are_read_one_or_many_a_file(tmp_path):
    one = tmp_path / "one.json"
    one.write_bytes(msgspec.json.format(msgspec.json.encode(report()), indent=2))
    many = tmp_path / "many.jsonl"
    many.write_bytes(b"\n".join(msgspec.json.encode(report(f"n{i}")) for i in range(3)))
    assert [r.node for r in read_reports([one, many])] == ["n1", "n0", "n1", "n2"]


@pytest.mark.parametrize("text", ["{}", "[1]", '{"node": "n"', "\x00\xff"])
def test_what_is_no_report_is_refused(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"bad\.json"):
        read_reports([path])


def test_a_recording_written_is_the_recording_read(tmp_path):
    recording, _ = machine("h100")
    write_recording(tmp_path / "r.json", recording)
    assert read_recording(tmp_path / "r.json") == recording
