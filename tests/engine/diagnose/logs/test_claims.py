"""From hits to claims: who says it, whom it names, and what it weighs after what followed."""

import gzip

import pytest

from engine.diagnose.logs.claims import SURVIVED, claims_of, pid_ranks, source_of
from engine.diagnose.logs.scan import Scanner

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
STEP = "iteration {n}/ 50 | lm loss: 2.1"


def claims(root, text, name="rank_3.log"):
    path = root / name
    path.parent.mkdir(exist_ok=True, parents=True)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return claims_of(source_of(Scanner().scan(path), root))


def one(root, text, name="rank_3.log"):
    (claim,) = claims(root, text, name)
    return claim


def test_a_claim_says_what_where_and_by_whom(tmp_path):
    claim = one(tmp_path, f"ok\n{OOM}\n", "node-7/rank_3.log")
    assert (claim.category, claim.weight, claim.rank, claim.node) == ("cuda_oom", 3.0, 3, "node-7")
    assert (claim.line, claim.text, claim.kernel) == (2, OOM, False)
    assert claim.named == ()


def test_in_a_merged_file_the_line_tells_its_rank(tmp_path):
    claim = one(tmp_path, f"[rank5]: {OOM}\n", "job.log")
    assert (claim.rank, claim.named) == (5, (5,))
    assert one(tmp_path, f"[rank5]: {OOM}\n").rank == 3  # the file knows better


def test_the_ranks_that_a_line_is_about_are_named(tmp_path):
    claim = one(
        tmp_path, "RuntimeError: Ranks 4, 6 failed to pass monitoredBarrier in 1800000 ms\n"
    )
    assert (claim.category, claim.rank, claim.named) == ("rank_blocked", 3, (4, 6))
    claim = one(tmp_path, "[rank2]: Ranks 4 failed to pass monitoredBarrier in 18 ms\n", "job.log")
    assert (claim.rank, claim.named) == (2, (4,))


def test_claims_come_in_the_order_of_lines(tmp_path):
    found = claims(tmp_path, f"KeyError: 'x'\n{OOM}\nKeyError: 'y'\nConnection closed by peer\n")
    assert [c.line for c in found] == [1, 2, 3, 4]
    assert [c.category for c in found] == ["code_error", "cuda_oom", "code_error", "wake"]
    assert [c.weight for c in found] == [1, 3, 1, 0]


def test_an_error_after_which_the_rank_trains_on_was_survived(tmp_path):
    more = "".join(STEP.format(n=n) + "\n" for n in range(3))
    assert one(tmp_path, f"{more}{OOM}\n").weight == 3
    assert one(tmp_path, f"{OOM}\n{more}").weight == 0.1
    assert one(tmp_path, f"[rank5]: {OOM}\n[rank6] {more}", "job.log").weight == 0.1  # no prefix
    other = "".join(f"[rank6] {STEP.format(n=n)}\n" for n in range(3))
    assert one(tmp_path, f"[rank5]: {OOM}\n{other}", "job.log").weight == 3
    assert one(tmp_path, f"{OOM}\n" + "x" * (1 << 18) + f"\n{more}").weight == 3


def test_a_skipped_step_stays_a_finding_though_the_job_goes_on(tmp_path):
    text = "number of nan iterations: 3\n" + STEP.format(n=1) + "\n"
    assert one(tmp_path, text).weight == 2


def test_the_end_of_a_packed_log_is_not_read_again(tmp_path):
    assert one(tmp_path, f"{OOM}\n{STEP.format(n=1)}\n", "rank_3.log.gz").weight == 3


@pytest.mark.parametrize(
    ("line", "weight"),
    [
        (OOM, 3), (f"hint: {OOM}", 0.1), (f"caught OutOfMemoryError: {OOM}", 0.1),
        ("KeyError: this may be wrong", 0.5), (f"{OOM}, see the documentation", 3),
        (f"[rank3]:     raise ValueError({OOM})", 2.6),
    ],
)  # fmt: skip
def test_advice_and_quoted_source_weigh_less(tmp_path, line, weight):
    assert one(tmp_path, line + "\n").weight == pytest.approx(weight)


def test_a_kernel_log_speaks_for_a_node_and_weighs_more(tmp_path):
    line = "Jan  1 10:00:00 gpu-7 kernel: NVRM: Xid (PCI:0000:A1:00): 79, pid=12, gone"
    claim = one(tmp_path, f"{line}\n{STEP.format(n=1)}\n", "dmesg")
    assert (claim.category, claim.rank, claim.node) == ("gpu_lost", None, "gpu-7")
    assert (claim.kernel, claim.weight, claim.device) == (True, 3.25, "0000:a1:00.0")


def test_devices_are_addresses_processes_or_indices(tmp_path):
    assert (
        one(tmp_path, "Out of memory: Killed process 4711 (python)\n", "dmesg").device == "pid 4711"
    )
    line = "GPU 0000:87:00.0 has fallen off the bus and is not responding"
    assert one(tmp_path, line + "\n").device == "0000:87:00.0"
    line = "NVRM: GPU at PCI:0000:17:00: GPU is lost"  # the rule that counts names no address
    assert one(tmp_path, line + "\n").device == "0000:17:00.0"
    assert one(tmp_path, "[5] misc.cc:1 NCCL WARN Cuda failure 'x'\n").device == "5"


def test_the_address_that_cannot_be_reached_is_the_node(tmp_path):
    line = "node1:1:1 [0] NCCL WARN Connect to 10.1.0.7<41133> failed : No route to host"
    assert one(tmp_path, line + "\n").node == "10.1.0.7"
    assert one(tmp_path, "node12:1:1 [0] " + OOM + "\n").node == "node12"


def test_a_full_device_under_shared_memory_is_its_limit(tmp_path):
    full = "OSError: [Errno 28] No space left on device\n"
    frame = '  File "/lib/multiprocessing/heap.py", line 1\n'
    assert one(tmp_path, frame + full).category == "shm_limit"
    assert one(tmp_path, full + frame).category == "disk_full"
    assert one(tmp_path, frame + "x" * 4096 + "\n" + full).category == "disk_full"


def test_only_the_first_hits_of_a_rule_are_asked_what_followed(tmp_path):
    found = claims(tmp_path, f"{OOM}\n" * 6 + STEP.format(n=1) + "\n")
    assert [c.weight for c in found] == [0.1] * 4 + [3.0] * 2


def test_a_file_that_is_gone_by_then_keeps_its_claims(tmp_path):
    path = tmp_path / "rank_0.log"
    path.write_text("OSError: [Errno 28] No space left on device\n")
    scan = Scanner().scan(path)
    path.unlink()
    (claim,) = claims_of(source_of(scan, tmp_path))
    assert (claim.category, claim.weight) == ("disk_full", 3)


def test_the_head_of_a_file_tells_process_host_and_world(tmp_path):
    head = "node12:3096:3100 [0] NCCL INFO start\nworld_size=64 pid 3097\n"
    (tmp_path / "rank_3.log").write_text(head)
    (tmp_path / "job.log").write_text(head)
    ranked, merged = (
        source_of(Scanner().scan(tmp_path / name), tmp_path) for name in ("rank_3.log", "job.log")
    )
    assert (ranked.pids, ranked.host, ranked.world) == ((3096, 3097), "node12", 64)
    assert merged.pids == ()
    assert pid_ranks([ranked, merged]) == {3096: 3, 3097: 3}


RAY = "There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer"


def test_a_list_of_possible_causes_is_a_guess(tmp_path):
    assert (one(tmp_path, RAY + "\n").category, one(tmp_path, RAY + "\n").weight) == (
        "host_oom",
        0.5,
    )


def test_a_retry_weighs_less_than_the_call_given_up(tmp_path):
    text = "NCCL INFO Call to connect returned Connection refused, retrying\n"
    text += "NCCL WARN Connect to 10.38.10.112<21724> failed : Connection refused\n"
    assert [c.weight for c in claims(tmp_path, text)] == [1.5, 2]


def test_all_culprits_of_a_line_are_named(tmp_path):
    text = (
        "error msg: Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Culprit rank 110; Error\n"
    )
    found = one(tmp_path, text, "analysis.txt")
    assert (found.category, set(found.named)) == ("desync", {22, 110})


def test_a_hint_after_a_report_leaves_it_a_report(tmp_path):
    report = "TPU VM a is in PREEMPTED state. Skipping. Hint: see the docs.\n"
    assert one(tmp_path, report, "job.log").weight == 3
    assert one(tmp_path, f"hint: {OOM}\n", "job.log").weight == 0.1


def test_an_io_error_is_a_bad_sample_unless_the_call_wrote(tmp_path):
    error = "OSError: [Errno 5] Input/output error: '/d/x'\n"
    frame = '  File "/x.py", line 7, in {}\n    call()\n'
    for calls, category in (
        (("train", "makedirs", "mkdir"), "node_fault"),
        (("main", "save_checkpoint", "_write"), "node_fault"),
        (("__getitem__", "read"), "data_error"),
        (("save_samples", "load_image"), "data_error"),  # the nearest calls: it read
        ((), "data_error"),
    ):
        text = "".join(frame.format(call) for call in calls)
        assert one(tmp_path, text + error).category == category


def test_who_came_is_not_to_blame_for_who_did_not(tmp_path):
    line = "Timed out initializing process group in store based barrier on rank: 0, for key: k:1"
    claim = one(tmp_path, line + "\n", "job.log")
    assert (claim.category, claim.rank, claim.named) == ("rendezvous", 0, ())


def test_a_word_after_node_is_no_name(tmp_path):
    log = tmp_path / "job.log"
    for head, host in (
        ("Starting multi-node training", ""),
        ("Setting up node rank 0", ""),
        ("running on node c12-4", "c12-4"),
        ("hostname: trainer", "trainer"),
        ("node=alpha", "alpha"),
    ):
        log.write_text(head + "\n")
        assert source_of(Scanner().scan(log), tmp_path).host == host


def test_a_wake_after_which_steps_went_on_woke_nobody(tmp_path):
    wake = "pdsh@head: node-3: ssh exited with exit code 1\n"
    steps = "".join(STEP.format(n=n) + "\n" for n in range(3))
    assert one(tmp_path, wake + steps, "job.log").weight == SURVIVED
    assert one(tmp_path, wake + STEP.format(n=1) + "\n", "job.log").weight == 0  # from a buffer?
    late = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=SEND)\n"
    assert one(tmp_path, late + steps, "job.log").weight == 0  # who waited so long was not well


def test_a_warning_of_python_is_advice(tmp_path):
    text = "should be divisible by tensor parallel size"
    assert one(tmp_path, f"/x/y.py:3: UserWarning: {text}\n").weight == 0.1
    assert one(tmp_path, f"ValueError: vocab {text}\n").category == "rank_layout"


def test_a_link_that_comes_up_as_a_host_boots_is_no_fault(tmp_path):
    down, up = "[ 4.0] ice eth2: NIC Link is Down\n", "[ 9.0] ice eth2: NIC Link is Up 100 Gbps\n"
    assert one(tmp_path, down, "dmesg").weight == 3.25
    assert one(tmp_path, down + up, "dmesg").weight < 0
    assert one(tmp_path, down + up.replace("eth2", "eth3"), "dmesg").weight == 3.25
    late = down.replace(" 4.0", "9000.0") + up.replace(" 9.0", "9004.0")
    assert one(tmp_path, late, "dmesg").weight == 3.25


def test_a_log_is_a_kernels_if_the_caller_says_so(tmp_path):
    path = tmp_path / "rank_3.txt"
    path.write_text("NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus\n")
    source = source_of(Scanner().scan(path), tmp_path, kernel=True)
    assert (source.place.kernel, source.place.rank) == (True, None)
