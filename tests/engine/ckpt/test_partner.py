"""Copies over a connection: only for those who know the secret, bounded, and never half there."""

import socket

import pytest

from engine.ckpt.arena import Peers, Spool, Ticket, map_slot
from engine.ckpt.manifest import CheckpointMeta, FileEntry
from engine.ckpt.partner import Copy, Server, copies_in, fetch, push
from engine.ckpt.save import Part

SECRET = "s" * 32
DATA = bytes(range(256)) * 40
COPY = Copy(node="a", rank=3, slot=1, folder="step-00000007", step=7)


def ticket(size=10240, rank=3):
    file = FileEntry(name=f"rank-{rank:05d}.safetensors", bytes=size, digests="", rank=rank)
    part = Part(rank=rank, file=file)
    return Ticket(
        state="pending", root="/r", folder=COPY.folder, world=4, meta=CheckpointMeta(step=7),
        part=part,
    )  # fmt: skip


@pytest.fixture
def nodes(tmp_path):
    """Node a with a snapshot, node b that keeps a's copies, and b's server."""
    a, b = Spool(tmp_path / "a"), Spool(tmp_path / "b")
    map_slot(a.image(3, 1), len(DATA), create=True)[: len(DATA)] = DATA
    a.write_ticket(3, 1, ticket())
    server = Server(b, Peers(secret=SECRET, node="b", source="a"))
    yield a, b, server
    server.close()


def refused(*arguments):
    """Whether the other side ended the conversation without taking the copy."""
    try:
        push(*arguments)
    except OSError:
        return True
    return False


def held(b):
    return [(c.node, c.rank, c.slot, c.folder) for c in copies_in(b.folder, "b")]


def test_a_copy_goes_there_and_comes_back_the_same(nodes, tmp_path):
    a, b, server = nodes
    push(server.address, SECRET, a, COPY, ticket())
    assert held(b) == [("a", 3, 1, COPY.folder)]
    new = Spool(tmp_path / "c")
    assert fetch(server.address, SECRET, COPY, new, slot=0) == ticket()
    assert new.image(3, 0).read_bytes()[: len(DATA)] == DATA
    assert new.ticket(3, 0) == ticket()


@pytest.mark.parametrize(
    ("secret", "copy"),
    [
        ("t" * 32, COPY),
        (SECRET, Copy(node="x", rank=3, slot=1, folder=COPY.folder, step=7)),
        (SECRET, Copy(node="../a", rank=3, slot=1, folder=COPY.folder, step=7)),
        (SECRET, Copy(node="a", rank=3, slot=7, folder=COPY.folder, step=7)),
        (SECRET, Copy(node="a", rank=2, slot=1, folder=COPY.folder, step=7)),
        (SECRET, Copy(node="a", rank=3, slot=1, folder="step-00000008", step=8)),
    ],
)
def test_strangers_and_nonsense_are_refused_and_the_server_goes_on(nodes, secret, copy):
    a, b, server = nodes
    map_slot(a.image(copy.rank, copy.slot), len(DATA), create=True)
    assert refused(server.address, secret, a, copy, ticket())
    assert held(b) == []
    push(server.address, SECRET, a, COPY, ticket())
    assert held(b) == [("a", 3, 1, COPY.folder)]


def test_what_breaks_off_or_is_absurdly_large_leaves_no_copy(nodes, monkeypatch):
    a, b, server = nodes
    push(server.address, SECRET, a, COPY, ticket())
    monkeypatch.setattr("engine.ckpt.partner.send_image", lambda *args: None)
    assert refused(server.address, SECRET, a, COPY, ticket(size=1 << 50))
    assert held(b) == [], "the copy before is no longer whole"
    with socket.create_connection(server.address.split(":"), timeout=5) as link:
        link.recv(32)
        link.sendall(b"x" * 32)
        assert link.recv(1) == b""
