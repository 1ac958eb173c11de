"""Signatures: the same fault looks the same at any step, another rank's does not. When it began."""

import time
from pathlib import Path

import pytest

from engine.job.driver import Driver, Watch
from engine.job.nodes import Node
from engine.job.place import LocalPlace
from engine.job.sight import Sight, signature
from engine.train.failure import Corrupted, Mismatch, RankFailure, failure_of, write_failure
from tests.engine.train.single import recipe


def test_numbers_do_not_count_but_ranks_and_kinds_do():
    one = signature("hang", "no rank moved for 5.4 s in step/wait", (3,))
    assert one == signature("hang", "no rank moved for 61 s in step/wait", (3,))
    assert one != signature("hang", "no rank moved for 5.4 s in step/wait", (2,))
    assert one != signature("crash", "no rank moved for 5.4 s in step/wait", (3,))
    assert one != signature("hang", "no rank moved for 5.4 s in eval", (3,))


def test_the_order_of_ranks_does_not_count_nor_who_meets_a_bug_first():
    assert signature("crash", "rank 3 was ended", (3, 1)) == signature(
        "crash", "rank 1 was ended", (1, 3)
    )
    bug = signature("bug", "rank 0: ValueError: no", (0, 2, 1))
    assert bug == signature("bug", "rank 7: ValueError: no", (7, 1))
    assert bug != signature("bug", "rank 0: KeyError: no", (0, 2, 1))
    nan = signature("numbers", "loss of step 9 is nan", (4, 0))
    assert nan == signature("numbers", "loss of step 9 is nan", (0, 4, 5))


@pytest.mark.parametrize("ranks", [(), (0, 1)])
def test_only_a_node_with_ranks_dates_an_incident_by_its_silence(tmp_path: Path, ranks):
    driver = Driver(recipe(), tmp_path, Watch(), place=LocalPlace())
    sight = Sight(driver)
    node = Node("node-4", None)  # type: ignore[arg-type]  # nobody talks to it
    driver.nodes.add(node)
    node.happens("beat")
    driver.nodes.begin(0, [(node, ranks)] if ranks else [])
    now = time.monotonic()
    sight.silence.heard("node-4", now - 600.0)
    assert sight._silent(now) == ([node] if ranks else [])
    assert node.state == "lost"
    later = sight._incident("hang", "no rank moved", ranks=(3,), confidence=0.9)
    late_s = time.time() - later.time_s
    assert late_s == pytest.approx(600.0 - driver.recipe.job.silent_s if ranks else 0.0, abs=5.0)


def started(tmp_path, *, newest_step):
    """A start of four ranks on two nodes that has made no step."""
    driver = Driver(recipe(), tmp_path, Watch(), place=LocalPlace())
    nodes = [Node(name, None) for name in ("a", "b")]  # type: ignore[arg-type]
    for node in nodes:
        driver.nodes.add(node)
        node.happens("beat")
    driver.attempt, driver.newest_step = 1, newest_step
    driver.nodes.begin(1, [(nodes[0], (0, 1)), (nodes[1], (2, 3))])
    return Sight(driver)


def fails(folder, *ranks, kind="MissingError", what="no GPU 7 here", bad_step=-1):
    for rank in ranks:
        write_failure(folder, RankFailure(rank=rank, kind=kind, what=what, attempt=1, t_s=rank,
                                          bad_step=bad_step))  # fmt: skip
    write_failure(folder, RankFailure(rank=0, kind="RunFailed", what="lost", lost_peer=True,
                                      attempt=1, t_s=9))  # fmt: skip


def test_replicas_that_differ_are_corruption_of_the_rank_that_left_the_majority_first(tmp_path):
    sight = started(tmp_path, newest_step=40)
    for rank, at in enumerate([None, None, (3, 1), (3, 2)]):
        seen = Mismatch(step=40, differs_at=at, changed_at=None, chunks=2, replica=rank,
                        replicas=4)  # fmt: skip
        fault = failure_of(rank, Corrupted(seen), attempt=1)
        write_failure(tmp_path, fault)
    incident = sight._crashed()
    assert incident is not None
    assert (incident.kind, incident.nodes, incident.ranks) == ("corruption", ("b",), (2,))
    assert "rank 2 computed wrong numbers, first in the backward of chunk 1" in incident.what
    assert "selfcheck" in incident.remedy


@pytest.mark.parametrize("kind", ["MissingError", "TraceError", "Exception"])
def test_what_one_node_lacks_after_steps_were_made_is_that_nodes_fault(tmp_path: Path, kind):
    sight = started(tmp_path, newest_step=40)
    fails(tmp_path, 2, 3, kind=kind)
    incident = sight._crashed()
    assert incident is not None
    assert (incident.kind, incident.nodes, incident.ranks) == ("start", ("b",), (2, 3))


def test_what_several_nodes_lack_is_nobodys_fault(tmp_path: Path):
    sight = started(tmp_path, newest_step=40)
    fails(tmp_path, 1, 2)
    incident = sight._crashed()
    assert incident is not None
    assert (incident.kind, incident.nodes, incident.ranks) == ("start", (), ())


def test_before_any_step_it_is_the_input_and_bad_numbers_stay_what_they_are(tmp_path: Path):
    sight = started(tmp_path, newest_step=-1)
    fails(tmp_path, 2)
    first = sight._crashed()
    sight = started(tmp_path, newest_step=40)
    fails(tmp_path, 2, kind="RunFailed", bad_step=41)
    second = sight._crashed()
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind) == ("input", "numbers")
