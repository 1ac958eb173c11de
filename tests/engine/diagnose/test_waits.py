"""The wait-for graph: sinks, circles and distances, against a search by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose.waits import Waiting, wait_graph


def states(edges, **more):
    return {r: Waiting(r, frozenset(to), f"call of {r}", **more) for r, to in edges.items()}


def test_a_chain_ends_at_the_rank_that_is_stuck():
    graph = wait_graph(states({0: {1}, 1: {2}, 2: {3}, 4: {3}}), range(5))
    assert graph.stuck == (3,)
    assert graph.reach == {3: 4}
    assert graph.layers == ((0, 1), (1, 2), (2, 1), (3, 1))
    assert graph.unplaced == graph.parted == ()


def test_two_sinks_have_a_reach_each():
    graph = wait_graph(states({0: {3}, 1: {3}, 2: {3, 4}}), range(5))
    assert graph.stuck == (3, 4)
    assert graph.reach == {3: 3, 4: 1}
    assert graph.layers == ((0, 2), (1, 3))


def test_a_rank_outside_the_world_that_others_wait_for_needs_a_state_or_a_place():
    assert wait_graph(states({0: {1}}), [0, 1]).stuck == (1,)
    assert wait_graph(states({0: set(), 1: set()}), [0, 1, 2]).stuck == ()


def test_nobody_waits_for_itself():
    graph = wait_graph(states({0: {0}, 1: {0, 1}}), range(2))
    assert graph.stuck == (0,)
    assert graph.reach == {0: 1}


def test_a_rank_whose_wait_is_unknown_is_no_culprit():
    made = states({0: {1}, 2: {1}})
    made[1] = Waiting(1, frozenset(), "somewhere", lost=True)
    graph = wait_graph(made, range(3))
    assert graph.stuck == ()
    assert graph.unplaced == (0, 2)


def test_a_circle_without_a_sink_is_named_without_those_that_lead_into_it():
    graph = wait_graph(states({0: {1}, 1: {2}, 2: {3}, 3: {1}}), range(4))
    assert graph.stuck == ()
    assert graph.parted == (1, 2, 3)
    assert graph.unplaced == (0, 1, 2, 3)


def test_whoever_waits_longest_for_one_that_went_past_is_the_parted_pair():
    made = {
        0: Waiting(0, frozenset({1}), "a", 3.0, parted_from=frozenset({1})),
        1: Waiting(1, frozenset({0}), "b", 9.0),
        2: Waiting(2, frozenset({3}), "a", 7.0, parted_from=frozenset({3, 4})),
        3: Waiting(3, frozenset({2}), "b", 1.0),
    }
    assert wait_graph(made, range(5)).parted == (2, 3, 4)
    made[0] = made[0]._replace(age_s=7.0)  # of equals the lowest rank
    assert wait_graph(made, range(5)).parted == (0, 1)


EDGES = st.dictionaries(st.integers(0, 9), st.sets(st.integers(0, 9), max_size=3))


@settings(max_examples=50)
@given(EDGES)
def test_the_graph_agrees_with_its_definition(edges):
    graph = wait_graph(states(edges), range(10))
    waits = {r: edges.get(r, set()) - {r} for r in range(10)}
    wanted = {t for targets in waits.values() for t in targets}
    assert set(graph.stuck) == {r for r in range(10) if not waits[r] and r in wanted}
    for sink in graph.stuck:
        reach = {sink}
        while more := {r for r in range(10) if waits[r] & reach} - reach:
            reach |= more
        assert graph.reach[sink] == len(reach) - 1
    placed = sum(count for _, count in graph.layers)
    waiting = sum(bool(targets) for targets in waits.values())
    assert placed + len(graph.unplaced) == waiting + len(graph.stuck)
    assert bool(graph.parted) == bool(graph.unplaced)
    for rank in graph.parted:
        assert waits[rank] & set(graph.parted)
