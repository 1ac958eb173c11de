"""The driver with real ranks: how runs end, who is blamed, what is left running (nothing)."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.comm.listen import listening_socket
from engine.errors import CheckpointError, MissingError, RunFailed
from engine.job.driver import Driver, Watch
from engine.job.incident import incident_folder, read_recoveries
from engine.job.place import LocalPlace
from engine.job.run import RunResult, read_result
from engine.spec.layout import ParallelLayout
from engine.spec.recipe import Recipe
from engine.train.metrics import StepMetrics, read_metrics
from tests.engine.train.single import numbers, recipe

pytestmark = pytest.mark.multi
ENDLESS = 1_000_000


def made(steps: int = 4, dp: int = 2, **sections: dict) -> Recipe:
    train = {"steps": steps} | sections.pop("train", {})
    one = recipe(train=train, batch={"micro_batch": 1}, **sections)
    return msgspec.structs.replace(one, layout=ParallelLayout(dp=dp))


def fragile(steps: int = ENDLESS, **more) -> Recipe:
    """A run that nobody mends."""
    return made(steps, job={"restarts": 0}, **more)


def processes_of(folder: Path) -> dict[str, int]:
    """Name of the log -> process, for every process that writes into a run's logs."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            target = Path(os.readlink(path))
            if target.parent == folder.resolve() / "log":
                found[target.name] = int(path.parts[2])
    return found


def drive(
    folder: Path, wanted: Recipe, *, at: int = 0, do: Callable[[], None] = lambda: None,
    resume: str = "auto",
) -> RunResult:  # fmt: skip
    """Run it; call `do` when step `at` has ended for the first time: a restart may repeat it."""
    done: list[int] = []

    def on_step(metrics: StepMetrics) -> None:
        if metrics.step == at and not done:
            done.append(at)
            do()

    return Driver(wanted, folder, Watch(on_step=on_step)).run(steps=0, resume=resume)


def kill(folder: Path, log: str, number: int) -> Callable[[], None]:
    return lambda: os.kill(processes_of(folder)[log], number)


def interrupt(times: int = 1) -> Callable[[], None]:
    def send() -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    return send


def test_a_run_ends_well_and_says_how_it_went(tmp_path: Path):
    notes: list[str] = []
    seen: list[StepMetrics] = []
    watch = Watch(on_step=seen.append, on_note=notes.append)
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    result = Driver(made(), tmp_path, watch).run(steps=0, resume="auto")
    assert (result.ended, result.steps, result.total_steps) == ("done", 4, 4)
    assert result.tokens == 4 * 4 * 8
    assert seen == read_metrics(tmp_path / "metrics.jsonl")
    assert result.loss == seen[-1].loss
    assert result.val_loss == seen[-1].val_loss
    assert 0 < result.start_s < result.seconds
    assert read_result(tmp_path) == result
    assert any("nursery ready" in note for note in notes)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert processes_of(tmp_path) == {}
    again = Driver(made(), tmp_path, Watch(on_step=seen.append)).run(steps=0, resume="auto")
    assert (again.ended, again.steps, again.loss) == ("done", 4, result.loss)
    assert len(seen) == 4, "nothing was left to do"


def test_a_killed_rank_is_named_and_nothing_is_left_running(tmp_path: Path):
    with pytest.raises(RunFailed) as caught:
        drive(tmp_path, fragile(), at=2, do=kill(tmp_path, "rank-00001.log", signal.SIGKILL))
    assert "rank 1 was ended by SIGKILL" in caught.value.what
    assert "dmesg" in caught.value.remedy
    assert processes_of(tmp_path) == {}
    result = read_result(tmp_path)
    assert result is not None
    assert (result.ended, result.cause) == ("failed", "rank 1 was ended by SIGKILL")


def test_a_rank_that_hangs_after_another_died_is_ended_too(tmp_path: Path):
    def stop_one_and_kill_one() -> None:
        kill(tmp_path, "rank-00000.log", signal.SIGSTOP)()
        kill(tmp_path, "rank-00002.log", signal.SIGKILL)()

    with pytest.raises(RunFailed, match="rank 2 was ended by SIGKILL"):
        drive(tmp_path, fragile(dp=4), at=2, do=stop_one_and_kill_one)
    assert processes_of(tmp_path) == {}


def test_an_exception_in_one_rank_is_named_not_what_it_did_to_the_others(tmp_path: Path):
    (tmp_path / "events" / "rank-00001.jsonl").mkdir(parents=True)
    begin = time.monotonic()
    with pytest.raises(RunFailed) as caught:
        drive(tmp_path, made(monitor={"events": True}))
    assert "rank 1: IsADirectoryError" in caught.value.what
    assert time.monotonic() - begin < 200, "the others are not waited for until they time out"


def test_a_loss_that_explodes_keeps_the_trainers_remedy(tmp_path: Path):
    with pytest.raises(RunFailed, match="not finite") as caught:
        drive(tmp_path, fragile(4, optimizer={"lr": 1e30, "clip_norm": 0.0}))
    assert "lower optimizer.lr" in caught.value.remedy


def test_a_checkpoint_that_is_not_there_is_a_fault_of_the_input(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no committed checkpoint of step 77"):
        drive(tmp_path, made(), resume="77")


def test_a_killed_rank_is_mended_and_the_numbers_are_those_of_a_quiet_run(tmp_path: Path):
    one = made(40, checkpoint={"every": 4}, job={"check": "none"}, monitor={"events": True})
    whole, hurt = tmp_path / "whole", tmp_path / "hurt"
    assert drive(whole, one).restarts == 0
    result = drive(hurt, one, at=10, do=kill(hurt, "rank-00001.log", signal.SIGKILL))
    assert (result.ended, result.steps, result.restarts) == ("done", 40, 1)
    both = [numbers(read_metrics(folder / "metrics.jsonl")) for folder in (hurt, whole)]
    assert both[0] == both[1]
    (recovery,) = read_recoveries(hurt)
    assert (recovery.incident.kind, recovery.incident.ranks) == ("crash", (1,))
    assert recovery.resumed_from % 4 == 0
    assert recovery.steps_lost == recovery.incident.step - recovery.resumed_from
    assert recovery.verdict
    evidence = incident_folder(hurt, 1)
    assert "rank 1" in (evidence / "verdict.txt").read_text()
    assert (evidence / "events" / "rank-00000.jsonl").exists() == one.monitor.events
    assert processes_of(hurt) == {}


def test_a_nursery_that_is_gone_is_replaced(tmp_path: Path):
    one = made(30, checkpoint={"every": 4}, job={"check": "none"})
    result = drive(tmp_path, one, at=10, do=kill(tmp_path, "nursery.log", signal.SIGKILL))
    assert (result.ended, result.steps, result.restarts) == ("done", 30, 1)


def test_a_taken_port_is_found_before_anything_starts(tmp_path: Path):
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        train = msgspec.structs.replace(made().train, port=port)
        begin = time.monotonic()
        with pytest.raises(MissingError, match=f"train.port = {port}"):
            drive(tmp_path, msgspec.structs.replace(made(), train=train))
    assert time.monotonic() - begin < 10
    assert not (tmp_path / "log").exists()


def test_an_interrupted_run_saves_and_goes_on_bitwise(tmp_path: Path):
    one = made(80, dp=1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    result = drive(cut, one, at=3, do=interrupt())
    assert result.ended == "interrupted"
    assert 3 <= result.steps < 80
    assert (cut / "ckpt" / f"step-{result.steps:08d}").is_dir()
    assert drive(cut, one).ended == "done"
    assert drive(whole, one).ended == "done"
    both = [numbers(read_metrics(folder / "metrics.jsonl")) for folder in (cut, whole)]
    assert both[0] == both[1]


def test_sigterm_stops_a_run_as_an_interrupt_does(tmp_path: Path):
    """What a batch system sends before it kills."""
    result = drive(tmp_path, made(ENDLESS), at=2, do=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert result.ended == "interrupted"
    assert (tmp_path / "ckpt" / f"step-{result.steps:08d}").is_dir()


def test_a_second_interrupt_ends_at_once(tmp_path: Path):
    result = drive(tmp_path, made(ENDLESS), at=2, do=interrupt(2))
    assert result.ended == "interrupted"
    assert not (tmp_path / "ckpt").exists()
    assert processes_of(tmp_path) == {}


def test_an_interrupt_before_any_rank_runs_starts_none(tmp_path: Path):
    timer = threading.Timer(0.3, interrupt())
    timer.start()
    result = drive(tmp_path, made(ENDLESS))
    timer.join()
    assert (result.ended, result.steps, result.cause) == (
        "interrupted",
        0,
        "the ranks did not start",
    )
    assert not list((tmp_path / "log").glob("rank-*"))


def test_a_nursery_that_is_gone_is_a_failed_run_not_a_done_one(tmp_path: Path):
    with pytest.raises(RunFailed) as caught:
        drive(tmp_path, fragile(), at=2, do=kill(tmp_path, "nursery.log", signal.SIGKILL))
    assert "the process that forks ranks ended with code -9" in caught.value.what
    assert "nursery.log" in caught.value.remedy
    end = time.monotonic() + 20
    while processes_of(tmp_path):
        assert time.monotonic() < end, "ranks outlive their nursery"
        time.sleep(0.05)


def test_an_executor_that_cannot_start_is_not_waited_for(tmp_path: Path):
    """Nobody else comes on this machine: five minutes of waiting would end the same way."""
    place = LocalPlace(wrap=lambda node: ["false"])
    with pytest.raises(RunFailed) as caught:
        Driver(made(), tmp_path, Watch(), place=place).run(steps=0, resume="auto")
    assert caught.value.what.endswith(": 0 of 1 nodes came; local: its executor is gone")
    assert "executor*.log" in caught.value.remedy


def test_ranks_that_a_scheduler_stops_save_and_the_run_is_not_called_done(tmp_path: Path):
    def stop_ranks() -> None:
        for name, pid in processes_of(tmp_path).items():
            if name.startswith("rank-"):
                os.kill(pid, signal.SIGTERM)

    result = drive(tmp_path, made(ENDLESS), at=2, do=stop_ranks)
    assert result.ended == "interrupted"
    assert (tmp_path / "ckpt" / f"step-{result.steps:08d}").is_dir()
