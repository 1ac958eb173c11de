"""Lists of nodes and trees of switches, then a real controller with eight virtual nodes."""

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from engine.errors import MissingError
from engine.health.export import write_recording
from engine.health.slurm import expand, slurm_nodes, slurm_switches
from tests.engine.health.machines import machine
from tests.engine.health.slurm_cluster import NODES, PROGRAMS, Cluster

ROOT = Path(__file__).resolve().parents[3]
_HEALTH = """\
#!/bin/sh
# What a node finds when it looks at itself: a recorded machine, sick while a file says so.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin SLURM_CONF={base}/slurm.conf MSCTL={base}/msctl
export MSCTL_STATE={base}/look/$SLURMD_NODENAME
case $SLURMD_NODENAME in n1|n3|n8) ;; *) exit 0 ;; esac  # three looks at a time are load enough
echo . >>{base}/looks-$SLURMD_NODENAME
exec {root}/integrations/slurm/msctl-healthcheck
"""
_MSCTL = """\
#!/bin/sh
kind=well
[ -e {base}/sick-$SLURMD_NODENAME ] && kind=sick
cd {root} && exec {python} -m msctl "$@" --recording {base}/$kind.json
"""


@pytest.mark.parametrize(
    ("names", "expected"),
    [("n1", ["n1"]), ("n[1-3]", ["n1", "n2", "n3"]), ("n[08-10],m7", ["n08", "n09", "n10", "m7"]),
     ("a[1,3-4]-ib,b", ["a1-ib", "a3-ib", "a4-ib", "b"]), ("", []), ("n[x-2]", [])],
)  # fmt: skip
def test_lists_of_nodes_are_written_out(names, expected):
    assert expand(names) == expected


def test_leaf_switches():
    text = (
        "SwitchName=tor0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-2] Switches=tor0\n"
    )
    assert slurm_switches(text) == {"n1": "tor0", "n2": "tor0"}


def test_what_is_no_job_is_refused_before_slurm_is_asked():
    with pytest.raises(MissingError, match="not the id of a job"):
        slurm_nodes("1; rm -rf x")


@pytest.fixture(scope="module")
def cluster():
    missing = [p for p in PROGRAMS if shutil.which(p) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and Slurm; not here: {', '.join(missing) or 'root'}")
    base = Path(tempfile.mkdtemp(prefix="ms-", dir="/tmp"))  # short: it holds sockets
    write_recording(base / "well.json", machine("h100")[0])
    write_recording(base / "sick.json", machine("h100", {"gpus": {"3": {"pcie_width": 8}}})[0])
    (base / "look").mkdir()
    program = base / "msctl"
    program.write_text(_MSCTL.format(base=base, root=ROOT, python=sys.executable))
    program.chmod(0o755)
    made = Cluster(base, _HEALTH.format(base=base, root=ROOT), port=_free_ports(9), interval_s=5)
    yield made
    made.stop()


def _free_ports(count: int) -> int:
    """The first of so many neighbouring ports that are free now, below those given out freely."""
    for first in range(17000, 30000, count):
        made = []
        try:
            for port in range(first, first + count):
                made.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for one in made:
                one.close()
    raise AssertionError("no free ports")


@pytest.mark.multi
@pytest.mark.slow
def test_a_sick_node_is_drained_and_resumed_and_what_others_drained_stays(cluster):
    cluster.call("scontrol", "update", "nodename=n8", "state=drain", "reason=replace fan")
    for node in ("n3", "n8"):
        (cluster.base / f"sick-{node}").touch()
    cluster.wait(lambda: cluster.states().get("n3") == "drain", "the drain of n3")
    assert "msctl: gpu.pcie gpu3" in cluster.reason("n3")
    assert cluster.reason("n8") == "replace fan"
    for node in ("n3", "n8"):
        (cluster.base / f"sick-{node}").unlink()
    cluster.wait(lambda: cluster.states().get("n3") == "idle", "the return of n3")
    looks = cluster.base / "looks-n8"
    before = looks.stat().st_size
    cluster.wait(lambda: looks.stat().st_size >= before + 4, "two more looks at n8")
    states = cluster.states(must=True)
    assert states["n8"] == "drain"
    assert cluster.reason("n8") == "replace fan"
    assert {states[n] for n in NODES if n != "n8"} == {"idle"}


@pytest.mark.multi
@pytest.mark.slow
def test_the_nodes_and_switches_of_a_running_job_are_found(cluster, monkeypatch):
    from engine.health.allocation import Allocation, check_allocation, find_nodes
    from engine.health.fleet import Plan

    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    job = cluster.call(
        "sbatch", "--parsable", "-w", "n4,n5", "--wrap", "sleep 300", "-o", "/dev/null"
    )
    job = job.strip()
    try:
        cluster.wait(lambda: cluster.states().get("n4") in ("alloc", "mix"), "the job")
        where = Allocation(where="slurm", job=job)
        nodes, switch_of, _ = find_nodes(where)
        assert nodes == ["n4", "n5"]
        assert switch_of["n4"] == "tor0"
        assert switch_of["n5"] == "tor1"
        plan = Plan(only=("host.shm",), size_bytes=1 << 16, timeout_s=30)
        found = check_allocation(where, plan, say=lambda text: None)
        assert {node.node for node in found.nodes} == {"n4", "n5"}
        assert [pair.nodes for pair in found.pairs] == [("n4", "n5")]
        assert found.pairs[0].is_well
        assert found.unfit == ()
    finally:
        cluster.call("scancel", job)
