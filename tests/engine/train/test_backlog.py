"""What waits for the store: ages, arrivals, and complaints that a dropped save does not silence."""

from hypothesis import given
from hypothesis import strategies as st

from engine.train.backlog import Backlog, Complaint


def test_what_arrives_tells_how_long_it_took():
    backlog = Backlog(10.0)
    backlog.begin(5, 100.0)
    backlog.begin(10, 103.0)
    assert backlog.arrive(4, 104.0) == []
    assert backlog.arrive(5, 104.0) == [(5, 4.0)]
    assert (len(backlog), backlog.newest) == (1, 10)
    assert backlog.arrive(10, 105.0) == [(10, 2.0)]
    assert not backlog
    assert backlog.complaint(1e9) is None


def test_a_late_save_is_complained_about_once_per_deadline():
    backlog = Backlog(10.0)
    backlog.begin(5, 100.0)
    assert backlog.complaint(110.0) is None
    assert backlog.complaint(111.0) == (5, 11.0, 0)
    assert backlog.complaint(120.0) is None
    assert backlog.complaint(122.0) == (5, 22.0, 0)


def test_what_waits_is_late_from_its_own_beginning_once_the_one_before_has_arrived():
    backlog = Backlog(10.0)
    backlog.begin(5, 100.0)
    backlog.begin(10, 109.0)
    backlog.arrive(5, 112.0)
    assert backlog.complaint(118.0) is None
    assert backlog.complaint(120.0) == (10, 11.0, 0)


@given(st.integers(1, 30), st.floats(0.5, 20.0))
def test_a_store_that_takes_nothing_is_noticed_however_often_newer_saves_replace_older(n, every_s):
    """The age of what waits never reaches the deadline; the silence of the store does."""
    backlog, deadline_s = Backlog(30.0), 30.0
    heard: list[Complaint] = []
    for number in range(n):
        now_s = 1000.0 + number * every_s
        backlog.begin(number + 1, now_s, dropped=number)
        assert len(backlog) == 1
        said = backlog.complaint(now_s)
        if said:
            assert said.dropped == number
            heard.append(said)
    assert bool(heard) == ((n - 1) * every_s > deadline_s)
