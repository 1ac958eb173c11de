"""A copy of a node's snapshots in the memory of another node, so that a lost node costs no reading.

The flusher of a node sends each snapshot to its partner's flusher before it writes it to the store,
and serves copies to whoever restarts in the place of a lost node. A connection begins with a proof
that both sides know the run's secret; messages are JSON of bounded length, data are raw bytes with
their xxh3-128 digest behind them. What arrives is written beside the node's own spool, in the same
form: image first, then the ticket that makes it count.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import xxhash

from engine.ckpt.arena import SLOTS, Peers, Spool, Ticket, check_room, map_slot
from engine.errors import CheckpointError, EngineError
from engine.spec.base import Noun, Size

logger = logging.getLogger(__name__)

TIMEOUT_S = 20.0
"""Longest silence on a connection."""

_MESSAGE_LIMIT = 64 << 20
_PROOF_BYTES = 32
_BLOCK = 4 << 20
_DIGEST_BYTES = 16
_MOST_RANK = 1 << 24
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PEERS = "peers"
"""Folder in a spool that holds the copies of other nodes, one spool each."""


class Copy(Noun, frozen=True, kw_only=True):
    """A snapshot that is in some node's memory."""

    node: str
    """Whose memory it was made in."""
    rank: Size
    slot: Size
    folder: str
    step: Size


class Request(Noun, frozen=True, kw_only=True):
    """The first message of a client."""

    op: Literal["put", "get"]
    copy: Copy
    ticket: Ticket | None = None


def copies_in(spool: Path, node: str) -> list[Copy]:
    """The node's own snapshots and those it keeps for others."""
    found = _copies(spool, node)
    peers = spool / PEERS
    for name in sorted(os.listdir(peers)) if peers.is_dir() else []:
        if _NODE.fullmatch(name):
            found += _copies(peers / name, name)
    return found


def _copies(spool: Path, node: str) -> list[Copy]:
    if not spool.is_dir():
        return []
    held = Spool(spool)
    found = []
    for rank, slot in held.tickets():
        ticket = held.ticket(rank, slot)
        if ticket:
            found.append(
                Copy(node=node, rank=rank, slot=slot, folder=ticket.folder, step=ticket.step)
            )
    return found


class Server:
    """Takes and gives copies on a port of its own, one connection at a time, in a thread."""

    def __init__(self, spool: Spool, peers: Peers) -> None:
        self._spool, self._first = spool, peers
        self._socket = socket.create_server((peers.listen, 0), backlog=16)
        host, port = self._socket.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._thread = threading.Thread(target=self._serve, name="partner", daemon=True)
        self._thread.start()

    @property
    def _peers(self) -> Peers:
        """As the trainer last said: partners change while the server stays."""
        return self._spool.peers() or self._first

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with link:
                link.settimeout(TIMEOUT_S)
                try:
                    self._answer(link)
                except (OSError, EngineError, ValueError) as error:
                    logger.warning("partner: %s", error)

    def _answer(self, link: socket.socket) -> None:
        nonce = os.urandom(_PROOF_BYTES)
        link.sendall(nonce)
        if not hmac.compare_digest(_receive(link, _PROOF_BYTES), _proof(self._peers.secret, nonce)):
            raise CheckpointError("a stranger called", remedy="none: it was refused")
        request = msgspec.json.decode(_message(link), type=Request)
        _check(request.copy)
        if request.op == "put":
            self._take(link, request)
        else:
            self._give(link, request.copy)

    def _take(self, link: socket.socket, request: Request) -> None:
        copy, ticket = request.copy, request.ticket
        if ticket is None or ticket.part.file is None or copy.node != self._peers.source:
            raise CheckpointError(f"{copy.node} is not the partner", remedy="none: it was refused")
        base = self._spool.folder / PEERS
        base.mkdir(mode=0o700, exist_ok=True)
        for other in base.iterdir():
            if other.name != copy.node:
                _forget(other)
        held = Spool(base / copy.node)
        receive_image(link, held, copy, ticket)
        link.sendall(b"+")

    def _give(self, link: socket.socket, copy: Copy) -> None:
        own = copy.node == self._peers.node
        held = self._spool if own else Spool(self._spool.folder / PEERS / copy.node)
        with held.hold(f"r{copy.rank:05d}.{copy.slot}", wait=True):
            ticket = held.ticket(copy.rank, copy.slot)
            if ticket is None or ticket.folder != copy.folder or ticket.part.file is None:
                raise CheckpointError(f"{copy} is gone", remedy="read the store")
            _send(link, msgspec.json.encode(ticket))
            send_image(link, held, copy, ticket.part.file.bytes)


def push(address: str, secret: str, spool: Spool, copy: Copy, ticket: Ticket) -> None:
    """Send a snapshot to the partner; the caller holds the slot. OSError or CheckpointError."""
    file = ticket.part.file
    assert file is not None, "a snapshot has a file"
    with _connect(address, secret) as link:
        _send(link, msgspec.json.encode(Request(op="put", copy=copy, ticket=ticket)))
        send_image(link, spool, copy, file.bytes)
        _receive(link, 1)


def fetch(address: str, secret: str, copy: Copy, spool: Spool, *, slot: int) -> Ticket:
    """Bring a copy into a slot of this node's spool; OSError or CheckpointError if it cannot be."""
    with _connect(address, secret) as link:
        _send(link, msgspec.json.encode(Request(op="get", copy=copy)))
        ticket = msgspec.json.decode(_message(link), type=Ticket)
        receive_image(link, spool, msgspec.structs.replace(copy, slot=slot), ticket)
    return ticket


def send_image(link: socket.socket, spool: Spool, copy: Copy, size: int) -> None:
    """The bytes of a slot and their digest."""
    digest = xxhash.xxh3_128()
    with memoryview(map_slot(spool.image(copy.rank, copy.slot), size, create=False)) as memory:
        for at in range(0, size, _BLOCK):
            block = memory[at : min(size, at + _BLOCK)]
            digest.update(block)
            link.sendall(block)
    link.sendall(digest.digest())


def receive_image(link: socket.socket, spool: Spool, copy: Copy, ticket: Ticket) -> None:
    """Fill a slot from a connection; its ticket is written when all of it is there and right."""
    file = ticket.part.file
    if file is None or ticket.folder != copy.folder or ticket.part.rank != copy.rank:
        raise CheckpointError("a copy and its ticket disagree", remedy="read the store")
    spool.write_ticket(copy.rank, copy.slot, None)
    path = spool.image(copy.rank, copy.slot)
    check_room(spool.folder, max(0, file.bytes - (path.stat().st_size if path.exists() else 0)))
    memory = np.frombuffer(map_slot(path, file.bytes, create=True), np.uint8).data
    digest, at = xxhash.xxh3_128(), 0
    while at < file.bytes:
        got = link.recv_into(memory[at : min(file.bytes, at + _BLOCK)])
        if not got:
            raise ConnectionError(f"the partner left after {at} of {file.bytes} bytes")
        digest.update(memory[at : at + got])
        at += got
    if _receive(link, _DIGEST_BYTES) != digest.digest():
        raise CheckpointError("a copy arrived damaged", remedy="it is sent again with the next one")
    spool.write_ticket(copy.rank, copy.slot, ticket)


@contextlib.contextmanager
def _connect(address: str, secret: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as link:
        link.sendall(_proof(secret, _receive(link, _PROOF_BYTES)))
        yield link


def _proof(secret: str, nonce: bytes) -> bytes:
    return hmac.new(secret.encode(), nonce, hashlib.sha256).digest()


def _check(copy: Copy) -> None:
    if not _NODE.fullmatch(copy.node) or copy.rank > _MOST_RANK or copy.slot >= SLOTS:
        raise CheckpointError(f"no such copy: {copy}"[:200], remedy="none: it was refused")


def _send(link: socket.socket, body: bytes) -> None:
    link.sendall(len(body).to_bytes(8, "little") + body)


def _message(link: socket.socket) -> bytes:
    size = int.from_bytes(_receive(link, 8), "little")
    if size > _MESSAGE_LIMIT:
        raise CheckpointError(f"a message of {size} bytes", remedy="none: it was refused")
    return _receive(link, size)


def _receive(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = link.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError("the other side left")
        data += part
    return bytes(data)


def _forget(spool: Path) -> None:
    for path in spool.iterdir():
        path.unlink(missing_ok=True)
    spool.rmdir()
