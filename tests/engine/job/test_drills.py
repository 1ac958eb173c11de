"""Scores: a fault is matched with what was noticed after it, and judged by what happened then."""

import msgspec

from engine.job.drills import score_of, tear_checkpoint
from engine.job.incident import Decision, Incident, Recovery
from engine.train.drill import parse_fault

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
    tear_checkpoint(tmp_path / "none")  # nothing to tear is no error


def test_a_score_can_be_written_down():
    assert msgspec.json.encode(score_of(parse_fault("kill"), None, [], NODES))
