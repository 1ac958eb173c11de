"""Dumps, heartbeats and stacks of a foreign job joined into one state a rank and one finding."""

from engine.diagnose.categories import next_step
from engine.diagnose.foreignhang import hang_findings, join, ras_findings, states_of
from engine.diagnose.readers.beats import Beat
from engine.diagnose.readers.flight import Call, Dump
from engine.diagnose.readers.job import NOTHING, Job
from engine.diagnose.readers.ras import Lag, Ras
from engine.diagnose.readers.stacks import Frame, Stack
from engine.diagnose.waits import Waiting

JOB = Job("j", 4, (("dp", 4),), {})
OWN = Frame("/app/train.py", 40, "step")
INSIDE = Frame("/torch/distributed/distributed_c10d.py", 9, "all_reduce")


def stack(rank, *frames):
    return Stack(rank, f"s{rank}", frames)


def beat(rank, phase, since=0.0):
    return Beat(rank, 100.0, since, 6, phase, 0, f"b{rank}")


def dump(rank, *calls, enqueued=0):
    pending = tuple(
        Call(n, "0", seq, name, False, None, "", ()) for n, (seq, name) in enumerate(calls)
    )
    last = max([seq for seq, _ in calls], default=enqueued)
    groups = {"0": ("dp", (0, 1, 2, 3))}
    return Dump(rank, f"d{rank}", groups, {"0": last}, {"0": last - bool(calls)}, pending, {})


WAITS = Waiting(0, frozenset({3}), "all_reduce number 5", 0.0, "d0")
BEATS = Waiting(0, frozenset({2}), "step 6 dp_reduce", 30.0, "b0", parted_from=frozenset({2}))


def joined(flight=None, beats=None, stacks=None):
    one = {0: flight} if flight else {}
    return join(one, {0: beats} if beats else {}, {0: stacks} if stacks else {})


def test_an_open_call_of_the_dump_comes_first_and_takes_what_the_heartbeat_adds():
    assert joined(WAITS)[0] == WAITS
    both = joined(WAITS, BEATS)[0]
    assert both.waits_for == {3}
    assert both.at == "step 6 dp_reduce (all_reduce number 5)"
    assert (both.age_s, both.parted_from, both.file) == (30.0, {2}, "d0")
    assert joined(WAITS, BEATS._replace(waits_for=frozenset()))[0] == WAITS


def test_without_an_open_call_the_heartbeat_and_then_the_dump_tells():
    idle = WAITS._replace(waits_for=frozenset())
    assert joined(idle, BEATS)[0] == BEATS
    assert joined(idle)[0] == idle


def test_a_stack_alone_tells_where_but_makes_no_graph():
    alone = Waiting(0, frozenset(), "step at train.py:40", 0.0, "s0")
    assert join({}, {}, {0: stack(0, OWN)}) == {0: alone}
    assert hang_findings(JOB, [], {}, {0: stack(0, OWN)}) == []
    made = join({1: WAITS._replace(rank=1)}, {}, {0: stack(0, OWN)})
    assert made[0] == Waiting(0, frozenset(), "step at train.py:40", 0.0, "s0")


def test_a_rank_inside_a_communication_call_is_no_culprit():
    idle = WAITS._replace(waits_for=frozenset())
    lost = joined(idle, stacks=stack(0, INSIDE, OWN))[0]
    assert (lost.lost, lost.at) == (True, "all_reduce at distributed_c10d.py:9")
    assert not joined(idle, stacks=stack(0, OWN))[0].lost
    assert joined(WAITS, stacks=stack(0, INSIDE))[0] == WAITS
    # a heartbeat that names its own work says more than the stack
    busy = BEATS._replace(waits_for=frozenset())
    assert not joined(idle, busy, stack(0, INSIDE))[0].lost
    silent = idle._replace(silent=True)
    assert not joined(silent, stacks=stack(0, INSIDE))[0].lost


def test_the_rank_without_a_dump_is_found_and_its_stack_is_shown():
    dumps = [dump(r, (5, "nccl:all_reduce")) for r in (0, 1, 2)]
    stacks = {r: stack(r, INSIDE, OWN) for r in range(3)} | {
        3: stack(3, Frame("/app/d.py", 7, "read"))
    }
    (finding,) = hang_findings(JOB, iter(dumps), {}, stacks)
    assert (finding.category, finding.ranks) == ("rank_blocked", (3,))
    assert finding.source == "dumps and stacks"
    assert finding.evidence[0].text == "stack: read at d.py:7"
    assert (
        "; stacks: 1 at read < read at d.py:7; 3 at all_reduce < step at train.py:40" in finding.why
    )


def test_members_that_only_a_dump_names_belong_to_the_world():
    (finding,) = hang_findings(NOTHING, [dump(0, (5, "nccl:all_reduce"))], {}, {})
    assert finding.ranks == (1, 2, 3)
    assert finding.source == "dumps"


def test_heartbeats_alone_find_the_rank_that_works():
    beats = {r: beat(r, "dp_all_reduce") for r in (0, 1, 3)} | {2: beat(2, "data")}
    (finding,) = hang_findings(JOB, [], beats, {})
    assert (finding.ranks, finding.source) == ((2,), "heartbeats")
    assert {r: s.at for r, s in states_of(JOB, [], beats, {}).items()}[2].startswith("step 6 data")


def test_nothing_waits_and_nothing_is_found():
    assert hang_findings(JOB, [], {}, {}) == []
    assert hang_findings(JOB, [dump(r, enqueued=4) for r in range(4)], {}, {}) == []


def test_calls_that_differ_are_a_finding_of_the_rarer_side():
    dumps = [dump(r, (5, "nccl:all_gather" if r == 2 else "nccl:broadcast")) for r in range(4)]
    findings = hang_findings(JOB, [*dumps[:3], dump(3, enqueued=4)], {}, {})
    mismatch = findings[-1]
    assert (mismatch.category, mismatch.ranks, mismatch.confidence) == ("desync", (2,), 0.9)
    assert mismatch.what == "call 5 of group 0 differs between ranks"
    assert mismatch.why == "broadcast: rank 0, 1; all_gather: rank 2"
    assert mismatch.evidence[0].file == "d2"


def test_of_stacks_alone_who_calls_waits_for_the_few_that_do_not():
    calls = {r: stack(r, INSIDE, OWN) for r in (0, 1, 3)}
    (finding,) = hang_findings(JOB, [], {}, {**calls, 2: stack(2, OWN)})
    assert (finding.ranks, finding.confidence, finding.source) == ((2,), 0.7, "stacks")
    busy = {r: stack(r, OWN) for r in range(4)}
    assert hang_findings(JOB, [], {}, busy) == []
    assert hang_findings(JOB, [], {}, {**busy, 0: stack(0, INSIDE, OWN)}) == []  # a usual moment
    assert hang_findings(JOB, [], {}, calls) == []  # nobody is missing among these


def gloo(rank, *names):
    calls = {("0", n): f"gloo:{name} [[8]]" for n, name in enumerate(names, 1)}
    return dump(rank, enqueued=len(names))._replace(finished=calls)


def test_gloo_closes_calls_that_timed_out_but_counts_and_names_remain():
    dumps = [gloo(r, "all_reduce", "all_reduce") for r in range(3)]
    (finding,) = hang_findings(JOB, [*dumps, gloo(3, "all_reduce")], {}, {})
    assert (finding.category, finding.ranks, finding.confidence) == ("rank_blocked", (3,), 0.5)
    (finding,) = hang_findings(JOB, [*dumps, gloo(3, "all_reduce", "barrier")], {}, {})
    assert (finding.category, finding.ranks) == ("desync", (3,))
    assert hang_findings(JOB, [*dumps, gloo(3, "all_reduce", "all_reduce")], {}, {}) == []


def test_what_differs_among_dumps_of_a_job_that_does_not_wait_is_no_finding():
    odd = dump(0, enqueued=5)._replace(finished={("0", 5): "nccl:all_gather []"})
    even = dump(1, enqueued=5)._replace(finished={("0", 5): "nccl:broadcast []"})
    assert hang_findings(JOB, [odd, even], {}, {}) == []


LAG = Lag("ab", (3, 9), (), ((65, 2), (66, 30)), "n1", 12)


def test_a_rank_that_ras_shows_behind_is_blocked():
    (finding,) = ras_findings([("ras.txt", Ras((LAG,), ()))])
    assert (finding.kind, finding.category) == ("hang", "rank_blocked")
    assert (finding.ranks, finding.nodes) == ((3, 9), ("n1",))
    assert finding.what == "rank 3, 9 is behind in communicator ab"
    assert finding.why == "2 at operation 65, 30 at operation 66"
    assert (finding.evidence[0].file, finding.evidence[0].line) == ("ras.txt", 12)
    assert finding.next == next_step("rank_blocked")


def test_a_communicator_whose_ranks_differ_blames_nobody_if_ras_names_nobody():
    (finding,) = ras_findings([("ras.txt", Ras((LAG._replace(behind=()),), ()))])
    assert (finding.category, finding.ranks, finding.nodes) == ("unknown_hang", (), ())
    assert finding.next == next_step("unknown_hang")


def test_a_process_that_does_not_answer_is_gone():
    (finding,) = ras_findings([("ras.txt", Ras((), (("10.0.0.13", "5", 7),)))])
    assert (finding.kind, finding.nodes, finding.device) == ("crash", ("10.0.0.13",), "GPU 5")
    assert finding.evidence[0].line == 7
    assert ras_findings([]) == []
