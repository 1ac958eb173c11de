"""The array's script; and a job on a real Slurm that loses a node, drains it and finishes."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.comm.embedded_redis import find_server
from engine.errors import MissingError, RecipeError
from engine.job.driver import Driver, Watch
from engine.job.incident import read_recoveries
from engine.job.remote import RemotePlace
from engine.job.slurm import JOB, SlurmLauncher, _ranges, script
from engine.spec.job import JobSpec
from engine.spec.places import SlurmSpec
from engine.train.metrics import StepMetrics, read_metrics
from tests.engine.health.slurm_cluster import PROGRAMS, Cluster
from tests.engine.health.test_slurm import _free_ports
from tests.engine.job.test_driver import made
from tests.engine.train.single import recipe


def test_the_script_is_an_array_of_nodes_and_spares_and_holds_no_secret(tmp_path: Path):
    one = msgspec.structs.replace(recipe(), job=JobSpec(nodes=4, spares=2))
    text = script(one, tmp_path, python="python3")
    assert "#SBATCH --array=0-5\n" in text
    assert "#SBATCH --requeue\n" in text
    assert "--gres" not in text
    assert f"python3 -m engine.job.join {tmp_path} &" in text
    assert "password" not in text
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


ODD = """a b$(touch pwned)"'`c`#%j;&"""


def test_no_word_of_a_folder_is_run_or_read_as_an_option(tmp_path: Path):
    run = tmp_path / ODD
    run.mkdir()
    shim = tmp_path / "py thon"
    shim.write_text('#!/bin/sh\nprintf "%s" "$3" > said\n')
    shim.chmod(0o755)
    text = script(recipe(), run, python=str(shim))
    subprocess.run(["sh", "-s"], input=text, text=True, check=True, cwd=tmp_path)
    assert (tmp_path / "said").read_text() == str(run)
    assert not (tmp_path / "pwned").exists()
    (line,) = [line for line in text.splitlines() if line.startswith("#SBATCH --output=")]
    # as sbatch cuts a line: shlex knows the same escapes, quotes and comments
    _, option = shlex.split(line.removeprefix("#"), comments=True)
    assert option == f"--output={run}/log/slurm-%a.log".replace("%j", "%%j")


@pytest.mark.parametrize("name", ["a\nb", "a\\b", "a\tb", "a\rb"])
def test_a_folder_that_sbatch_cannot_be_given_is_refused(tmp_path: Path, name: str):
    with pytest.raises(RecipeError, match="Slurm takes no"):
        script(recipe(), tmp_path / name)


def test_a_recipe_for_gpus_asks_for_them(tmp_path: Path):
    one = recipe(train={"device": "cuda"})
    assert "#SBATCH --gres=gpu:1\n" in script(one, tmp_path)


def test_without_slurm_it_says_what_is_missing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="sbatch is not installed"):
        SlurmLauncher(recipe()).start(tmp_path, 1)


@pytest.mark.multi
@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("sbatch: fatal: Could not establish a configuration source", "scontrol ping"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("sbatch: error: Invalid account or account/partition", "may submit jobs"),
    ],
)
def test_the_hint_fits_what_slurm_says(tmp_path: Path, monkeypatch, said: str, remedy: str):
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(MissingError, match="sbatch --parsable") as caught:
        SlurmLauncher(recipe()).start(tmp_path, 1)
    assert remedy in caught.value.remedy


@pytest.fixture
def cluster(monkeypatch):
    missing = [p for p in PROGRAMS if shutil.which(p) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and Slurm; not here: {', '.join(missing) or 'root'}")
    try:
        find_server()
    except MissingError as error:
        pytest.skip(error.what)
    base = Path(tempfile.mkdtemp(prefix="ms-", dir="/tmp"))  # short: it holds sockets
    made = Cluster(base, "#!/bin/sh\nexit 0\n", port=_free_ports(9), interval_s=600)
    monkeypatch.setenv("SLURM_CONF", made.env["SLURM_CONF"])
    yield made
    made.call("scancel", "--user=root", must=False)
    made.stop()


@pytest.mark.multi
@pytest.mark.slow
def test_the_next_driver_finds_the_array_and_submits_no_second(cluster: Cluster, tmp_path: Path):
    one = msgspec.structs.replace(recipe(), job=JobSpec(nodes=4, spares=1))

    def queued() -> str:
        return cluster.call("squeue", "-h", "-r", "-o", "%A %T")

    first = SlurmLauncher(one)
    first.start(tmp_path, 5)
    assert len(queued().splitlines()) == 5
    again = SlurmLauncher(one)
    again.start(tmp_path, 5)
    assert again.jobs == first.jobs
    assert len(queued().splitlines()) == 5
    third = SlurmLauncher(one)
    third.adopt(tmp_path)
    third.stop()
    assert not (tmp_path / JOB).exists()
    end = time.monotonic() + 60
    while "RUNNING" in queued() or "PENDING" in queued():
        assert time.monotonic() < end, queued()
        time.sleep(0.2)
    third.start(tmp_path, 5)
    assert third.jobs != first.jobs


@pytest.mark.multi
@pytest.mark.slow
def test_only_tasks_that_have_ended_are_submitted_again(cluster: Cluster, tmp_path: Path):
    """One node of a job that nobody drove any more ran into its time limit, say."""
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\necho "$MSCTL_SAID" > {tmp_path}/said\nsleep 60\n')
    shim.chmod(0o755)
    one = msgspec.structs.replace(
        recipe(),
        job=JobSpec(nodes=4, spares=1),
        slurm=SlurmSpec(options=("--time=30", '--comment=5 "nodes" #1', "--job-name=llm"),
                        setup=("export MSCTL_SAID=yes",), python=str(shim)),
    )  # fmt: skip

    def tasks() -> list[str]:
        return sorted(cluster.call("squeue", "-h", "-r", "-o", "%K %j %l %k").splitlines())

    first = SlurmLauncher(one)
    first.start(tmp_path, 5)
    assert tasks() == [f'{index} llm 30:00 5 "nodes" #1' for index in range(5)]
    said = tmp_path / "said"
    cluster.wait(lambda: said.exists() and said.read_text() == "yes\n", "a task to run")
    cluster.call("scancel", f"{first.jobs[0]}_1", f"{first.jobs[0]}_4")
    cluster.wait(lambda: len(tasks()) == 3, "two tasks to end")
    again = SlurmLauncher(one)
    again.start(tmp_path, 5)
    assert len(again.jobs) == 2
    assert [line.split()[0] for line in tasks()] == ["0", "1", "2", "3", "4"]
    last = SlurmLauncher(one)
    last.adopt(tmp_path)
    assert last.jobs == again.jobs
    last.stop()
    cluster.wait(lambda: not tasks(), "all tasks to end")


@pytest.mark.multi
@pytest.mark.slow
def test_more_nodes_than_slurm_takes_in_an_array(cluster: Cluster, tmp_path: Path):
    many = msgspec.structs.replace(recipe(), job=JobSpec(nodes=1500, spares=1))
    with pytest.raises(MissingError, match="Invalid job array") as caught:
        SlurmLauncher(many).start(tmp_path, 1501)
    assert "MaxArraySize" in caught.value.remedy


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_name_the_same_tasks(indices: set[int]):
    found: list[int] = []
    for part in _ranges(sorted(indices)).split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(indices)


@pytest.mark.multi
@pytest.mark.slow
def test_an_odd_folder_is_where_slurm_writes_its_log(cluster: Cluster, tmp_path: Path):
    run = tmp_path / ODD
    (run / "log").mkdir(parents=True)
    (run / "slurm.sh").write_text(script(recipe(), run, python="echo"))
    cluster.call("sbatch", str(run / "slurm.sh"))
    log = run / "log" / "slurm-0.log"
    cluster.wait(lambda: log.exists() and log.read_text() != "", "the log")
    assert log.read_text() == f"-m engine.job.join {run}\n"


@pytest.mark.parametrize("text", ["", "12; rm -rf", "１２", "-3", "1 2 x", "x" * 10_000])
def test_a_number_of_an_array_that_is_none_is_not_used(tmp_path: Path, text: str):
    (tmp_path / JOB).write_text(text)
    launcher = SlurmLauncher(recipe())
    launcher.adopt(tmp_path)
    assert launcher.jobs == ()


def processes_on(node: str) -> list[int]:
    """Everything that Slurm started on a virtual node, its daemon included."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (path / "environ").read_bytes().split(b"\0")
            words = (path / "cmdline").read_bytes().split(b"\0")
            daemon = words[0].endswith(b"slurmd") and node.encode() in words
            if daemon or f"SLURMD_NODENAME={node}".encode() in environ:
                found.append(int(path.name))
    return found


@pytest.mark.multi
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_loses_a_node_drains_it_and_finishes(cluster: Cluster, tmp_path: Path):
    job = {"nodes": 4, "spares": 1, "check": "none", "start_s": 300.0}
    one = made(40, dp=4, checkpoint={"every": 4}, job=job, data={"loader": "rank"},
               train={"store": "redis", "steps": 40})  # fmt: skip
    lost: list[str] = []

    def on_step(metrics: StepMetrics) -> None:
        if metrics.step >= 6 and not lost:
            lost.append(driver.order[2])
            for pid in processes_on(lost[0]):
                os.kill(pid, signal.SIGKILL)

    launcher = SlurmLauncher(one)
    place = RemotePlace(launcher, host="127.0.0.1")
    run = tmp_path / "run"
    driver = Driver(one, run, Watch(on_step=on_step), place=place)
    result = driver.run(steps=0, resume="auto")
    assert (result.ended, result.steps, result.restarts) == ("done", 40, 1)
    assert len(lost) == 1
    (recovery,) = read_recoveries(run)
    assert recovery.incident.nodes == (lost[0],)
    assert recovery.decision is not None
    assert recovery.decision.evict == (lost[0],)
    assert lost[0] not in driver.order
    assert cluster.states()[lost[0]] in ("drain", "drng", "down")
    assert "msctl:" in cluster.reason(lost[0])
    assert [m.step for m in read_metrics(run / "metrics.jsonl")] == list(range(1, 41))
