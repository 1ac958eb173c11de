import os
import socket

import msgspec
import numpy as np
import pytest

from engine.data.ring import Channel, Hello, Ready, Ring, RingShape, Want
from engine.errors import MissingError

SHAPE = RingShape(
    slots=3, replicas=(1, 4), micro_batches=2, micro_batch=3, seq=5, dtype="<u2",
    steps_per_epoch=7, tokens_per_byte=None, is_endless=True,
)  # fmt: skip


def test_what_one_side_writes_the_other_sees_and_cannot_change():
    ours = Ring.create(SHAPE)
    theirs = Ring(SHAPE, os.dup(ours.descriptor))
    tokens = np.arange(2 * 2 * 6 * 3).reshape(SHAPE.step_shape)
    ours.slot(4)[:] = tokens
    assert theirs.slot(1).tolist() == tokens.tolist()
    assert theirs.slot(5).sum() == theirs.slot(3).sum() == 0
    assert not theirs.slot(0).flags.writeable


def test_sizes_are_those_of_the_tokens():
    assert SHAPE.step_shape == (2, 2, 6, 3)
    assert SHAPE.slot_bytes == 2 * 2 * 6 * 3 * 2
    assert SHAPE.total_bytes == 4096 + 3 * SHAPE.slot_bytes


def test_the_file_being_read_and_the_counters_are_shared():
    ours = Ring.create(SHAPE)
    theirs = Ring(SHAPE, os.dup(ours.descriptor))
    assert theirs.file == ""
    for name in ("/data/ä.bin", "/short"):
        ours.note_file(name)
        assert theirs.file == name
    ours.note_file("x" * 10_000)
    assert 4000 < len(theirs.file) < 4096
    ours.count(bytes_read=100, fill_ns=7)
    ours.count(bytes_read=50, fill_ns=3)
    assert msgspec.structs.astuple(theirs.counters) == (150, 2, 10)


def test_memory_that_is_not_there_is_an_error():
    with pytest.raises(MissingError, match="cannot share"):
        Ring.create(msgspec.structs.replace(SHAPE, slots=1 << 50))


def test_messages_and_descriptors_arrive_whole_and_in_order():
    left, right = (Channel(s) for s in socket.socketpair())
    ring = Ring.create(SHAPE)
    left.send(Hello(stream="train"))
    left.send(Want(step=3))
    assert right.receive_one() == Hello(stream="train")
    assert right.receive_one() == Want(step=3)
    right.send(SHAPE, ring.descriptor)
    descriptors: list[int] = []
    assert left.receive_one(descriptors) == SHAPE
    ring.slot(0)[:] = 9
    assert (Ring(SHAPE, descriptors[0]).slot(0) == 9).all()
    right.socket.sendall(b'{"type":"ready",')
    right.socket.sendall(b'"step":12}\n')
    assert left.receive_one() == Ready(step=12)


def test_nonsense_and_a_closed_end_are_errors():
    left, right = (Channel(s) for s in socket.socketpair())
    left.socket.sendall(b"nonsense\n")
    with pytest.raises(msgspec.DecodeError):
        right.receive()
    left.socket.sendall(b'{"type":"shell"}\n')
    with pytest.raises(msgspec.ValidationError):
        right.receive()
    left.socket.close()
    with pytest.raises(EOFError):
        right.receive()
