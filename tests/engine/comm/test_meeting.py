"""The sentence about who did not come."""

from engine.comm.meeting import absent


def test_it_counts_and_names_with_the_node():
    nodes = {rank: f"node-{rank // 8:02d}" for rank in range(1024)}
    error = absent("start", [517], 1024, nodes, 30.0)
    assert error.what == (
        "1,023 of 1,024 ranks came to 'start' within 30 s; missing: rank 517 on node-64"
    )
    assert "msctl selfcheck" in error.remedy


def test_a_long_list_is_cut_and_unknown_nodes_are_left_out():
    error = absent("start", list(range(10)), 12, {}, 1.0)
    assert "2 of 12 ranks came" in error.what
    assert error.what.endswith("rank 6, rank 7 and 2 more")
