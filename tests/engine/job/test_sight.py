"""Signatures: the same fault looks the same at any step, another rank's does not."""

from engine.job.sight import signature


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
