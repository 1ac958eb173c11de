"""`msctl selfcheck` in this process: what it prints, writes and ends with."""

import json

import msgspec
import pytest

from engine.health.export import write_recording
from engine.health.result import CheckResult, NodeReport
from tests.engine.health.machines import machine


@pytest.fixture
def recorded(tmp_path):
    def make(kind, change=None):
        path = tmp_path / f"{kind}.json"
        write_recording(path, machine(kind, change)[0])
        return str(path)

    return make


def test_a_healthy_machine_ends_with_0(msctl, recorded):
    ended = msctl("selfcheck", "--recording", recorded("h100"))
    assert ended.code == 0, ended.err
    assert ended.out.startswith("FIT")
    assert "8 x NVIDIA H100" in ended.out
    assert "not looked at: net.errors" in ended.out  # the first look has nothing to compare with


def test_a_sick_machine_ends_with_4_and_says_what_to_do(msctl, recorded):
    ended = msctl("selfcheck", "--recording", recorded("h100", {"gpus": {"3": {"pcie_width": 8}}}))
    assert ended.code == 4
    assert ended.out.startswith("UNFIT")
    (row,) = [line for line in ended.out.splitlines() if line.startswith("fail")]
    assert row.split("\t")[:3] == ["fail", "gpu.pcie", "gpu3"]
    assert "reseat" in row


def test_json_is_the_report(msctl, recorded):
    ended = msctl("selfcheck", "--json", "--recording", recorded("a100"))
    report = msgspec.json.decode(ended.out.encode(), type=NodeReport)
    assert (report.node, report.profile, report.status) == ("a100", "a100-nvl8", "ok")


@pytest.mark.parametrize(
    ("convention", "healthy", "warned", "failed", "nothing"),
    [("house", 0, 0, 4, 5), ("nagios", 0, 1, 2, 3), ("npd", 0, 0, 1, 2)],
)
def test_exit_codes_by_convention(msctl, recorded, convention, healthy, warned, failed, nothing):
    def code(kind, change=None, *more):
        path = recorded(kind, change)
        return msctl("selfcheck", "--exit", convention, "--recording", path, *more).code

    assert code("h100") == healthy
    assert code("h100", {"gpus": {"0": {"persistence": False}}}) == warned
    assert code("h100", {"gpus": {"0": {"mig_on": True}}}) == failed
    assert code("cpu", None, "--only", "gpu") == nothing


def test_monitoring_gets_one_line(msctl, recorded):
    path = recorded("h100", {"gpus": {"0": {"mig_on": True}}})
    ended = msctl("selfcheck", "--exit", "nagios", "--recording", path)
    assert ended.out == "gpu.mode gpu0: MIG is on\n"


def test_the_list_names_every_check(msctl):
    ended = msctl("selfcheck", "--list")
    assert ended.code == 0
    assert "gpu.ecc\tnode\tpassive\t10\tNo memory errors since the driver was loaded" in ended.out
    assert len(json.loads(msctl("selfcheck", "--list", "--json").out)) > 30


def test_a_name_that_is_none_ends_with_3(msctl):
    ended = msctl("selfcheck", "--only", "gpu.eck", "--list")
    assert ended.code == 3
    assert "hint:" in ended.err


def test_a_textfile_is_written(msctl, recorded, tmp_path):
    path = tmp_path / "out.prom"
    assert msctl("selfcheck", "--recording", recorded("t4"), "--prometheus", str(path)).code == 0
    assert 'msctl_selfcheck_status{node="t4"} 1' in path.read_text()


def test_learning_writes_a_profile_that_is_used(msctl, recorded, tmp_path):
    reports = []
    for number in range(3):
        result = CheckResult(
            check="gpu.gemm", target="gpu0 bf16", status="ok", measured=7e14 + number * 1e12,
            unit="FLOP/s", message="",
        )  # fmt: skip
        report = NodeReport(node=f"n{number}", machine="", profile="", level="full", time_s=0,
                            seconds=1, results=(result,))  # fmt: skip
        path = tmp_path / f"n{number}.json"
        path.write_bytes(msgspec.json.encode(report))
        reports.append(str(path))
    out = tmp_path / "site.toml"
    ended = msctl("selfcheck", "learn", *reports, "--name", "site", "--base", "h100-nvl8",
                  "--out", str(out))  # fmt: skip
    assert ended.code == 0, ended.err
    assert "learned from 3 nodes" in out.read_text()
    used = msctl("selfcheck", "--recording", recorded("h100"), "--profiles", str(out),
                 "--profile", "site", "--json")  # fmt: skip
    assert json.loads(used.out)["profile"] == "site"


@pytest.mark.multi
def test_this_machine_is_looked_at_for_real(msctl, tmp_path):
    ended = msctl("selfcheck", "--only", "host.shm", "--state", str(tmp_path),
                  "--record", str(tmp_path / "me.json"))  # fmt: skip
    assert ended.code in (0, 4)
    assert "host.shm" in ended.out
    again = msctl("selfcheck", "--only", "host.shm", "--recording", str(tmp_path / "me.json"))
    assert again.code == ended.code
