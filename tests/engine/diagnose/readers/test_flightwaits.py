"""Dumps as waits: who is behind, who is passed, and calls that do not match."""

from engine.diagnose.readers.flight import Call, Dump
from engine.diagnose.readers.flightwaits import flight_waits, mismatches

ALL = {"0": ("world", (0, 1, 2, 3))}


def call(seq, *, group="0", order=None, name="nccl:all_reduce", peer=None, sizes="[[8]]"):
    order = seq if order is None else order
    return Call(order, group, seq, name, peer is not None, peer, sizes, ())


def dump(rank, *pending, enqueued=None, completed=None, groups=ALL, finished=None):
    last = max((c.seq for c in pending if not c.point_to_point), default=0)
    enqueued = {"0": last} if enqueued is None else {"0": enqueued}
    completed = {"0": last - 1} if completed is None else {"0": completed}
    return Dump(rank, f"d{rank}", groups, enqueued, completed, pending, finished or {})


def targets(*dumps, members=None):
    return {r: set(w.waits_for) for r, w in flight_waits(dumps, members).items()}


def test_all_wait_for_who_has_not_enqueued_the_call():
    late = dump(2, enqueued=4, completed=4)
    found = targets(*(dump(r, call(5)) for r in (0, 1, 3)), late)
    assert found == {0: {2}, 1: {2}, 3: {2}, 2: set()}


def test_who_has_enqueued_more_is_not_behind_unless_its_device_stands_before():
    ahead = dump(2, call(6), enqueued=6, completed=5)
    assert targets(dump(0, call(5)), ahead, dump(1, call(5)), dump(3, call(5)))[0] == set()
    stuck = dump(2, call(4), call(6), enqueued=6, completed=3)
    assert targets(dump(0, call(5)), stuck, dump(1, call(5)), dump(3, call(5)))[0] == {2}


def test_a_member_without_a_dump_is_behind():
    assert targets(dump(0, call(5)), dump(1, call(5))) == {0: {2, 3}, 1: {2, 3}}


def test_only_the_oldest_open_call_counts():
    pair = {"0": ("world", (0, 1)), "1": ("tp", (0, 2))}
    one = dump(0, call(5, order=9), call(1, group="1", order=2), groups=pair)
    (state,) = flight_waits([one]).values()
    assert state.waits_for == {2}
    assert state.at == "nccl:all_reduce number 1 of tp 1"
    assert state.file == "d0"


def test_a_send_waits_for_its_peer_by_place_in_the_group():
    group = {"0": ("pp", (1, 5, 9))}
    assert targets(dump(5, call(1, peer=2), groups=group))[5] == {9}
    assert targets(dump(5, call(1, peer=1), groups=group))[5] == set()
    assert targets(dump(5, call(1, peer=3), groups=group))[5] == set()


def test_members_come_from_the_launcher_where_dumps_do_not_name_them():
    unnamed = {"0": ("", ())}
    assert targets(dump(0, call(5), groups=unnamed)) == {0: set()}
    assert targets(dump(0, call(5), groups=unnamed), members={"0": (0, 7)}) == {0: {7}}
    assert targets(dump(0, call(5)), members={"0": (0, 7)}) == {0: {1, 2, 3}}
    state = flight_waits([dump(0, call(5), groups=unnamed)])[0]
    assert state.at == "nccl:all_reduce number 5 of group 0"


def test_a_rank_without_an_open_call_says_how_far_it_came():
    state = flight_waits([dump(1, enqueued=7, completed=7)])[1]
    assert state.waits_for == frozenset()
    assert state.at == "no open call (enqueued 7 in group 0)"


def test_calls_of_one_number_must_have_one_name_and_reductions_one_size():
    a = dump(
        0, call(5), finished={("0", 4): "nccl:broadcast [[1]]", ("0", 3): "nccl:all_reduce [[1]]"}
    )
    b = dump(1, call(5, sizes="[[9]]"), finished={("0", 4): "nccl:all_gather [[1]]"})
    c = dump(2, call(5), finished={("0", 3): "nccl:all_reduce [[1]]"})
    assert mismatches([a, b, c]) == [
        ("0", 4, {"broadcast": [0], "all_gather": [1]}),
        ("0", 5, {"all_reduce [[8]]": [0, 2], "all_reduce [[9]]": [1]}),
    ]


def test_members_of_a_gather_may_differ_in_size_and_sends_are_not_compared():
    a = dump(0, call(5, name="nccl:_all_gather_base"), call(1, peer=0, name="send"))
    b = dump(1, call(5, name="_all_gather_base", sizes="[[9]]"), call(1, peer=1, name="recv"))
    assert mismatches([a, b]) == []
    assert mismatches([]) == []
