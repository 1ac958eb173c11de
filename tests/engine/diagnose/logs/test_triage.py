"""The first cause out of whole logs in every split that launchers make."""

import pytest

from engine.diagnose.logs.claims import Claim
from engine.diagnose.logs.scan import Scanner
from engine.diagnose.logs.triage import rank_candidates, triage

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=2211, name=python, GPU has fallen off the bus."
PEER = "Connection closed by peer [10.0.0.3]:55981"
STEP = "[rank{r}] iteration 1/9 | lm loss: 2.0\n"


def read(root, texts):
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    scanner = Scanner()
    return triage([scanner.scan(root / name) for name in texts], root)


def claim(category, weight=3.0, rank=0, line=1, file="f", kernel=False):
    return Claim(category, weight, rank, (), "", "", file, line, "text", kernel)


def order(claims, world=8):
    return [c.category for c in rank_candidates(claims, world)]


def test_a_file_a_rank_names_the_rank(tmp_path):
    texts = {f"rank_{r}.log": STEP.format(r=r) * 3 for r in range(4)}
    texts["rank_2.log"] += f"{OOM}\n"
    texts["rank_0.log"] += f"{PEER}\n"
    found = read(tmp_path, texts)
    first = found.findings[0]
    assert (first.kind, first.category, first.ranks) == ("crash", "cuda_oom", (2,))
    assert (first.evidence[0].line, first.evidence[0].rank) == (4, 2)
    assert first.confidence == 0.95
    assert (found.world, found.ranks) == (4, {0, 1, 2, 3})


@pytest.mark.parametrize("name", ["job.log", "all/slurm-1.out"])
def test_a_merged_file_names_the_rank_by_its_line(tmp_path, name):
    text = "".join(STEP.format(r=r) for r in range(4)) + f"[rank2]: {OOM}\n[rank0]: {PEER}\n"
    found = read(tmp_path, {name: text})
    assert (found.findings[0].category, found.findings[0].ranks) == ("cuda_oom", (2,))


def test_a_kernel_log_names_the_node_and_the_device(tmp_path):
    found = read(tmp_path, {"gpu-7/dmesg.txt": f"Jan  1 10:00:00 gpu-7 kernel: {LOST}\n"})
    first = found.findings[0]
    assert (first.category, first.nodes, first.device) == ("gpu_lost", ("gpu-7",), "0000:3b:00.0")
    assert first.ranks == ()


def test_a_killed_process_is_the_rank_that_has_its_number(tmp_path):
    texts = {f"rank_{r}.log": f"gpu-7:{4000 + r}:1 [0] NCCL INFO x\n" * 2 for r in range(4)}
    kill = "Jan  1 10:00:00 gpu-7 kernel: Out of memory: Killed process 4002 (python)\n"
    found = read(tmp_path, texts | {"dmesg": kill})
    assert (found.findings[0].category, found.findings[0].ranks) == ("host_oom", (2,))


def test_else_it_is_the_rank_of_the_node_that_says_nothing(tmp_path):
    texts = {
        f"node-{r // 2}/rank_{r}.log": STEP.format(r=r) + (f"{PEER}\n" if r != 3 else "")
        for r in range(4)
    }
    kill = "Jan  1 10:00:00 node1 kernel: Out of memory: Killed process 99 (python)\n"
    found = read(tmp_path, texts | {"dmesg": kill})
    first = found.findings[0]
    assert (first.category, first.ranks, first.nodes) == ("host_oom", (3,), ("node1",))


def test_wakes_are_counted_as_symptoms_the_most_frequent_first(tmp_path):
    texts = {f"rank_{r}.log": f"ok\n{PEER}\n" for r in range(3)}
    texts["rank_3.log"] = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3\n"
    found = read(tmp_path, texts)
    assert [(s.what, s.count) for s in found.symptoms] == [
        ("connection closed", 3), ("watchdog time-out", 1),
    ]  # fmt: skip
    assert found.symptoms[0].first.line == 2
    assert found.symptoms[0].first.rank == 0


def test_a_slow_thing_is_no_crash(tmp_path):
    text = STEP.format(r=0) + "gc: done, 81233 unreachable, 0 uncollectable, 1.4312s elapsed\n"
    first = read(tmp_path, {"job.log": text}).findings[0]
    assert (first.kind, first.category, first.cost) == ("perf", "perf_gc", 0.05)


def test_survived_errors_and_advice_are_no_findings(tmp_path):
    assert read(tmp_path, {"rank_0.log": f"{OOM}\n" + STEP.format(r=0)}).findings == ()
    assert read(tmp_path, {"rank_0.log": f"hint: {OOM}\n"}).findings == ()
    assert read(tmp_path, {}) == ((), (), frozenset(), 0)


def test_the_world_is_what_the_log_says_and_ranks_beyond_it_are_nobody(tmp_path):
    text = "world_size=4\nRuntimeError: Ranks 3, 9 failed to pass monitoredBarrier in 1800 ms\n"
    found = read(tmp_path, {"job.log": text})
    assert (found.world, found.findings[0].ranks) == (4, (3,))


def test_the_ranks_that_a_report_names_and_not_the_one_that_reports(tmp_path):
    texts = {f"rank_{r}.log": "ok\n" for r in range(4)}
    texts["rank_0.log"] += "RuntimeError: Ranks 3 failed to pass monitoredBarrier in 1800000 ms\n"
    assert read(tmp_path, texts).findings[0].ranks == (3,)


def test_what_nearly_all_ranks_print_singles_out_nobody(tmp_path):
    texts = {f"rank_{r}.log": f"{OOM}\n" for r in range(20)}
    assert read(tmp_path, texts).findings[0].ranks == ()
    texts |= {f"rank_{r}.log": "ok\n" for r in range(16, 20)}
    assert read(tmp_path, texts).findings[0].ranks == tuple(range(16))


def test_stronger_before_weaker_and_rarer_before_common_and_hardware_before_software():
    assert order([claim("code_error", 1), claim("gpu_ecc", 3)]) == ["gpu_ecc", "code_error"]
    two = [claim("code_error", 2, rank=0, file="a"), claim("code_error", 2, rank=1, file="b")]
    assert order([*two, claim("lib_bug", 2, rank=2, file="c")]) == ["lib_bug", "code_error"]
    a, b = claim("code_error", 2, file="a"), claim("gpu_fault", 2, rank=1, file="b")
    assert order([a, b]) == ["gpu_fault", "code_error"]


def test_in_one_file_the_first_line_counts():
    assert order([claim("gpu_fault", 2, line=9), claim("code_error", 2, line=3)])[0] == "code_error"


def test_what_a_third_of_the_ranks_print_yields_to_what_few_do():
    wide = [claim("net_config", 3, rank=r, file=f"f{r}") for r in range(6)]
    few = claim("code_error", 2, rank=9, file="f9")
    assert order([*wide, few], world=16)[0] == "code_error"
    assert order([*wide, few], world=32)[0] == "net_config"  # no longer wide
    assert order([*wide, few], world=8)[0] == "net_config"  # too small a job to tell
    assert order(wide, world=16) == ["net_config"]


def test_a_candidate_has_the_ranks_of_its_strong_claims_only():
    (found,) = rank_candidates(
        [claim("code_error", 3, rank=1), claim("code_error", 2.5, rank=2, line=2),
         claim("code_error", 2.4, rank=3), claim("code_error", 3, rank=4, kernel=True)], 8,
    )  # fmt: skip
    assert found.ranks == (1, 2)
    assert (found.score, found.best.rank, len(found.claims)) == (3, 1, 4)


WAIT = (
    "[rank{r}]:[E1] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)\n"
)
RETOLD = (
    "RuntimeError: NCCL error in: NCCLUtils.hpp:317, unhandled system error, NCCL version 2.7.8\n"
)
MENU = "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer\n"


def category(root, text):
    return read(root, {"job.log": text}).findings[0].category


def test_what_follows_a_time_out_is_not_its_cause(tmp_path):
    assert category(tmp_path, WAIT.format(r=2) + RETOLD) == "unknown_hang"
    assert category(tmp_path, WAIT.format(r=2) + MENU) == "unknown_hang"
    assert category(tmp_path, WAIT.format(r=2) + f"[rank5]: {OOM}\n") == "cuda_oom"


def test_what_stands_before_a_time_out_or_without_one_may_be(tmp_path):
    assert category(tmp_path, RETOLD + WAIT.format(r=2)) == "net_config"
    assert category(tmp_path, RETOLD) == "net_config"
    assert category(tmp_path, MENU) == "host_oom"


def test_of_several_waits_the_one_that_names_its_call_is_shown(tmp_path):
    text = "[E1] Some NCCL operations have failed or timed out.\n" + WAIT.format(r=0)
    assert read(tmp_path, {"job.log": text}).findings[0].evidence[0].line == 2


def test_a_task_that_sends_no_heartbeat_is_the_silent_one(tmp_path):
    text = "Task /job:jax_worker/replica:0/task:37 heartbeat timeout. The task has failed\n"
    first = read(tmp_path, {"job.log": text}).findings[0]
    assert (first.category, first.ranks) == ("unknown_hang", (37,))


WARNING = "[W socket.cpp:697] [c10d] The client socket has failed to connect to [n1]:29500"


def test_what_quiet_ranks_warned_of_did_not_keep_others_from_steps(tmp_path):
    # as Megatron logs: steps on the last rank only
    texts = {f"rank_{r}.log": f"{WARNING}\n" for r in range(3)} | {"rank_3.log": STEP.format(r=3)}
    assert read(tmp_path, texts).findings == ()
    texts["rank_1.log"] += "ValueError: shape of x is wrong\n"
    first = read(tmp_path, texts).findings[0]
    assert (first.category, first.ranks) == ("code_error", (1,))
    texts["rank_3.log"] = "starting\n"
    assert read(tmp_path, texts).findings[0].category == "rendezvous"


def test_srun_cancels_a_step_after_a_task_failed(tmp_path):
    end = (
        "srun: error: node01: task 2: Exited with exit code 1\n"
        "slurmstepd: error: *** STEP 7.0 ON node01 CANCELLED AT 2026-03-02T12:10:30 ***\n"
        "srun: error: node01: tasks 0-1,3: Terminated\n"
    )
    first = read(tmp_path, {"slurm-7.out": "2: ValueError: x\n" + end}).findings[0]
    assert (first.category, first.ranks) == ("code_error", (2,))
    found = read(tmp_path, {"slurm-7.out": end.split("\n", 1)[1]}).findings
    assert "scheduler" in {finding.category for finding in found}
    ended = {"slurm-7.out": end.split("\n", 1)[0] + "\n"}
    first = read(tmp_path, ended).findings[0]
    assert (first.category, first.ranks) == ("code_error", (2,))
