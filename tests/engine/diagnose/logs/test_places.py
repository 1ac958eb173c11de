"""Ranks, nodes and progress, out of paths and lines as launchers and loggers write them."""

from pathlib import Path

import pytest

from engine.diagnose.logs.places import (
    gpu_in,
    is_progress,
    node_in,
    peer_in,
    place_of,
    rank_in,
    ranks_listed,
)

ROOT = Path("/logs/rank_99")


@pytest.mark.parametrize(
    ("path", "rank", "node"),
    [
        ("rank_3.log", 3, ""), ("rank-00012.out", 12, ""), ("Rank7.log.gz", 7, ""),
        ("r5.txt", 5, ""),
        ("node-3/rank_1.log", 1, "node-3"), ("gpu-12/task_4.err", 4, "gpu-12"),
        ("dgx07.log", None, "dgx07"),
        ("attempt_0/2/stderr.log", 2, ""), ("attempt_0/02/stdout.log.zst", 2, ""),
        ("0/error.json", 0, ""),
        ("2/train.log", None, ""), ("stderr.log", None, ""), ("rank_x.log", None, ""),
        ("frank_3.log", None, ""), ("rank_3b.log", None, ""), ("node12/dmesg.txt", None, "node12"),
    ],
)  # fmt: skip
def test_a_path_names_rank_and_node(path, rank, node):
    place = place_of(ROOT / path, ROOT)
    assert (place.rank, place.node) == (rank, node)


@pytest.mark.parametrize("name", ["dmesg", "kern.log", "kernel.log", "journalctl.txt", "syslog.1"])
def test_a_kernel_log_belongs_to_no_rank(name):
    place = place_of(ROOT / "rank_3" / name, ROOT)
    assert (place.rank, place.kernel) == (None, True)
    assert not place_of(ROOT / "rank_3.log", ROOT).kernel


def test_what_lies_above_the_folder_that_was_named_says_nothing():
    assert place_of(ROOT / "train.log", ROOT).rank is None
    assert place_of(Path("/else/rank_4/rank_5.log"), ROOT).rank == 5


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank3]: ValueError: x", 3), ("[default7]:loss", 7), ("[local_rank:2] x", 2),
        ("[1,12]<stderr>: x", 12), ("2019-06-02T16:13Z: [1,13]<stdout>:x", 13),
        ("[E ProcessGroupNCCL.cpp:1] [Rank 5] Watchdog", 5),
        ("[PG 0 Rank 9] x", 9), ("[PG ID 2 PG GUID 3(mesh_tp) Rank 17] x", 17),
        ("(Worker rank=4 pid=9) x", 4), ("[2026-01-01 10:00 rank:6] x", 6), ("rank 8: starting", 8),
        ("2026-01-01 INFO - rank_2 loss", 2), ("12: Traceback", 12),
        ("error on Rank = 31 here", 31), ("[155] crow-19:5330:7970 [3] NCCL WARN x", 155),
        ('{"state": "FAILED", "global_rank": 3, "local_rank": 1}', 3), ('{"rank": "14"}', 14),
        ('{"local_rank": 1}', None), ("[155] something else", None),
        ("no such thing", None), ("rankings 5", None), ("", None), ("10:22:01 step", None),
        ("[rank12345678] too large", None),
    ],
)  # fmt: skip
def test_a_line_names_the_rank_that_says_it(line, rank):
    assert rank_in(line) == rank


def test_the_prefix_counts_and_not_the_rank_that_the_message_is_about():
    assert rank_in("[rank3]: lost Rank 5") == 3


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("node12:3096:3096 [0] NCCL INFO x", "node12"),
        ("Jan  1 10:00:00 gpu-7 kernel: NVRM", "gpu-7"),
        ("2026-01-01T10:00:00 n3 kernel: x", "n3"), ("hostname = worker-2.local", "worker-2.local"),
        ("srun: error: nid0123: task 4: Killed", "nid0123"), ("10.0.0.7: Traceback", "10.0.0.7"),
        ("CANCELLED ON node17 AT", "node17"), ("host-4: x", "host-4"), ("gpu12: x", "gpu12"),
        ("[1,12]<stdout>:node-a:815:864 [0] transport/net_ib.cu:80 NCCL WARN x", "node-a"),
        ("worker-0: worker-0:19:21 [5] NCCL WARN x", "worker-0"),
        ('{"hostname": "host-a", "state": "FAILED"}', "host-a"),
        ("plain text", ""), ("[rank3]: x", ""),
    ],
)  # fmt: skip
def test_a_line_names_its_host(line, node):
    assert node_in(line) == node


@pytest.mark.parametrize(
    ("line", "peer"),
    [
        ("Connect to 10.1.0.7<41133> failed : No route to host", "10.1.0.7"),
        ("connect [10.1.0.9]:3310: Connection refused", "10.1.0.9"), ("listening on 10.1.0.9", ""),
    ],
)  # fmt: skip
def test_the_address_that_was_tried_is_the_peer(line, peer):
    assert peer_in(line) == peer


def test_a_device_index_stands_before_an_nccl_line_only():
    assert gpu_in("node1 [5] transport/net.cc:3 NCCL WARN x") == "5"
    assert gpu_in("[2] NCCL INFO x") == "2"
    assert gpu_in("[2] loss 3.1") == ""


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("3 and rank 0", (3, 0)), ("1, 5, 7", (1, 5, 7)), ("", ()), ("none", ())],
)
def test_listed_ranks_are_numbers(text, ranks):
    assert ranks_listed(text) == ranks
    assert len(ranks_listed("1 " * 100)) == 64


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        (" iteration 12/ 500 | lm loss: 2.1", True), ("step 7: loss=2.0", True), ("iter: 3", True),
        ("12.5 it/s", True), ("1.1 s/it", True), ("900 tokens/s", True), ("loss: -0.5", True),
        ("Iteration took 32.7 s.", True), ("step 7 of the guide", False), ("lossless", False),
        ("the loss was nan", False), ("", False),
    ],
)  # fmt: skip
def test_a_line_that_reports_a_step(line, progress):
    assert is_progress(line) == progress
