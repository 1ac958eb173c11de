import os
import socket

import numpy as np
import pytest

from engine.data.dataset import SyntheticDataset
from engine.data.node_server import Feed, NodeServer, refuse
from engine.data.order import SampleOrder
from engine.data.ring import Channel, Fault, Hello, Ready, Ring, RingShape, Want
from engine.data.share import Share
from engine.errors import RecipeError
from engine.spec.recipe import BatchSpec

BATCH = BatchSpec(global_batch=8, micro_batch=2)


class Recorded(SyntheticDataset):
    """Counts what is read; sample 31 cannot be read."""

    def __init__(self, bad=None):
        super().__init__(seq=6, vocab=50, seed=1, num=64)
        self.read: list[int] = []
        self.bad = bad

    def samples(self, numbers):
        self.read += numbers.tolist()
        if self.bad is not None and self.bad in self.read:
            raise OSError(5, "Input/output error")
        return super().samples(numbers)

    def files_of(self, numbers):
        return [f"/data/{n // 16}.bin" for n in numbers.tolist()]


def make_feed(data, slots=3, is_endless=True):
    order = SampleOrder(len(data), seed=1, shuffle=False)
    shape = RingShape(
        slots=slots, replicas=(0, 1), micro_batches=2, micro_batch=2, seq=6, dtype="<u2",
        steps_per_epoch=8, tokens_per_byte=None, is_endless=is_endless,
    )  # fmt: skip
    shares = [Share(BATCH, dp=2, replica=r) for r in (0, 1)]
    return Feed(data, order, shares, Ring.create(shape))


class Bench:
    """A server whose turns the test takes one by one, with clients in the same thread."""

    def __init__(self, feed, clients):
        self.feed = feed
        self.server = NodeServer({"train": feed}, socket.socket(), ranks=clients)
        self.clients = []
        for _ in range(clients):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            self.clients.append(Channel(ours))
            self.server.attach(theirs)
            self.say(len(self.clients) - 1, Hello(stream="train"))
            assert self.heard(len(self.clients) - 1) == [feed.ring.shape]

    def say(self, client, message):
        self.clients[client].send(message)
        self.server.turn(block=False)

    def settle(self):
        while self.server.turn(block=False):
            pass

    def heard(self, client):
        descriptors: list[int] = []
        try:
            return self.clients[client].receive(descriptors)
        except BlockingIOError:
            return []
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def test_a_step_is_arranged_by_replica_micro_batch_and_place():
    data = Recorded()
    feed = make_feed(data)
    feed.fill(2)
    slot = feed.ring.slot(2)
    assert slot.shape == (2, 2, 7, 2)
    for replica in (0, 1):
        positions = Share(BATCH, dp=2, replica=replica).positions(2)
        for m in (0, 1):
            rows = SyntheticDataset.samples(data, positions[m])
            assert slot[replica, m].T.tolist() == rows.tolist()
    assert sorted(data.read) == list(range(16, 24))
    assert feed.ring.file == "/data/1.bin"


def test_nothing_is_read_before_all_ranks_have_asked_and_then_each_step_once():
    data = Recorded()
    bench = Bench(make_feed(data), clients=3)
    for client in (0, 1):
        bench.say(client, Want(step=4))
    bench.settle()
    assert data.read == []
    bench.say(2, Want(step=4))
    bench.settle()
    assert sorted(data.read) == list(range(32, 56))
    assert [bench.heard(c) for c in range(3)] == [[Ready(step=4)]] * 3


def test_no_slot_is_reused_before_the_slowest_has_copied_it():
    data = Recorded()
    bench = Bench(make_feed(data, slots=2), clients=2)
    for step in (0, 1, 2):
        bench.say(0, Want(step=step))
        if step == 0:
            bench.say(1, Want(step=0))
        bench.settle()
    assert bench.heard(0) == [Ready(step=0), Ready(step=1)]
    assert bench.heard(1) == [Ready(step=0)]
    before = bench.feed.ring.slot(0).tolist()
    bench.settle()
    assert bench.feed.ring.slot(0).tolist() == before
    assert bench.feed.ring.counters.steps == 2
    bench.say(1, Want(step=1))
    bench.settle()
    assert bench.heard(0) == [Ready(step=2)]
    assert bench.heard(1) == [Ready(step=1)]


def test_going_back_reads_again():
    bench = Bench(make_feed(Recorded(), slots=2), clients=1)
    for step in (5, 6, 2):
        bench.say(0, Want(step=step))
        bench.settle()
        assert bench.heard(0) == [Ready(step=step)]
    order = SampleOrder(64, seed=1, shuffle=False)
    numbers = order.at(Share(BATCH, dp=2, replica=0).positions(2).ravel())[1]
    rows = SyntheticDataset.samples(Recorded(), numbers)
    assert bench.feed.ring.slot(2)[0].swapaxes(1, 2).reshape(4, 7).tolist() == rows.tolist()


def test_a_stream_with_an_end_is_not_read_beyond_it():
    data = Recorded()
    bench = Bench(make_feed(data, is_endless=False), clients=1)
    bench.say(0, Want(step=7))
    bench.settle()
    assert sorted(data.read) == list(range(56, 64))
    bench.say(0, Want(step=-1))
    bench.settle()
    assert len(data.read) == 8


@pytest.mark.parametrize("words", [b"nonsense\n", b'{"type":"want","step":1}\n', b'{"type":"x"}\n'])
def test_a_stranger_is_shown_the_door_and_the_others_stay(words):
    bench = Bench(make_feed(Recorded()), clients=1)
    ours, theirs = socket.socketpair()
    bench.server.attach(theirs)
    ours.sendall(words)
    bench.settle()
    assert ours.recv(10) == b""
    bench.say(0, Want(step=0))
    bench.settle()
    assert bench.heard(0) == [Ready(step=0)]


def test_an_error_reaches_every_rank_with_the_file():
    bench = Bench(make_feed(Recorded(bad=20)), clients=2)
    for client in (0, 1):
        bench.say(client, Want(step=2))
    with pytest.raises(OSError, match="Input/output"):
        bench.settle()
    bench.server.tell(OSError(5, "Input/output error"))
    for client in (0, 1):
        (fault,) = bench.heard(client)
        assert isinstance(fault, Fault)
        assert "Input/output error" in fault.what
        assert "(reading /data/1.bin)" in fault.what
        assert "/data/1.bin" in fault.remedy


def test_a_loader_that_cannot_begin_tells_each_rank_why(tmp_path):
    import threading

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(4)
        error = RecipeError("x.jsonl:3: bad line", remedy="correct it")
        thread = threading.Thread(target=refuse, args=(listener, error), kwargs={"ranks": 2})
        thread.start()
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as rank:
                rank.settimeout(10)
                rank.connect(str(tmp_path / "s"))
                channel = Channel(rank)
                channel.send(Hello(stream="train"))
                assert channel.receive_one() == Fault(
                    kind="RecipeError", what="x.jsonl:3: bad line", remedy="correct it"
                )
        thread.join(10)
        assert not thread.is_alive()


def test_token_numbers_fit_the_slots():
    feed = make_feed(Recorded())
    feed.fill(0)
    assert feed.ring.slot(0).dtype == np.uint16
