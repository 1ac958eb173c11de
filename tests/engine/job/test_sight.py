"""Signatures: the same fault looks the same at any step, another rank's does not."""

from engine.job.sight import signature


def test_numbers_do_not_count_but_ranks_and_kinds_do():
    one = signature("hang", "no rank moved for 5.4 s in step/wait", (3,))
    assert one == signature("hang", "no rank moved for 61 s in step/wait", (3,))
    assert one != signature("hang", "no rank moved for 5.4 s in step/wait", (2,))
    assert one != signature("crash", "no rank moved for 5.4 s in step/wait", (3,))
    assert one != signature("hang", "no rank moved for 5.4 s in eval", (3,))
