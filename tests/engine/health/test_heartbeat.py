"""Messages of nodes: what is well comes through whole, everything else is refused with a reason."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import TraceError
from engine.health.heartbeat import MAX_BYTES, Heartbeat, RankBeat, decode_beat, encode_beat

BEAT = Heartbeat(
    node="node-1", seq=7,
    ranks=(RankBeat(rank=3, step=12, doing="step/wait", works=((11, 0.5, 0.2),)),),
)  # fmt: skip


def changed(**fields) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(BEAT) | fields)


def test_a_beat_comes_through_whole():
    assert decode_beat(encode_beat(BEAT), nodes=("node-1",)) == BEAT


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{", encode_beat(BEAT)[:-3], b"\xff\xfe", b"[" * 5000,
        changed(seq=-1), changed(node="../../etc"), changed(node=""), changed(node="n" * 200),
        changed(extra=1), changed(state="dead"), changed(ranks=[{"rank": -1}]),
        changed(ranks=[{"rank": 0, "works": [[1, 2.0, 3.0]] * 65}]), changed(error="x" * 5000),
        changed(answers={str(i): "" for i in range(65)}), b" " * (MAX_BYTES + 1),
    ],
)  # fmt: skip
def test_a_hostile_beat_is_refused(data):
    with pytest.raises(TraceError, match="refused"):
        decode_beat(data)


def test_a_beat_of_a_stranger_is_refused():
    with pytest.raises(TraceError, match="no node of this job"):
        decode_beat(encode_beat(BEAT), nodes=("node-0", "node-2"))


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(data):
    with pytest.raises(TraceError):
        decode_beat(data)
