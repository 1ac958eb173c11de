"""What no single line shows: parted, busy, odd and silent ranks, and steps that jump."""

import pytest

from engine.diagnose.finding import Finding
from engine.diagnose.logs.claims import Claim, source_of
from engine.diagnose.logs.ends import last_lines
from engine.diagnose.logs.scan import Scanner
from engine.diagnose.logs.stalls import stall_findings
from engine.diagnose.logs.watchdog import Stall

TIMEOUT = "Watchdog caught collective operation timeout"
CLOSED = "Connection closed by peer"


def wake(rank, text=TIMEOUT, line=5):
    return Claim("wake", 0.0, rank, (), "", "", f"f{rank}", line, text, False)


def stall(rank, seq=9, op="ALLREDUCE", file=None, voice=None, line=1):
    file = f"f{rank}" if file is None else file
    return Stall(rank, rank if voice is None else voice, "0", seq, op, 1, file, line, f"at {seq} ")


def cause(confidence):
    return Finding(kind="crash", category="code_error", what="x", confidence=confidence)


def sources(root, texts):
    for name, text in texts.items():
        (root / name).write_text(text)
    return [source_of(Scanner().scan(root / name), root) for name in texts]


def find(findings=(), stalls=(), wakes=(), logs=(), world=8):
    return stall_findings(list(findings), list(stalls), list(wakes), list(logs), world)


def test_without_wakes_a_sure_cause_stands_alone():
    strong = cause(0.55)
    assert find([strong]) == [strong]
    assert find([strong], wakes=[wake(0)]) == [strong]
    weak = cause(0.5)
    assert [f.category for f in find([weak], wakes=[wake(r) for r in range(7)])] == [
        "unknown_hang", "code_error",
    ]  # fmt: skip
    assert find() == []


def test_the_few_that_say_nothing_while_the_others_time_out():
    (finding,) = find(wakes=[wake(r) for r in range(7)])
    assert (finding.kind, finding.category, finding.ranks) == ("hang", "unknown_hang", (7,))
    assert finding.confidence == 0.5
    assert finding.why.startswith("7 ranks report")
    assert (finding.evidence[0].file, finding.evidence[0].line) == ("f0", 5)


def test_a_silent_rank_whose_peers_lost_it_has_crashed(tmp_path):
    logs = sources(tmp_path, {f"rank_{r}.log": "ok\n" for r in range(8)})
    (finding,) = find(wakes=[wake(r, CLOSED) for r in range(7)], logs=logs)
    assert (finding.kind, finding.category, finding.confidence) == ("crash", "crash", 0.7)
    assert "its log ends without a word" in finding.what
    (finding,) = find(wakes=[wake(r, CLOSED if r else TIMEOUT) for r in range(7)], logs=logs)
    assert finding.category == "unknown_hang"


def test_half_of_the_ranks_or_more_than_eight_are_not_the_silent_few():
    (finding,) = find(wakes=[wake(r) for r in range(4)])
    assert finding.ranks == ()
    assert finding.what.startswith("only waiting is visible: Watchdog caught")
    assert "4 lines of 4 ranks" in finding.why
    (finding,) = find(wakes=[wake(r) for r in range(5)])
    assert finding.ranks == (5, 6, 7)
    (finding,) = find(wakes=[wake(r) for r in range(23)], world=32)
    assert finding.ranks == ()
    (finding,) = find(wakes=[wake(r) for r in range(24)], world=32)
    assert len(finding.ranks) == 8


def test_where_only_waiting_is_visible_a_time_out_is_shown_before_other_wakes():
    wakes = [wake(0, CLOSED, 1), wake(1, TIMEOUT, 9), wake(1, TIMEOUT, 3), wake(2, CLOSED), wake(3)]
    (finding,) = find(wakes=wakes, world=4)
    assert (finding.evidence[0].file, finding.evidence[0].line) == ("f1", 3)


def turns():
    """Every third step takes six times as long."""
    rows = (f"step {n} time {6 if n % 3 == 2 else 1}.0 loss 2\n" for n in range(12))
    return "".join(rows)


def test_a_silent_rank_whose_steps_jumped_was_starved(tmp_path):
    logs = sources(tmp_path, {"rank_7.log": turns()})
    (finding,) = find(wakes=[wake(r) for r in range(7)], logs=logs)
    assert (finding.category, finding.ranks) == ("perf_data", (7,))


def test_a_rank_that_waits_elsewhere_is_odd():
    wakes = [wake(r) for r in range(8)]
    stalls = [stall(r, 8 if r == 6 else 9) for r in range(8)]
    (finding,) = find(stalls=stalls, wakes=wakes)
    assert (finding.category, finding.ranks, finding.confidence) == ("desync", (6,), 0.6)
    assert "rank 6 waits in ALLREDUCE 8" in finding.what
    assert [e.text for e in finding.evidence] == ["at 8"]
    other = [s._replace(group="1") if s.rank == 6 else s for s in stalls]
    assert find(stalls=other, wakes=wakes)[0].category == "unknown_hang"


def test_ranks_that_parted_are_named_from_the_first_line():
    stalls = [stall(3, 6, voice=1, line=8), stall(3, 5, voice=0, line=2)]
    finding = find(stalls=stalls, wakes=[wake(3)], world=4)[0]
    assert (finding.category, finding.ranks, finding.confidence) == ("desync", (3,), 0.8)
    assert finding.what.endswith("rank 1 in ALLREDUCE 6, rank 0 in ALLREDUCE 5")
    assert [e.line for e in finding.evidence] == [2, 8]
    apart = [stall(2, 6, file="f", voice=1), stall(3, 5, file="f", voice=0)]
    assert find(stalls=apart, wakes=[wake(3)], world=4)[0].ranks == ()


@pytest.mark.parametrize(("confidence", "first"), [(0.69, "desync"), (0.7, "code_error")])
def test_a_sure_cause_comes_before_ranks_that_parted(confidence, first):
    stalls = [stall(3, 6, voice=1), stall(3, 5, voice=0)]
    found = find([cause(confidence)], stalls, [wake(3)], world=4)
    assert len(found) == 2
    assert found[0].category == first


BAR = "Map (num_proc=8):  41%|####      | 41/100 [00:10<00:14, 4.0 examples/s]"


def test_the_silent_one_is_busy_if_a_progress_bar_runs_between_the_waits(tmp_path):
    logs = sources(tmp_path, {"job.log": f"start\n{BAR}\n[rank0] x\n"})
    found = find(stalls=[stall(r) for r in range(7)], wakes=[wake(r) for r in range(7)], logs=logs)
    finding = found[0]
    assert (finding.category, finding.ranks, finding.confidence) == ("rank_blocked", (7,), 0.75)
    assert (finding.evidence[0].line, finding.evidence[0].text) == (2, BAR)


def test_a_bar_of_another_rank_is_not_the_silent_ones(tmp_path):
    logs = sources(tmp_path, {"job.log": f"[rank2] {BAR}\n"})
    found = find(stalls=[stall(r) for r in range(7)], wakes=[wake(r) for r in range(7)], logs=logs)
    assert [f.category for f in found] == ["unknown_hang"]


def test_a_bar_at_the_end_of_a_long_log_has_its_own_line(tmp_path):
    logs = sources(tmp_path, {"job.log": "filler of a line\n" * 1000 + BAR + "\nlast"})
    found = find(stalls=[stall(r) for r in range(7)], wakes=[wake(r) for r in range(7)], logs=logs)
    assert found[0].evidence[0].line == 1001


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("count", [3, 2000])
def test_lines_of_the_end_are_counted_whatever_ends_the_file(tmp_path, end, count):
    text = "\n".join(f"line {n}" for n in range(1, count + 1)) + end
    (source,) = sources(tmp_path, {"log": text})
    lines = last_lines(source.scan)
    assert lines[-1] == (count, f"line {count}")
    assert lines[-2] == (count - 1, f"line {count - 1}")
    assert all(line == f"line {number}" for number, line in lines[1:])


def test_steps_that_jump_are_looked_for_only_where_nothing_else_is(tmp_path):
    logs = sources(tmp_path, {"job.log": turns()})
    (finding,) = find(logs=logs)
    assert (finding.kind, finding.category) == ("perf", "perf_data")
    assert finding.what == "every 2.8th step takes 6.0 times longer"  # 4 of the 11 after warm-up
    assert finding.evidence[0].line == 3
    weak = cause(0.2)
    assert find([weak], logs=logs) == [weak]


def test_of_three_the_one_that_calls_something_else_is_named():
    told = [stall(0, op="REDUCE", file="job"), *(stall(r, file="job") for r in (1, 5))]
    (finding,) = find(stalls=told, wakes=[wake(s.rank) for s in told])
    assert (finding.category, finding.ranks) == ("desync", (0,))
    (finding,) = find(stalls=told[:2], wakes=[wake(s.rank) for s in told[:2]])
    assert (finding.category, finding.ranks) == ("desync", ())  # one against one
