import contextlib
import socket
import threading

import msgspec
import numpy as np
import pytest

from engine.data import node_loader
from engine.data.loader import open_loaders
from engine.data.megatron import IndexedWriter
from engine.data.node_loader import NodeLoader, open_node_loaders
from engine.data.ring import Channel, Fault, Hello, Ready, Ring, RingShape, Want
from engine.data.share import Share
from engine.errors import RecipeError, RunFailed
from engine.spec.recipe import BatchSpec
from tests.engine.data.files import recipe, spec, write_jsonl
from tests.engine.data.node_case import served, task_of


@pytest.fixture
def asked(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [f"text number {i} " * 5 for i in range(90)])
    data = spec(path, validation=0.3, cache=str(tmp_path / "cache"))
    return recipe(data, global_batch=8, eval_batches=3)


def same(ours, theirs):
    return all(
        a.equal(b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)
    )


def test_it_gives_what_a_loader_of_its_own_gives(asked, tmp_path):
    with served(asked, tmp_path, task_of(asked, ranks=2)) as address:
        nodes = [open_node_loaders(asked, address, replica=r) for r in (0, 1)]
        own = [open_loaders(asked, replica=r) for r in (0, 1)]
        for step in (0, 1, 2, 3, 7, 8, 2, 3):
            # both ask before either is answered, as ranks of their own processes do
            for replica in (0, 1):
                nodes[replica][0].ask(step)
            for replica in (0, 1):
                micro = nodes[replica][0].microbatches(step)
                assert same(micro, own[replica][0].microbatches(step))
                assert micro[0][0].is_contiguous()
        for loader, plain in ((nodes[0][0], own[0][0]), (nodes[0][1], own[0][1])):
            assert loader.steps_per_epoch == plain.steps_per_epoch
            assert loader.tokens_per_byte == plain.tokens_per_byte
        for _ in range(2):
            for step in range(3):
                for replica in (0, 1):
                    nodes[replica][1].ask(step)
                for replica in (0, 1):
                    micro = nodes[replica][1].microbatches(step)
                    assert same(micro, own[replica][1].microbatches(step))
        for pair in nodes:
            for loader in pair:
                loader.close()


def test_without_validation_there_is_one_stream(asked, tmp_path):
    without = msgspec.structs.replace(
        asked, data=msgspec.structs.replace(asked.data, validation=0.0)
    )
    with served(without, tmp_path, task_of(without, ranks=1)) as address:
        train, held_out = open_node_loaders(without, address, replica=0)
        assert held_out is None
        assert len(train.microbatches(0)) == 4
        train.close()


def test_a_bad_token_is_the_error_it_would_be_without_the_node_loader(tmp_path):
    with IndexedWriter(tmp_path / "m", vocab=1000) as writer:
        for _ in range(10):
            writer.add(np.full(20, 700))
    bad = recipe(spec(tmp_path / "m.idx", cache=str(tmp_path / "cache")), dp=1)
    with served(bad, tmp_path, task_of(bad, ranks=1)) as address:
        train, _ = open_node_loaders(bad, address, replica=0)
        with pytest.raises(RecipeError, match=r"m\.bin: token 700 .* model\.vocab = 256"):
            train.microbatches(0)
        train.close()


class Fake:
    """A loader process that the test plays."""

    def __init__(self, folder):
        self.address = str(folder / "fake")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.address)
        self.listener.listen(1)
        shape = RingShape(
            slots=2, replicas=(0,), micro_batches=1, micro_batch=1, seq=4, dtype="<u2",
            steps_per_epoch=5, tokens_per_byte=None, is_endless=True,
        )  # fmt: skip
        self.ring = Ring.create(shape)

    def open(self, timeout_s=5.0):
        """A client; the handshake is prepared by sending the answer before it is read."""
        thread = threading.Thread(target=self._greet)
        thread.start()
        share = Share(BatchSpec(global_batch=1), dp=1, replica=0)
        loader = NodeLoader(self.address, "train", share, replica=0, timeout_s=timeout_s)
        thread.join()
        return loader

    def _greet(self):
        self.channel = Channel(self.listener.accept()[0])
        assert self.channel.receive_one() == Hello(stream="train")
        self.channel.send(self.ring.shape, self.ring.descriptor)


@pytest.fixture
def fake(tmp_path):
    made = Fake(tmp_path)
    yield made
    with contextlib.suppress(OSError):
        made.listener.close()


def test_the_next_step_is_asked_for_as_soon_as_one_is_copied(fake):
    loader = fake.open()
    fake.ring.put(3, 7)
    fake.channel.send(Ready(step=3))
    assert (loader.microbatches(3)[0][0] == 7).all()
    assert fake.channel.receive_one() == Want(step=3)
    assert fake.channel.receive_one() == Want(step=4)
    fake.channel.send(Ready(step=4))
    fake.channel.send(Ready(step=9))
    fake.ring.put(9, 2)
    assert (loader.microbatches(9)[0][0] == 2).all()
    assert fake.channel.receive_one() == Want(step=9)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_an_old_message_does_not_pass_for_a_new_one(fake, monkeypatch, is_ordered):
    """The step was ready once, was given up, and is asked for again after going back."""
    monkeypatch.setattr(node_loader, "_IS_ORDERED", is_ordered)
    loader = fake.open()
    fake.ring.put(5, 1)
    for step in (5, 6, 3):
        fake.channel.send(Ready(step=5))
        if step != 5:
            fake.ring.put(step, step)
            fake.channel.send(Ready(step=step))
        loader.microbatches(step)
    late = threading.Timer(0.05, lambda: (fake.ring.put(5, 8), fake.channel.send(Ready(step=5))))
    late.start()
    assert (loader.microbatches(5)[0][0] == 8).all()
    late.join()


def test_a_dead_loader_is_an_error_that_names_the_file(fake):
    loader = fake.open()
    fake.ring.note_file("/data/part-7.bin")
    fake.channel.socket.close()
    with pytest.raises(RunFailed, match=r"has died while reading /data/part-7\.bin") as info:
        loader.microbatches(0)
    assert "/data/part-7.bin" in info.value.remedy


def test_last_words_are_heard_even_if_nobody_listens_any_more(fake):
    loader = fake.open()
    fake.channel.send(Fault(kind="RecipeError", what="x:1: wrong", remedy="mend it"))
    fake.channel.socket.close()
    with pytest.raises(RecipeError, match="x:1: wrong"):
        loader.microbatches(0)


def test_a_loader_that_hangs_is_an_error_that_names_the_file(fake):
    loader = fake.open(timeout_s=0.05)
    fake.ring.note_file("/slow/part-1.bin")
    with pytest.raises(RunFailed, match=r"has not answered for 0\.05 s while reading /slow/part-1"):
        loader.microbatches(0)


def test_a_loader_that_is_not_there_is_an_error(tmp_path):
    share = Share(BatchSpec(global_batch=1), dp=1, replica=0)
    with pytest.raises(RunFailed, match="cannot be reached"):
        NodeLoader(str(tmp_path / "none"), "train", share, replica=0, timeout_s=1)
