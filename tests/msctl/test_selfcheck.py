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


def test_a_level_is_not_widened_by_a_name(msctl, recorded):
    path = recorded("h100")
    ended = msctl("selfcheck", "--recording", path, "--level", "passive", "--only", "gpu.gemm")
    assert ended.code == 3
    assert "needs --level light" in ended.err
    listed = msctl("selfcheck", "--list", "--level", "light", "--only", "gpu").out
    assert "gpu.gemm" in listed
    assert "gpu.memory_test" not in listed


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


def fleet_file(tmp_path):
    from engine.health.fleet import FleetReport, PairRate

    def node(name, status):
        result = CheckResult(check="gpu.ecc", target="gpu3", status=status, message="2 errors")
        return NodeReport(node=name, machine="8 GPUs", profile="p", level="light", time_s=0,
                          seconds=1, results=(result,))  # fmt: skip

    pairs = (PairRate(nodes=("a", "b"), is_well=True, bytes_per_s=1e9),)
    silent = CheckResult(check="group.silent", target="c", status="fail", message="no answer")
    fleet = FleetReport(seconds=3, nodes=(node("b", "fail"), node("a", "ok")), group=(silent,),
                        pairs=pairs, unfit=("b", "c"), past={"b": 2})  # fmt: skip
    path = tmp_path / "fleet.json"
    path.write_bytes(msgspec.json.encode(fleet))
    return str(path)


def test_a_written_report_is_shown_again_whole_or_one_node_of_it(msctl, tmp_path):
    path = fleet_file(tmp_path)
    whole = msctl("selfcheck", "show", path)
    assert whole.out.startswith("UNFIT  2 of 3 nodes: b c")
    assert "b\tfail\tgpu.ecc gpu3: 2 errors\t2\t8 GPUs" in whole.out
    one = msctl("selfcheck", "show", path, "--node", "b")
    assert one.out.startswith("UNFIT  b: 8 GPUs")
    absent = msctl("selfcheck", "show", path, "--node", "c", "--json")
    assert json.loads(absent.out)["results"][0]["message"] == "no answer"
    wrong = msctl("selfcheck", "show", path, "--node", "d")
    assert wrong.code == 3
    assert "there is no node 'd'" in wrong.err
    (tmp_path / "x.json").write_text("{}")
    assert msctl("selfcheck", "show", str(tmp_path / "x.json")).code == 3


def test_history_shows_earlier_looks(msctl, tmp_path):
    from engine.health.history import remember

    result = CheckResult(check="gpu.ecc", status="fail", message="2 errors")
    report = NodeReport(node="n1", machine="", profile="", level="light", time_s=86400.0, seconds=1,
                        results=(result,))  # fmt: skip
    remember(tmp_path, [report])
    ended = msctl("selfcheck", "history", "n1", "--state", str(tmp_path))
    assert ended.out.splitlines()[1] == (
        "1970-01-02 00:00:00\tn1\tlight\tfail\tgpu.ecc node: 2 errors"
    )
    assert msctl("selfcheck", "history", "n2", "--state", str(tmp_path)).out.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [(["--suite", "pair"], 3, "are for many nodes"), (["--all-pairs"], 3, "are for many nodes"),
     (["--bisect"], 3, "--on local, hosts, slurm or k8s"),
     (["--on", "hosts"], 3, "--on hosts names no nodes"),
     (["--on", "k8s"], 3, "--on k8s names no pods"),
     (["--on", "slurm", "--job", "x"], 5, "not the id of a job"),
     (["--suite", "all"], 2, "--suite"), (["--level", "deep"], 2, "--level"),
     (["--profiles", "/nonexistent.toml"], 3, "nonexistent"),
     (["--folder", "/nonexistent"], 5, "/nonexistent: disk checks cannot write there"),
     (["--state", "/proc/nope"], 5, "/proc/nope: cannot hold counters"),
     (["--on", "local", "--folder", "/tmp"], 3, "are for one node"),
     (["--profile", "h900"], 3, "h900"), (["--recording", "/nonexistent.json"], 3, "not a record")],
)  # fmt: skip
def test_wrong_options_are_errors_with_a_remedy(msctl, tmp_path, options, code, what):
    state = [] if "--state" in options else ["--state", str(tmp_path)]
    ended = msctl("selfcheck", *options, *state)
    assert ended.code == code, ended.err
    assert what in ended.err
    assert ended.out == ""
