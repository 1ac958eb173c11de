"""Copies on partner nodes: who keeps whose, and a node that is lost with all its memory."""

import os
import shutil
import signal
import time

import pytest
import torch

from engine.ckpt.arena import Spool
from engine.ckpt.flush import FlushOptions
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.memory import load_from_memory
from engine.ckpt.partner import Copy
from engine.ckpt.ring import Place, Ring, _Held, bring_copies, newest_whole, partner_of
from engine.ckpt.two_stage import TwoStage
from tests.engine.ckpt.faulty import judge
from tests.engine.ckpt.state import Ranks, dense, pieces_of

SECRET = "0123456789abcdef"


def places(*nodes):
    return [Place(node=n, replica=r, address=f"{n}:1") for n, replicas in nodes for r in replicas]


@pytest.mark.parametrize(
    ("nodes", "partners"),
    [
        ([("a", [0]), ("b", [1])], "ba"),
        ([("a", [0]), ("b", [0]), ("c", [1]), ("d", [1])], "cdab"),  # over the replica's border
        ([("a", [0, 1]), ("b", [0, 1]), ("c", [0, 1])], "bca"),  # no node is without a replica
    ],
)
def test_each_node_keeps_the_copies_of_one_that_holds_another_replica(nodes, partners):
    names = [name for name, _ in nodes]
    assert "".join(partner_of(name, places(*nodes)) for name in names) == partners
    assert len(set(partners)) == len(names), "nobody keeps copies of two"


def test_the_newest_checkpoint_whose_parts_are_all_somewhere_counts():
    def held(node, *parts):
        copies = tuple(Copy(node=node, rank=r, slot=0, folder=f, step=int(f)) for r, f in parts)
        return _Held(node=node, copies=copies)

    assert newest_whole([held("a", (0, "5"), (0, "6")), held("b", (1, "5"))]) == "5"
    assert newest_whole([held("a", (0, "5")), held("b", (1, "6"))]) == ""
    assert newest_whole([held("c"), held("b", (1, "6"), (0, "6"))]) == "6"


def ring(node, rank):
    return Ring(secret=SECRET, node=node, replica=rank, listen="127.0.0.1")


def wait_for(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


@pytest.mark.multi
def test_a_lost_nodes_snapshot_comes_from_its_partner_without_the_store(tmp_path):
    root, nodes = tmp_path / "root", ("a", "b")

    def train(rank, gather):
        pieces = pieces_of(rank, 1, 2, torch.float32, dense(torch.float32, 5))
        two = TwoStage(
            root, pieces, rank=rank, world=2, gather=gather, spool=tmp_path / nodes[rank],
            options=FlushOptions(), ring=ring(nodes[rank], rank),
        )  # fmt: skip
        two.prepare()
        gather(b"")  # both flushers listen
        for step in (5, 6):
            now = pieces_of(rank, 1, 2, torch.float32, dense(torch.float32, step))
            for piece, fresh in zip(pieces, now, strict=True):
                piece.tensor.copy_(fresh.tensor)
            two.save(pieces, CheckpointMeta(step=step))
            assert two.wait(120)
        wait_for(lambda: len(Spool(two.spool.folder / "peers" / nodes[1 - rank]).tickets()) == 2)
        os.close(two._owner)  # as the kernel does when the trainer is killed

    Ranks(2).run(train)
    assert judge(root, {5, 6}) == {5, 6}
    lost = Spool(tmp_path / "a")
    os.kill(lost.status().pid, signal.SIGKILL)
    shutil.rmtree(lost.folder)
    shutil.rmtree(root)  # the store is not needed

    def restart(rank, gather):
        node = ("c", "b")[rank]
        got = bring_copies(tmp_path / node, ring(node, rank), rank=rank, lead=True, gather=gather)
        pieces = pieces_of(rank, 1, 2, torch.float32)
        meta = load_from_memory(root, pieces, gather=gather, spool=tmp_path / node)
        return got, meta, pieces

    for rank, (got, meta, pieces) in enumerate(Ranks(2).run(restart)):
        assert (got, meta.step) == (1 - rank, 6)
        want = pieces_of(rank, 1, 2, torch.float32, dense(torch.float32, 6))
        assert all(torch.equal(p.tensor, w.tensor) for p, w in zip(pieces, want, strict=True))
    for node in "bc":
        os.kill(Spool(tmp_path / node).status().pid, signal.SIGTERM)
