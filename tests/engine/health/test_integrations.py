"""The scripts in integrations/, with stand-ins for msctl and scontrol."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SLURM = ROOT / "integrations" / "slurm"


@pytest.fixture
def node(tmp_path):
    """Run a script on a node whose check ends with `code`; gives the scontrol commands."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "scontrol").write_text(
        '#!/bin/sh\nif [ "$1" = show ]; then cat "$FAKE/shown"; else echo "$*" >>"$FAKE/log"; fi\n'
    )
    (bin_ / "msctl").write_text('#!/bin/sh\necho "gpu.ecc gpu3: 2 errors"; exit "$CODE"\n')
    for program in bin_.iterdir():
        program.chmod(0o755)

    def run(script, code, shown="State=IDLE"):
        (tmp_path / "shown").write_text(shown)
        (tmp_path / "log").write_text("")
        env = {
            "PATH": f"{bin_}:/usr/bin:/bin", "MSCTL": str(bin_ / "msctl"), "CODE": str(code),
            "FAKE": str(tmp_path), "MSCTL_STATE": str(tmp_path / "state"), "SLURMD_NODENAME": "n7",
        }  # fmt: skip
        ended = subprocess.run(
            [SLURM / script], env=env, capture_output=True, text=True, timeout=60
        )
        return ended, (tmp_path / "log").read_text().splitlines()

    return run


@pytest.mark.multi
def test_a_sick_node_is_drained_once_and_resumed_when_well(node):
    ended, log = node("msctl-healthcheck", 2)
    assert ended.returncode == 0
    assert log == ["update nodename=n7 state=drain reason=msctl: gpu.ecc gpu3: 2 errors"]
    drained = "State=IDLE+DRAIN Reason=msctl: gpu.ecc gpu3: 2 errors"
    assert node("msctl-healthcheck", 2, drained)[1] == []
    assert node("msctl-healthcheck", 0, drained)[1] == ["update nodename=n7 state=resume"]
    assert node("msctl-healthcheck", 0)[1] == []


@pytest.mark.multi
def test_what_somebody_else_drained_stays_drained(node):
    theirs = "State=IDLE+DRAIN Reason=replace fan"
    assert node("msctl-healthcheck", 2, theirs)[1] == []
    assert node("msctl-healthcheck", 0, theirs)[1] == []


@pytest.mark.multi
def test_an_error_of_the_check_drains_and_a_warning_does_not(node):
    assert node("msctl-healthcheck", 3)[1] != []
    assert node("msctl-healthcheck", 1, "State=IDLE")[1] == []


@pytest.mark.multi
@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 0), (2, 1), (3, 0)])
def test_the_prolog_refuses_only_unfit_nodes_and_calls_no_scheduler(node, code, ends):
    ended, log = node("msctl-prolog", code)
    assert ended.returncode == ends
    assert log == []


def test_the_plugin_of_node_problem_detector_uses_its_exit_codes():
    text = (ROOT / "integrations" / "kubernetes" / "node-problem-detector.json").read_text()
    (rule,) = json.loads(text)["rules"]
    assert rule["args"][-2:] == ["--exit", "npd"]
