"""Watchdog lines side by side: what one says, who is odd, who is silent."""

import pytest

from engine.diagnose.logs.watchdog import Stall, crowd, read_stall

CAUGHT = (
    "[rank{r}]:[E ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)=600000)"
)


def stall(rank, seq=9, op="ALLREDUCE", group="0", file="f", voice=None):
    return Stall(rank, rank if voice is None else voice, group, seq, op, 1, file, rank + 1, "text")


def test_the_collective_that_a_line_names():
    found = read_stall(4, CAUGHT.format(r=4, seq=15, op="_ALLGATHER_BASE", n=64), file="f", line=7)
    assert found[:8] == (4, 4, "", 15, "_ALLGATHER_BASE", 64, "f", 7)


def test_a_line_in_another_ranks_file_has_its_own_voice():
    found = read_stall(0, CAUGHT.format(r=6, seq=1, op="SEND", n=1), file="f", line=1)
    assert (found.rank, found.voice) == (0, 6)


@pytest.mark.parametrize(
    ("text", "group", "seq", "op"),
    [
        ("[PG 2 Rank 1] Timeout at NCCL work: 31, last enqueued NCCL work: 40, "
         "last completed NCCL work: 30.", "2", 31, ""),
        ("[PG ID 1 PG GUID 5(mesh_dp) Rank 1] WorkNCCL(SeqNum=3, OpType=SEND)",
         "5(mesh_dp)", 3, "SEND"),
        ("[PG ID 3(TP) Rank 1] WorkNCCL(SeqNum=3, OpType=SEND)", "(TP)", 3, "SEND"),
        ("WorkNCCL(OpType=BARRIER, Timeout(ms)=1)", "", -1, "BARRIER"),
        ("last enqueued work: 7, last completed work: -1", "", 7, ""),
    ],
)  # fmt: skip
def test_groups_and_older_forms(text, group, seq, op):
    found = read_stall(1, text, file="f", line=1)
    assert (found.group, found.seq, found.op) == (group, seq, op)


def test_a_line_without_a_collective_is_none():
    assert read_stall(1, "Watchdog caught something", file="f", line=1) is None


def test_ranks_that_report_nothing_are_silent():
    found = crowd([stall(0), stall(2)], [4, 5], world=6)
    assert found.silent == (1, 3)
    assert found.world == 6
    assert crowd([], [2], world=6).silent == ()  # one voice says nothing about the others


@pytest.mark.parametrize(
    ("spoke", "world", "size"),
    [([0, 2], 0, 3), ([0, 3], 0, 4), ([0, 4], 0, 8), ([0, 8], 0, 16), ([1, 7], 16, 16), ([], 0, 0),
     ([0, 9], 4, 16)],
)  # fmt: skip
def test_a_world_that_is_not_told_is_full_nodes(spoke, world, size):
    assert crowd([], spoke, world=world).world == size


def test_a_number_beyond_any_world_tells_nobody_to_be_silent():
    found = crowd([], [0, 9_999_999], world=0)
    assert found.silent == ()


def test_the_one_of_many_that_waits_elsewhere_is_odd():
    many = [stall(r) for r in range(15)]
    found = crowd([*many, stall(15, seq=8)], [], world=16)
    assert (found.odd, found.comparable) == ((15,), True)
    assert crowd([*many, stall(15, op="SEND")], [], world=16).odd == (15,)
    other = crowd([*many, stall(15, seq=8, group="1")], [], world=16)
    assert (other.odd, other.comparable) == ((15,), False)
    unknown = crowd([*many, stall(15, seq=-1, op="SEND")], [], world=16)
    assert unknown.comparable is False


def test_two_of_sixteen_or_one_of_seven_are_not_odd():
    assert (
        crowd([*(stall(r) for r in range(14)), stall(14, 8), stall(15, 8)], [], world=16).odd == ()
    )
    assert crowd([*(stall(r) for r in range(6)), stall(6, 8)], [], world=7).odd == ()
    assert crowd([*(stall(r) for r in range(7)), stall(7, 8)], [], world=8).odd == (7,)


def test_the_report_that_names_an_operation_speaks_for_its_rank():
    many = [stall(r) for r in range(15)]
    vague = stall(15, seq=40, op="")
    assert crowd([*many, vague], [], world=16).odd == ()
    assert crowd([*many, vague, stall(15, seq=8)], [], world=16).odd == (15,)


def test_voices_of_one_file_that_wait_in_different_calls_have_parted():
    a, b = stall(0, 5, voice=0), stall(0, 6, voice=1)
    assert crowd([a, b], [], world=2).parted == (a, b)
    assert crowd([a, b._replace(op="SEND", seq=5)], [], world=2).parted != ()
    assert crowd([a, b._replace(seq=5)], [], world=2).parted == ()
    assert crowd([a, b._replace(group="1")], [], world=2).parted == ()
    assert crowd([a, b._replace(file="g")], [], world=2).parted == ()
    assert crowd([a, b._replace(op="")], [], world=2).parted == ()


def test_most_voices_in_one_call_have_not_parted():
    three = [stall(0, 5, voice=v) for v in range(3)]
    assert crowd([*three, stall(0, 6, voice=3)], [], world=4).parted == ()
    assert (
        len(crowd([*three[:2], stall(0, 6, voice=3), stall(0, 7, voice=4)], [], world=5).parted)
        == 4
    )


def test_a_report_without_a_group_takes_what_its_voice_says_elsewhere():
    bare = stall(0, 5, voice=0, group="")
    known = stall(0, 1, op="", voice=0, group="7")
    assert crowd([bare, known, stall(0, 6, voice=1, group="7")], [], world=2).parted != ()
    assert crowd([bare, stall(0, 6, voice=1, group="7")], [], world=2).parted == ()


def sized(rank, numel, op="BROADCAST"):
    return stall(rank, op=op)._replace(numel=numel)


def test_another_call_under_one_number_needs_no_vote():
    many = [stall(r, seq=5000, group="") for r in (1, 2, 3, 4)]
    odd = stall(0, seq=5000, op="REDUCE", group="")
    assert set(crowd([*many, odd], [], world=8).parted) == {*many, odd}
    # which group it was is not said: at its start every group is at such a number
    early = [s._replace(seq=5) for s in (*many, odd)]
    assert crowd(early, [], world=8).parted == ()


def test_sizes_part_where_all_members_give_the_same():
    assert len(crowd([sized(0, 64), sized(1, 4096)], [], world=2).parted) == 2
    assert crowd([sized(0, 64), sized(1, -1)], [], world=2).parted == ()  # not printed by all
    assert crowd([sized(r, 8 + r, "ALLTOALL_BASE") for r in (0, 1)], [], world=2).parted == ()
    assert crowd([sized(r, 8 + r, "COALESCED") for r in (0, 1)], [], world=2).parted == ()


def test_files_are_compared_where_a_groups_name_is_one_for_all():
    here = stall(0, group="5(TP)", file="a")
    there = stall(1, op="REDUCE", group="5(TP)", file="b")
    assert set(crowd([here, there], [], world=2).parted) == {here, there}
    # a description alone is that of every tensor group of the job
    other = [s._replace(group="(TP)") for s in (here, there)]
    assert crowd(other, [], world=2).parted == ()
