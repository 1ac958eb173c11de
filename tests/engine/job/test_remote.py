"""A job joined through Redis: it runs, and survives the death of its driver without a restart."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.comm.embedded_redis import EmbeddedRedis, find_server
from engine.comm.resp import Client, parse_url
from engine.errors import MissingError
from engine.job import remote
from engine.job.driver import Driver, Watch
from engine.job.incident import read_recoveries
from engine.job.keeper import find_or_start, has_keeper, read_join
from engine.job.processes import executor_of
from engine.job.remote import NoLauncher, ProcessLauncher, RemotePlace
from engine.job.run import prepare_folder
from engine.job.view import read_view
from engine.spec.load import load_recipe
from engine.train.metrics import read_metrics
from tests.engine.job.test_driver import made

pytestmark = [pytest.mark.multi, pytest.mark.slow]
STEPS = 250
_DRIVE = """
import sys
from pathlib import Path
from engine.job.driver import Driver, Watch
from engine.job.remote import ProcessLauncher, RemotePlace
from engine.spec.load import load_recipe
folder = Path(sys.argv[1])
place = RemotePlace(ProcessLauncher(), host="127.0.0.1", lease_s=1.0)
driver = Driver(load_recipe(folder / "recipe.toml"), folder, Watch(), place=place)
print(driver.run(steps=0, resume="auto").ended)
"""


@pytest.fixture(autouse=True)
def _server() -> None:
    """Every job here has a Redis of its own."""
    try:
        find_server()
    except MissingError as error:
        pytest.skip(error.what)


def wait_until(what: Callable[[], object], *, deadline_s: float = 150.0) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def steps(folder: Path) -> int:
    rows = read_metrics(folder / "metrics.jsonl")
    return rows[-1].step if rows else 0


def rank_pid(folder: Path, rank: int) -> int:
    log = str(folder / "log" / f"rank-{rank:05d}.log")
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if os.readlink(path) == log:
                return int(path.parts[2])
    raise AssertionError(f"nobody writes {log}")


def test_a_redis_that_has_no_room_for_all_ranks_is_refused_before_anything_starts(tmp_path: Path):
    one = made(STEPS, dp=4, job={"nodes": 2, "spares": 1})
    with EmbeddedRedis(host="127.0.0.1", durable=False) as server:
        train = msgspec.structs.replace(one.train, store=server.url_by_file)
        one = msgspec.structs.replace(one, train=train)
        client = Client(parse_url(server.url))
        place = RemotePlace(NoLauncher(), host="127.0.0.1")
        client.call(("CONFIG", "SET", "maxclients", 80))
        with (
            pytest.raises(MissingError, match="takes 80 clients, but 4 ranks on 3 nodes") as caught,
            place.store(one, tmp_path),
        ):
            pass
        assert "ulimit -n" in caught.value.remedy
        client.call(("CONFIG", "SET", "maxclients", 81))
        with place.store(one, tmp_path):
            assert place.token == 1


def test_a_redis_that_was_started_for_nothing_ends(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(remote, "_CLIENTS_OVER", 10**7)
    one = made(STEPS, dp=2, job={"nodes": 2}, train={"store": "redis"})
    place = RemotePlace(NoLauncher(), host="127.0.0.1")
    with pytest.raises(MissingError, match="need 100000"), place.store(one, tmp_path):
        pass
    wait_until(lambda: not (tmp_path / "join.json").exists())  # the keeper takes it along

    join = find_or_start(tmp_path, "j", "127.0.0.1")  # somebody's job
    with pytest.raises(MissingError, match="need 100000"), place.store(one, tmp_path):
        pass
    time.sleep(0.5)
    assert has_keeper(join)
    os.kill(join.keeper_pid, signal.SIGTERM)


def test_a_killed_driver_is_followed_by_one_that_restarts_nothing(tmp_path: Path):
    one = made(STEPS, checkpoint={"every": 50}, job={"nodes": 2}, data={"loader": "rank"})
    prepare_folder(tmp_path, one)
    first = subprocess.Popen([sys.executable, "-c", _DRIVE, str(tmp_path)])
    try:
        wait_until(lambda: steps(tmp_path) >= 3)
        wait_until(lambda: read_view(tmp_path).step >= 3)  # written twice a second
        carried = {n.node: n.ranks for n in read_view(tmp_path).nodes}
        assert carried == {"node-0": (0,), "node-1": (1,)}
        first.send_signal(signal.SIGSTOP)  # no longer in charge, though not dead
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        notes: list[str] = []
        place = RemotePlace(ProcessLauncher(), host="127.0.0.1", lease_s=1.0)
        second = Driver(load_recipe(tmp_path / "recipe.toml"), tmp_path,
                        Watch(on_note=notes.append), place=place)  # fmt: skip
        result = second.run(steps=0, resume="auto")
    finally:
        first.kill()
    assert (result.ended, result.steps, result.restarts) == ("done", STEPS, 0)
    assert any("took over a running job" in note for note in notes), notes
    assert second.token == 2
    assert second.attempt == 0, "no rank was started anew"
    assert read_recoveries(tmp_path) == []
    assert [m.step for m in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, STEPS + 1))
    wait_until(lambda: not (tmp_path / "join.json").exists())  # the job is over, so is its Redis


def test_a_rank_that_died_while_nobody_was_in_charge_is_named_by_the_next_driver(tmp_path: Path):
    one = made(40, checkpoint={"every": 5}, job={"nodes": 2}, data={"loader": "rank"})
    prepare_folder(tmp_path, one)
    first = subprocess.Popen([sys.executable, "-c", _DRIVE, str(tmp_path)])
    try:
        wait_until(lambda: steps(tmp_path) >= 3)
        os.kill(rank_pid(tmp_path, 0), signal.SIGKILL)
        wait_until(lambda: [r.stepped_s for r in read_recoveries(tmp_path)] not in ([], [None]))
        wait_until(lambda: steps(tmp_path) >= 12)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        os.kill(rank_pid(tmp_path, 1), signal.SIGKILL)
        wait_until(lambda: (tmp_path / "errors" / "rank-00000.json").exists())  # it lost its peer
        reached = steps(tmp_path)
        place = RemotePlace(ProcessLauncher(), host="127.0.0.1", lease_s=1.0)
        second = Driver(load_recipe(tmp_path / "recipe.toml"), tmp_path, Watch(), place=place)
        result = second.run(steps=0, resume="auto")
    finally:
        first.kill()
    assert (result.ended, result.steps) == ("done", 40)
    assert result.restarts == 2, "that of the first driver counts against the budget too"
    assert [one.ranks for one in second.recoverer.history] == [(0,), (1,)]
    _, recovery = read_recoveries(tmp_path)
    assert recovery.incident.ranks == (1,), "not the one that only lost its peer"
    assert recovery.incident.nodes == ("node-1",)
    assert recovery.incident.step == reached
    assert recovery.steps_lost == reached - recovery.resumed_from


def test_a_job_whose_redis_is_lost_for_good_ends_with_the_reason_and_can_be_started_again(
    tmp_path: Path,
):
    one = made(40, checkpoint={"every": 5}, job={"nodes": 2}, data={"loader": "rank"})
    prepare_folder(tmp_path, one)
    first = subprocess.Popen(
        [sys.executable, "-c", _DRIVE, str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: steps(tmp_path) >= 8)
        join = read_join(tmp_path / "join.json")
        pids = [rank_pid(tmp_path, rank) for rank in (0, 1)]
        shutil.rmtree(join.data)
        os.kill(join.keeper_pid, signal.SIGKILL)
        _, said = first.communicate(timeout=120)
    finally:
        first.kill()
    assert first.returncode != 0
    assert "the job's Redis is lost" in said
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    place = RemotePlace(ProcessLauncher(), host="127.0.0.1", lease_s=1.0)
    second = Driver(load_recipe(tmp_path / "recipe.toml"), tmp_path, Watch(), place=place)
    result = second.run(steps=0, resume="auto")
    assert (result.ended, result.steps) == ("done", 40)
    wait_until(lambda: not (tmp_path / "join.json").exists())


def test_a_launcher_that_takes_over_brings_nodes_back_into_the_same_folder(tmp_path: Path):
    (tmp_path / "log").mkdir()
    for name in ("node-0", "node-1", "node-1.1", "node-1.2", "node-2.1"):
        (tmp_path / "log" / f"executor-{name}.log").touch()
    launcher = ProcessLauncher(wrap=lambda node: ["true", node], comes_back=True)
    launcher.adopt(tmp_path)
    for node in ("node-0", "node-1.2", "node-2.1"):
        launcher.replace(node, "lost")
    launcher.stop()
    assert set(launcher.processes) == {"node-0.1", "node-1.3", "node-2.2"}
    assert (tmp_path / "log" / "executor-node-1.3.log").exists()


def test_a_launcher_that_took_over_ends_executors_of_the_driver_before_it(tmp_path: Path):
    (tmp_path / "log").mkdir()
    first = ProcessLauncher()
    first.start(tmp_path, 1)
    pid = first.processes["node-0"].pid
    wait_until(lambda: executor_of(tmp_path, "node-0") == pid)
    os.kill(pid, signal.SIGSTOP)
    second = ProcessLauncher()
    second.adopt(tmp_path)
    second.replace("node-0", "lost")
    assert first.processes["node-0"].wait(10) == -signal.SIGKILL
    assert executor_of(tmp_path, "node-0") == 0
    second.replace("node-0", "lost")  # nobody is left
