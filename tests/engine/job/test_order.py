"""Orders: whole or refused."""

import msgspec
import pytest

from engine.errors import TraceError
from engine.job.order import MAX_BYTES, Order, decode_order
from engine.train.task import RankTask

ORDER = Order(id="1.1", token=3, op="start", ranks=(0, 1),
              task=RankTask(folder="f", world=2, host="h", port=1))  # fmt: skip


def test_an_order_comes_through_whole():
    assert decode_order(msgspec.json.encode(ORDER)) == ORDER


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b'{"id":"x","token":-1,"op":"end"}', b'{"id":"x","token":1,"op":"rm"}',
     b'{"id":"x","token":1,"op":"end","more":1}', b"\xff", b"[" * 5000, b" " * (MAX_BYTES + 1)],
)  # fmt: skip
def test_anything_else_is_refused(data):
    with pytest.raises(TraceError, match="an order was refused"):
        decode_order(data)
