"""Scores: a fault is matched with what was noticed after it, and judged by what happened then."""

import subprocess
import time

import msgspec
import pytest
import torch

from engine.ckpt.catalog import describe
from engine.ckpt.store import open_store
from engine.health.heartbeat import RankBeat
from engine.job.drills import Drills, score_of, tear_checkpoint
from engine.job.driver import Watch
from engine.job.incident import Decision, Incident, Recovery
from engine.job.nodes import Node, Nodes
from engine.train.drill import parse_fault
from tests.engine.ckpt.state import dense, save
from tests.engine.train.single import recipe

NODES = {0: ("a", "b")}
RESTART = Decision(kind="restart", why="x")


def recovery(t_s: float, *, ranks=(3,), nodes=("b",), kind="crash", decided=True, stepped=2.0):
    incident = Incident(kind=kind, what="w", ranks=ranks, nodes=nodes, time_s=t_s)
    return Recovery(incident=incident, decision=RESTART if decided else None, detected_by="exit",
                    stepped_s=stepped, steps_lost=4)  # fmt: skip


def test_the_right_rank_after_the_fault_passes():
    score = score_of(
        parse_fault("kill:rank=3@step=5"), 10.0, [recovery(9.0), recovery(10.5)], NODES
    )
    assert score.is_passed
    assert (score.detected_s, score.recovered_s, score.steps_lost) == (0.5, 2.5, 4)


def test_the_wrong_rank_or_no_new_step_does_not():
    fault = parse_fault("kill:rank=3@step=5")
    assert not score_of(fault, 10.0, [recovery(11.0, ranks=(2,))], NODES).is_passed
    assert not score_of(fault, 10.0, [recovery(11.0, stepped=None)], NODES).is_passed
    assert not score_of(fault, 10.0, [], NODES).is_passed
    assert not score_of(fault, None, [recovery(11.0)], NODES).came


def test_a_lost_node_is_named_by_its_place():
    fault = parse_fault("node-kill:node=1@step=5")
    assert score_of(fault, 1.0, [recovery(2.0, kind="node", ranks=(2, 3))], NODES).is_passed
    assert not score_of(fault, 1.0, [recovery(2.0, kind="node", nodes=("a",))], NODES).is_passed


def test_what_must_not_restart_anything_passes_only_then():
    fault = parse_fault("redis-kill@step=5")
    assert score_of(fault, 1.0, [], NODES).is_passed
    assert score_of(fault, 1.0, [recovery(2.0, kind="slow", decided=False)], NODES).is_passed
    assert not score_of(fault, 1.0, [recovery(2.0)], NODES).is_passed


def test_a_torn_checkpoint_is_one_whose_largest_file_is_half(tmp_path):
    assert not tear_checkpoint(tmp_path / "none")  # nothing to tear is no error
    assert not tear_checkpoint("memory://drill/ckpt")
    for step in (1, 2):
        save(tmp_path, step, 1, 1, dense(torch.float32))
    store = open_store(tmp_path)
    whole = max(found.bytes for found in store.files("step-00000002"))
    assert tear_checkpoint(tmp_path)
    assert describe(store, "step-00000001").state == "committed"
    assert describe(store, "step-00000002").state == "damaged"
    assert f"{whole // 2} bytes instead of {whole}" in describe(store, "step-00000002").why


class Stand:
    """What `Drills` asks of a driver of one rank, which is this test's child."""

    def __init__(self, folder, child, **sections):
        self.folder, self.recipe = folder, recipe(**sections)
        self.state, self.newest_step, self.server = "running", 5, None
        self.is_early = True
        self.order, self.nodes_of_start, self.recoveries = ["local"], NODES, []
        self.nodes, self.notes, self.told = Nodes(), [], []
        self.nodes.ranks = {0: RankBeat(rank=0, pid=child.pid)}
        self.nodes.add(Node("local", None))
        self.watch = Watch(on_note=self.notes.append)

    def tell(self, node, op, **fields):
        self.told.append((node.name, op))


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.multi
def test_a_checkpoint_is_torn_where_the_recipe_keeps_it(tmp_path, child):
    kept = tmp_path / "kept"
    driver = Stand(tmp_path / "run", child, checkpoint={"path": str(tmp_path / "kept")})
    drills = Drills([parse_fault("torn-checkpoint@step=5")], driver)
    drills.act()  # nothing there yet: no rank is killed, and nothing counts as done
    assert child.poll() is None
    assert driver.notes == [f"drill: no checkpoint to tear in {kept} yet"]
    assert [score.came for score in drills.score([])] == [False]
    save(kept, 3, 1, 1, dense(torch.float32))
    driver.is_early = False  # all steps are done: what is there now is the run's result
    drills.act()
    assert describe(open_store(kept), "step-00000003").state == "committed"
    driver.is_early = True
    end = time.monotonic() + 30
    while child.poll() is None and time.monotonic() < end:
        drills.act()
    assert child.poll() == -9
    assert describe(open_store(kept), "step-00000003").state == "damaged"
    assert [score.came for score in drills.score([])] == [True]


@pytest.mark.multi
def test_what_is_not_there_is_not_hit(tmp_path, child):
    faults = [parse_fault(t) for t in ("redis-kill@step=1", "node-kill@step=1", "kill:rank=7")]
    drills = Drills(faults, Stand(tmp_path, child))
    drills.act()
    assert [score.came for score in drills.score([])] == [False, False, False]
    assert not any(score.is_passed for score in drills.score([]))


@pytest.mark.multi
def test_a_node_that_is_no_longer_there_is_counted_round(tmp_path, child):
    driver = Stand(tmp_path, child)
    Drills([parse_fault("clock:node=5@step=1")], driver).act()
    assert driver.told == [("local", "clock")]


def test_a_score_can_be_written_down():
    assert msgspec.json.encode(score_of(parse_fault("kill"), None, [], NODES))
