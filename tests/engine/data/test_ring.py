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


def test_a_step_is_given_only_while_its_slot_holds_it():
    ours = Ring.create(SHAPE)
    theirs = Ring(SHAPE, os.dup(ours.descriptor))
    tokens = np.arange(2 * 2 * 6 * 3).reshape(SHAPE.step_shape)
    assert theirs.copy(0, 0) is None
    ours.put(4, tokens)
    assert theirs.copy(4, 1).tolist() == tokens[1].tolist()
    assert theirs.copy(4, 1).dtype == np.int64
    assert theirs.copy(1, 1) is None
    ours.put(7, tokens)
    assert theirs.copy(4, 1) is None


def test_a_step_that_is_replaced_while_it_is_copied_is_not_given():
    class Slow(Ring):
        def slot(self, step):
            found = super().slot(step)
            ours.put(7, 5)
            return found

    ours = Ring.create(SHAPE)
    theirs = Slow(SHAPE, os.dup(ours.descriptor))
    ours.put(4, 1)
    assert theirs.copy(4, 0) is None


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
    assert 3000 < len(theirs.file) < 4096
    ours.count(bytes_read=100, fill_ns=7)
    ours.count(bytes_read=50, fill_ns=3)
    assert msgspec.structs.astuple(theirs.counters) == (150, 2, 10)


def test_memory_that_is_not_there_is_an_error():
    with pytest.raises(MissingError, match="cannot share"):
        Ring.create(msgspec.structs.replace(SHAPE, seq=1 << 40))
    with pytest.raises(ValueError, match="0 slots"):
        Ring.create(msgspec.structs.replace(SHAPE, slots=0))


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
    assert left.receive_all() == []
    right.send(Ready(step=1))
    right.send(Ready(step=2))
    assert left.receive_one() == Ready(step=1)
    right.send(Ready(step=3))
    assert left.receive_all() == [Ready(step=2), Ready(step=3)]
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
    left.send(Ready(step=1))
    left.socket.close()
    assert right.receive_all() == [Ready(step=1)]
    with pytest.raises(EOFError):
        right.receive_all()
    with pytest.raises(EOFError):
        right.receive()
