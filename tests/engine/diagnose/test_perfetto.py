"""The protobuf timeline, read back by a decoder that knows nothing of the writer."""

import struct

import pytest
from synthetic import write_run

from engine.diagnose.eventlines import Line
from engine.diagnose.timeline import lanes_of, write_timeline
from engine.spec.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)


def fields(data):
    """(number, value) of a protobuf message, by wire type."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        elif kind == 1:
            yield number, struct.unpack_from("<Q", data, at)[0]
            at += 8
        else:
            assert kind == 2
            size = varint()
            yield number, data[at : at + size]
            at += size


def decode(data):
    """Tracks by id; events as (type, track, time, name, arguments, leaves, takes)."""
    names, keys, tracks, events = {}, {}, {}, []
    for number, packet in fields(data):
        assert number == 1
        parts = dict(fields(packet))
        assert parts[10] == 1
        if 12 in parts:
            for kind, entry in fields(parts[12]):
                one = dict(fields(entry))
                (names if kind == 2 else keys)[one[1]] = one[2].decode()
        if 60 in parts:
            one = dict(fields(parts[60]))
            tracks[one[1]] = one
        if 11 in parts:
            event = list(fields(parts[11]))
            one = dict(event)
            args = {}
            for kind, value in event:
                if kind == 4:
                    (_, key), (form, inner) = fields(value)
                    args[keys[key]] = inner if form != 6 else inner.decode()
            leaves = [v for k, v in event if k == 47]
            takes = [v for k, v in event if k == 48]
            events.append((one[9], one[11], parts[8], names.get(one.get(10)), args, leaves, takes))
    return tracks, events


def test_slices_and_arrows_are_those_of_the_chrome_trace(tmp_path):
    run = write_run(tmp_path / "run", LAYOUT)
    small = tmp_path / "t.pftrace"
    made = write_timeline(run, small, LAYOUT, steps=(3, 4))
    large = tmp_path / "t.json"
    other = write_timeline(run, large, LAYOUT, steps=(3, 4))
    assert made._replace(path="") == other._replace(path="")
    tracks, events = decode(small.read_bytes())
    begins = [e for e in events if e[0] == 1]
    assert len(begins) == len([e for e in events if e[0] == 2]) == made.slices
    assert {dict(fields(t[3]))[6].decode()[:6] for t in tracks.values() if 3 in t} == {
        f"rank {r}" for r in range(8)
    }
    leaves = [flow for e in begins for flow in e[5]]
    takes = [flow for e in begins for flow in e[6]]
    assert sorted(leaves) == sorted(takes) == list(range(1, made.arrows + 1))
    assert {e[3] for e in begins} >= {"forward", "backward", "optimizer", "step"}
    assert {e[4]["step"] for e in begins} == {3, 4}
    assert small.stat().st_size < 0.45 * large.stat().st_size


def test_on_every_track_time_runs_forward_and_slices_nest(tmp_path):
    run = write_run(tmp_path / "run", LAYOUT)
    out = tmp_path / "t.pftrace"
    write_timeline(run, out, LAYOUT, steps=(2, 2))
    tracks, events = decode(out.read_bytes())
    depth = dict.fromkeys(tracks, 0)
    last = dict.fromkeys(tracks, 0)
    for kind, track, t_ns, *_ in events:
        assert t_ns >= last[track]
        last[track] = t_ns
        depth[track] += 1 if kind == 1 else -1
        assert depth[track] >= 0
    assert set(depth.values()) == {0}


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        ([(0, 10), (2, 5), (12, 3)], [3]),  # one inside the first, one after it
        ([(0, 10), (5, 10)], [1, 1]),  # overlap without nesting
        ([(0, 10), (5, 10), (10, 5), (16, 1)], [3, 1]),
    ],
)
def test_slices_that_cross_get_lanes_of_their_own(spans, lanes):
    lines = [
        Line(kind="span", name="x", t_ns=start, dur_ns=length, stream="pp_f")
        for start, length in spans
    ]
    assert [len(lane.lines) for lane in lanes_of(lines)] == lanes
