import gzip
import json
import random

import pytest

from engine.diagnose.foreign import Inputs, diagnose_foreign
from engine.diagnose.readers.files import FileFault
from engine.diagnose.readers.kineto import read_trace

NAMES = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_AllReduce_RING_LL_Sum_float")


def trace(rank, slow, offset_us, nccl, indent=None):
    """A trace like the profiler's: kernels in order, waits inside the collective."""
    rng = random.Random(rank)
    events, t = [], 1e6 + offset_us
    for n in range(200):
        length = 400 * slow * (1 + rng.gauss(0, 0.01))
        row = {"ph": "X", "cat": "kernel", "name": f"gemm_{n % 3}", "pid": 0, "tid": 7, "ts": t,
               "dur": length, "args": {"External id": n}}  # fmt: skip
        wait = {**row, "name": nccl, "tid": 20, "ts": t + length, "dur": 600 - length}
        events += [row, wait]
        t += 650
    head = {"distributedInfo": {"backend": "nccl", "rank": rank}, "traceEvents": events}
    return json.dumps(head, indent=indent)


@pytest.mark.parametrize("nccl", NAMES)
@pytest.mark.parametrize("offset", [0, 3000])
def test_the_slow_rank_is_found_whatever_the_clocks_say(tmp_path, nccl, offset):
    for rank in range(4):
        text = trace(rank, 1.1 if rank == 2 else 1.0, offset * (rank - 1.5), nccl, rank or None)
        (tmp_path / f"worker{rank}.json").write_text(text)
    assert diagnose_foreign(Inputs(traces=tmp_path)).verdict.ranks == (2,)


def test_kernels_are_counted_once_and_collectives_left_out(tmp_path):
    path = tmp_path / "rank-3.json.gz"
    path.write_bytes(gzip.compress(trace(3, 1.0, 0, NAMES[0]).encode()))
    found = read_trace(path)
    assert (found.rank, len(found.compute)) == (3, 200)
    assert found.communication_us == pytest.approx(200 * 200, rel=0.05)


def test_no_events_is_a_fault(tmp_path):
    path = tmp_path / "rank-0.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(FileFault):
        read_trace(path)


def test_kernels_in_another_order_are_named_and_not_taken_for_health(tmp_path):
    path = tmp_path / "rank-0.json"
    event = '{"dur": 3.0, "ts": 1.0, "name": "gemm", "cat": "kernel", "ph": "X", "args": {}}'
    path.write_text('{"traceEvents": [' + ", ".join([event] * 20) + "]}")
    with pytest.raises(FileFault, match="order"):
        read_trace(path)
