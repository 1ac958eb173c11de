"""Copies of tensors into a slot's memory, by one thread or several."""

import threading

import numpy as np
import pytest
import torch

from engine.ckpt import copying
from engine.ckpt.copying import DeviceCopier, HostCopier, open_copier


@pytest.fixture
def copier():
    made = HostCopier(2)
    yield made
    made.close()


def sources():
    """Three tensors and their places: 12, 0 and 37 bytes."""
    return [
        (4, torch.arange(3, dtype=torch.float32)),
        (16, torch.zeros(0)),
        (20, torch.arange(37, dtype=torch.uint8)),
    ]


def wanted():
    memory = np.full(60, 255, np.uint8)
    memory[4:16] = np.arange(3, dtype=np.float32).view(np.uint8)
    memory[20:57] = np.arange(37)
    return memory


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("block", [1, 12, 36, 37, 1 << 24])
def test_every_byte_is_in_its_place_and_no_other_is_touched(copier, monkeypatch, background, block):
    monkeypatch.setattr(copying, "BLOCK", block)
    memory = np.full(60, 255, np.uint8)
    copier.pin(memory)
    copier.start(memory, sources(), background=background)
    copier.finish()
    assert np.array_equal(memory, wanted())


def test_a_second_snapshot_takes_the_new_values(copier):
    memory, tensor = np.zeros(4, np.uint8), torch.zeros(4, dtype=torch.uint8)
    for value in (1, 2):
        tensor.fill_(value)
        copier.start(memory, [(0, tensor)], background=True)
        copier.finish()
        assert memory.tolist() == [value] * 4
    copier.finish()


def test_blocks_cut_a_tensor_without_gap(monkeypatch):
    monkeypatch.setattr(copying, "BLOCK", 16)
    memory = np.zeros(60, np.uint8)
    sizes = [len(part) for _, part in copying._blocks(memory, sources())]
    assert sizes == [12, 16, 16, 5]


def test_a_background_copy_goes_on_while_the_caller_computes(copier, monkeypatch):
    done, real = threading.Event(), np.copyto

    def copyto(to, part):
        real(to, part)
        done.set()

    monkeypatch.setattr(np, "copyto", copyto)
    copier.start(np.zeros(60, np.uint8), sources()[:1], background=True)
    assert done.wait(10)
    copier.finish()


def test_the_foreground_copy_of_one_thread_begins_when_it_is_waited_for(monkeypatch):
    copier, memory = HostCopier(1), np.zeros(60, np.uint8)
    copier.start(memory, sources(), background=False)
    assert copier._helpers == []
    assert not memory.any()
    copier.finish()
    assert memory.any()
    copier.close()


def test_an_error_of_a_helper_reaches_who_waits(copier, monkeypatch):
    def fail(to, part):
        raise MemoryError

    monkeypatch.setattr(np, "copyto", fail)
    copier.start(np.zeros(60, np.uint8), sources(), background=True)
    with pytest.raises(MemoryError):
        copier.finish()


def test_closing_drops_what_was_not_copied():
    copier = HostCopier(1)
    memory = np.zeros(60, np.uint8)
    copier.start(memory, sources(), background=False)
    copier.close()
    copier.finish()
    assert not memory.any()


def test_tensors_on_the_host_are_copied_by_threads():
    copier = open_copier([torch.zeros(1)], 3)
    assert isinstance(copier, HostCopier)
    assert copier._threads == 3
    copier.close()
    open_copier([], 1).close()


@pytest.mark.gpu
def test_a_device_is_copied_from_on_its_own_stream():
    memory = np.full(60, 255, np.uint8)
    copier = open_copier([torch.zeros(1, device="cuda")], 1)
    assert isinstance(copier, DeviceCopier)
    copier.pin(memory)
    there = [(offset, tensor.cuda()) for offset, tensor in sources()]
    copier.start(memory, there, background=True)
    copier.finish()
    assert np.array_equal(memory, wanted())
    copier.close()
