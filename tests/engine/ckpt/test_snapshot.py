"""The image of a rank's pieces: types, order, memory shared or copied."""

import numpy as np
import pytest
import torch

from engine.ckpt.manifest import ITEM_BYTES
from engine.ckpt.piece import Piece
from engine.ckpt.safefile import parse_header
from engine.ckpt.snapshot import DTYPES, from_host, host_view, plan_pieces
from engine.errors import CheckpointError


def piece(tensor, name="w", flat=None):
    count = tensor.numel()
    return Piece(
        name=name, slot="param", global_shape=(100,), box=((0, 100),),
        flat=flat or (10, 10 + count), tensor=tensor,
    )  # fmt: skip


def test_every_type_is_named_as_in_the_format():
    assert {name: kind.itemsize for kind, name in DTYPES.items()} == ITEM_BYTES


def test_pieces_become_a_file_with_the_widest_first():
    small, wide = torch.zeros(3, dtype=torch.uint8), torch.zeros(2, dtype=torch.float64)
    image = plan_pieces([piece(small, "s"), piece(wide, "w")], 5)
    assert [(p.name, p.dtype, p.slot) for p in image.planned] == [
        ("w", "F64", "param"), ("s", "U8", "param")
    ]  # fmt: skip
    assert image.order == (1, 0)
    assert image.planned[1].region.flat == (10, 13)
    stored, metadata = parse_header(image.header, image.bytes, "")
    assert metadata == {"format": "msctl", "rank": "5"}
    assert stored["param/w"].shape == (2,)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(4), torch.zeros(2), torch.zeros(3, 1), torch.zeros(6)[::2], torch.zeros(())],
)
def test_memory_that_is_not_the_range_is_refused(tensor):
    with pytest.raises(CheckpointError, match=r"w \(param\): tensor .* for the 3 elements"):
        plan_pieces([piece(tensor, flat=(10, 13))], 0)


def test_types_without_a_name_are_refused():
    with pytest.raises(CheckpointError, match=r"dtype torch\.complex64 is not stored"):
        plan_pieces([piece(torch.zeros(3, dtype=torch.complex64))], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_are_viewed_and_come_back(dtype):
    tensor = torch.arange(1, 6).to(dtype)
    view = host_view(tensor)
    assert bytes(view) == tensor.view(torch.uint8).numpy().tobytes()
    data = np.frombuffer(bytes(view), np.uint8)
    into = torch.zeros(5, dtype=dtype)
    from_host(into, data)
    assert torch.equal(into, tensor)


def test_a_view_shows_later_changes_and_a_parameter_has_one():
    tensor = torch.nn.Parameter(torch.zeros(2))
    view = host_view(tensor)
    with torch.no_grad():
        tensor[1] = 1.0
    assert bytes(view) == np.array([0, 1], np.float32).tobytes()
    from_host(tensor, np.array([2, 3], np.float32).view(np.uint8))
    assert tensor.tolist() == [2, 3]


def test_nothing_is_no_bytes():
    assert bytes(host_view(torch.zeros(0))) == b""
    from_host(torch.zeros(0), np.empty(0, np.uint8))


def test_what_is_read_does_not_keep_the_memory_it_came_from():
    data, into = np.zeros(4, np.uint8), torch.zeros(1)
    from_host(into, data)
    data[:] = 255
    assert into.tolist() == [0]
