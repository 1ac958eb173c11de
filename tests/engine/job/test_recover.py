"""Recovery with several nodes, real processes: a lost node is replaced, replicas are given up."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.ckpt.catalog import catalog
from engine.job.driver import Driver, Watch
from engine.job.incident import read_recoveries
from engine.job.place import LocalPlace
from engine.processes import family_of
from engine.spec.recipe import Recipe
from engine.train.metrics import StepMetrics, read_metrics
from tests.engine.job.test_driver import made, processes_of
from tests.engine.train.single import numbers

pytestmark = [pytest.mark.multi, pytest.mark.slow]
STEPS = 100
"""Enough of them that ranks are not done before a driver on a busy machine sees the sixth."""


class Rigid(LocalPlace):
    """A place that has no nodes but the first ones."""

    can_start = 0


def drive(folder: Path, one: Recipe, *, at: int, do: Callable[[Driver], None],
          place: LocalPlace) -> Driver:  # fmt: skip
    def on_step(metrics: StepMetrics) -> None:
        if metrics.step >= at and not done:
            done.append(1)
            do(driver)

    done: list[int] = []
    driver = Driver(one, folder, Watch(on_step=on_step), place=place)
    driver.run(steps=0, resume="auto")
    return driver


def kill_last_node(driver: Driver) -> None:
    """Of those that carry ranks: which of three nodes are warm first is not certain."""
    for pid in family_of(driver.place.pid(driver.order[-1])):
        os.kill(pid, signal.SIGKILL)


def test_a_spare_takes_the_place_of_a_lost_node_and_the_numbers_stay(tmp_path: Path):
    one = made(STEPS, checkpoint={"every": 4}, job={"nodes": 2, "spares": 1, "check": "none"})
    whole = Driver(made(STEPS), tmp_path / "whole", Watch()).run(steps=0, resume="auto")
    hurt = drive(tmp_path / "hurt", one, at=6, do=kill_last_node, place=LocalPlace())
    stayed, lost = hurt.nodes_of_start[0]
    (spare,) = {"node-0", "node-1", "node-2"} - {stayed, lost}
    assert hurt.order == [stayed, spare]
    (recovery,) = read_recoveries(tmp_path / "hurt")
    assert (recovery.incident.kind, recovery.incident.nodes) == ("node", (lost,))
    assert recovery.decision is not None
    assert (recovery.decision.evict, recovery.decision.take) == ((lost,), (spare,))
    both = [numbers(read_metrics(tmp_path / f / "metrics.jsonl")) for f in ("whole", "hurt")]
    assert both[0] == both[1]
    assert whole.steps == STEPS
    assert processes_of(tmp_path / "hurt") == {}


def test_without_a_node_to_replace_it_replicas_are_given_up_and_the_batch_is_kept(tmp_path: Path):
    one = made(STEPS, checkpoint={"every": 4}, job={"nodes": 2, "check": "none"})
    hurt = drive(tmp_path, one, at=6, do=kill_last_node, place=Rigid())
    assert hurt.order == ["node-0"]
    assert hurt.recipe.layout.dp == 1
    assert hurt.recipe.batch == one.batch
    assert [m.step for m in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, STEPS + 1))
    assert catalog(tmp_path / "ckpt")[-1].step == STEPS
