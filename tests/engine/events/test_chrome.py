import json

from engine.events.chrome import chrome_trace
from engine.events.schema import Event


def _event(rank, name, stream, t_ns, dur_ns=0, kind="span", **attrs):
    return Event(rank=rank, seq=0, step=3, kind=kind, name=name, stream=stream, t_ns=t_ns,
                 dur_ns=dur_ns, attrs=attrs)  # fmt: skip


def test_a_trace_is_json_with_a_process_per_rank_and_a_thread_per_stream():
    events = [
        _event(0, "forward", "compute", 1000, 500, chunk=1, microbatch=2),
        _event(0, "send_f", "pp_f", 1500, 100, chunk=1, microbatch=2),
        _event(1, "recv_f", "pp_f", 1500, 100, kind="open", chunk=2, microbatch=2),
        _event(1, "loss", "host", 2000, kind="value", value=2.5),
    ]
    trace = json.loads(b"".join(chrome_trace(events)))["traceEvents"]
    names = [(r["pid"], r["tid"], r["args"]["name"]) for r in trace if r["name"] == "thread_name"]
    assert names == [(0, 0, "compute"), (0, 1, "pp_f"), (1, 0, "pp_f"), (1, 1, "host")]
    forward = next(r for r in trace if r["name"] == "forward")
    assert (forward["ph"], forward["ts"], forward["dur"]) == ("X", 1.0, 0.5)
    assert forward["args"] == {"step": 3, "chunk": 1, "microbatch": 2}
    assert [r["ph"] for r in trace if r["name"] in ("recv_f", "loss")] == ["X", "i"]


def test_no_events_are_an_empty_trace():
    assert json.loads(b"".join(chrome_trace([])))["traceEvents"] == []
