"""Who is to blame for a failed run: the first rank that failed by itself, not its victims."""

import itertools

import pytest

from engine.errors import CheckpointError, MissingError, RecipeError, RunFailed
from engine.job.cause import as_error, find_cause
from engine.job.nursery import Report
from engine.train.failure import Corrupted, Mismatch, RankFailure, failure_of


def ended(rank: int, code: int) -> Report:
    return Report(event="exit", rank=rank, code=code)


def victim(rank: int, t_s: float = 2.0) -> RankFailure:
    return RankFailure(
        rank=rank, kind="RunFailed", what="all_reduce in group world failed: closed",
        lost_peer=True, t_s=t_s,
    )  # fmt: skip


def own(rank: int, t_s: float = 1.0, **more: str) -> RankFailure:
    return RankFailure(rank=rank, t_s=t_s, **({"kind": "Exception", "what": "KeyError: 3"} | more))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_an_exception_is_named_whatever_the_order_of_the_ends(order):
    reports = [ended(rank, 1) for rank in order]
    cause = find_cause(reports, [victim(0), own(1), victim(2)])
    assert (cause.what, cause.is_own) == ("rank 1: KeyError: 3", True)


def test_of_several_own_failures_the_first_in_time_is_named():
    cause = find_cause([], [own(0, t_s=9.0, what="late"), own(5, t_s=3.0, what="early")])
    assert cause.what == "rank 5: early"


def test_a_killed_rank_is_named_before_the_victims_it_left():
    cause = find_cause([ended(2, -9), ended(0, 1), ended(1, 1)], [victim(0), victim(1)])
    assert cause.what == "rank 2 was ended by SIGKILL"
    assert "dmesg" in cause.remedy


def differs(rank: int, at: tuple[int, int] | None, *, changed=None, replicas: int = 4):
    seen = Mismatch(step=9, differs_at=at, changed_at=changed, chunks=2, replica=rank,
                    replicas=replicas)  # fmt: skip
    return failure_of(rank, Corrupted(seen))


def test_of_ranks_that_computed_other_numbers_the_earliest_place_counts():
    cause = find_cause([], [differs(0, None), differs(1, (2, 1)), differs(2, (2, 0))])
    assert (cause.is_corruption, cause.is_own, cause.ranks) == (True, True, (2,))
    assert "in the forward of chunk 1" in cause.what


def test_a_rank_that_changes_its_numbers_is_wrong_whoever_differs():
    both = [differs(0, (1, 0), replicas=2), differs(1, (1, 0), changed=(3, 0), replicas=2)]
    cause = find_cause([], both)
    assert (cause.is_own, cause.ranks) == (True, (1,))
    assert "in the backward of chunk 1" in cause.what


def test_where_whoever_differed_left_no_word_nobody_is_named():
    cause = find_cause([], [differs(0, None), differs(3, None)])
    assert (cause.is_corruption, cause.is_own, cause.ranks) == (True, False, ())


def test_where_several_replicas_differ_at_once_perhaps_nodes_do_not_compute_alike():
    cause = find_cause([], [differs(rank, (1, 0)) for rank in (1, 2)])
    assert (cause.is_own, cause.ranks) == (False, (1, 2))
    assert "NCCL_ALGO" in cause.remedy


def test_a_rank_that_left_without_a_word_is_named():
    cause = find_cause([ended(0, 1), ended(3, 7)], [victim(0)])
    assert cause.what == "rank 3 ended with exit code 7 and no word"
    assert "rank-00003.log" in cause.remedy


def test_a_rank_that_was_asked_to_end_is_no_fault_of_its_own():
    assert not find_cause([ended(0, -15)], []).is_own
    assert find_cause([ended(0, -6)], []).is_own


def test_a_signal_without_a_name_has_its_number():
    assert find_cause([ended(0, -63)], []).what == "rank 0 was ended by signal 63"


def test_with_victims_alone_the_first_says_what_it_saw():
    cause = find_cause([ended(0, 1), ended(1, 1)], [victim(0, 5.0), victim(1, 4.0)])
    assert cause.what == "rank 1: all_reduce in group world failed: closed"
    assert not cause.is_own


def test_no_ranks_at_all():
    assert find_cause([], []).what == "the ranks did not start"


@pytest.mark.parametrize(
    ("kind", "raised"),
    [("RecipeError", RecipeError), ("CheckpointError", CheckpointError),
     ("MissingError", MissingError), ("RunFailed", RunFailed), ("Exception", RunFailed),
     ("Nonsense", RunFailed)],
)  # fmt: skip
def test_faults_of_input_and_machine_keep_their_kind(kind, raised):
    failure = own(0, kind=kind, what="it is so", remedy="do this")
    error = as_error(find_cause([ended(0, 1)], [failure]), "job")
    assert type(error) is raised
    assert "do this" in error.remedy
    assert ("rank 0: " in error.what) == (raised is RunFailed)


def test_a_failed_run_says_how_to_look_and_how_to_go_on():
    error = as_error(find_cause([ended(0, 1)], [own(0)]), "tiny")
    assert error.what == "tiny: rank 0: KeyError: 3"
    assert "msctl diagnose --job tiny" in error.remedy
    assert "continues from the last checkpoint" in error.remedy
