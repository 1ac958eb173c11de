import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.health.pairing import Bisection, Neighbours, rings, tournament

NOISE = 0.002  # chance that a healthy pair fails a test


def run(nodes, bad=(), links=(), switch_of=None, noise=0.0, rng=None):
    test = Neighbours(nodes, switch_of)
    while pairs := test.next_round():
        seen = [n for pair in pairs for n in pair]
        assert len(seen) == len(set(seen)), "a node is in two tests of one round"
        test.give(
            {
                (a, b): not (
                    a in bad
                    or b in bad
                    or (a, b) in links
                    or (b, a) in links
                    or (noise and rng.random() < noise)
                )
                for a, b in pairs
            }
        )
    return test.findings()


def names(count):
    return [f"n{i:02d}" for i in range(count)]


def test_2000_fleets_of_64_nodes_with_0_to_8_bad_ones():
    """No good node accused, no bad node missed, at most four rounds; chance failures included."""
    rng = random.Random(7)
    accused = missed = most = 0
    for trial in range(2000):
        nodes = names(64)
        bad = set(rng.sample(nodes, trial % 9))
        found = run(nodes, bad, noise=NOISE, rng=rng)
        accused += len(set(found.bad) - bad)
        missed += len(bad - set(found.bad))
        most = max(most, found.rounds)
    assert (accused, missed) == (0, 0)
    assert most <= 4


@given(
    st.integers(4, 40).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=n // 6))
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_any_size_and_any_switches(case, rng):
    count, sick = case
    nodes = names(count)
    switch_of = {n: f"tor{rng.randrange(1 + count // 8)}" for n in nodes}
    bad = {nodes[i] for i in sick}
    found = run(nodes, bad, switch_of=switch_of)
    assert not set(found.bad) - bad  # never a good node
    assert bad <= set(found.bad) | set(found.unsure)  # never missed
    assert found.rounds <= 4


def test_all_well_takes_two_rounds():
    found = run(names(64))
    assert found == ((), (), (), 2)


def test_a_bad_link_is_named_by_its_ends_and_no_node_is_accused():
    nodes = names(16)
    found = run(nodes, links={(nodes[4], nodes[5])})
    assert found.bad == ()
    assert found.links == ((nodes[4], nodes[5]),)


def test_two_nodes_alone_cannot_tell_which_is_bad():
    found = run(names(2), {"n00"})
    assert found.bad == ()
    assert set(found.unsure) == {"n00", "n01"}


def test_more_suspects_than_clean_nodes_leaves_the_rest_unsure_and_not_good():
    nodes = names(8)
    bad = set(nodes[:5])
    found = run(nodes, bad)
    assert bad <= set(found.bad) | set(found.unsure)
    assert set(found.bad) <= bad


def test_neighbours_share_a_switch_and_lonely_nodes_are_not_forgotten():
    switch_of = {"a": "1", "b": "1", "c": "2", "d": "3"}
    assert rings(["a", "c", "b", "d"], switch_of) == [["a", "b"], ["c", "d"]]
    assert rings(["a", "b", "c"], switch_of) == [["a", "b", "c"]]


def bisect(nodes, fails):
    search = Bisection(nodes)
    while groups := search.next_round():
        search.give({g: not fails(set(g)) for g in groups})
    return search


def test_a_single_bad_node_is_found_in_log_rounds():
    search = bisect(names(64), lambda g: "n37" in g)
    assert search.suspects == [("n36", "n37")]
    assert search.rounds == 6


def test_a_fault_that_needs_many_nodes_is_reported_at_its_size():
    search = bisect(names(64), lambda g: len(g) >= 32)
    assert {len(g) for g in search.suspects} == {32}


def test_a_healthy_group_takes_one_round():
    search = bisect(names(64), lambda g: False)
    assert (search.suspects, search.rounds) == ([], 1)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 13])
def test_in_a_tournament_everybody_meets_everybody_once(count):
    nodes = [f"n{i:02d}" for i in range(count)]
    rounds = tournament(nodes)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [(a, b) for a in nodes for b in nodes if a < b]
    assert all(len({n for p in pairs for n in p}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) <= count
