"""Checks that load a GPU, on a CPU device; on real GPUs where there are some."""

import pytest

torch = pytest.importorskip("torch")

from engine.device import CpuDevice  # noqa: E402
from engine.errors import MissingError  # noqa: E402
from engine.health import gpu  # noqa: E402
from engine.health.look import Look  # noqa: E402
from engine.health.profile import Bar, Profile, builtin_profiles, choose  # noqa: E402
from engine.health.recording import RecordedProbe, Recording  # noqa: E402

CPU = CpuDevice()


def look(files=None, **profile):
    return Look(probe=RecordedProbe(Recording(files=files or {})), profile=Profile(**profile))


def test_products_are_exact_so_their_digest_does_not_depend_on_the_device():
    product = gpu.multiply(CPU, "bf16", size=64, rounds=2)
    assert product.is_steady
    assert product.rate > 0
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-8, 8, (64, 64), generator=generator, dtype=torch.int8).double()
            for _ in range(2))  # fmt: skip
    assert gpu.digest((a @ b).bfloat16()) == product.digest  # by another kernel, in float64


@pytest.mark.parametrize(("row", "column"), [(0, 0), (1500, 7), (2047, 1023)])
def test_one_wrong_bit_anywhere_changes_the_digest(row, column):
    matrix = torch.zeros(2048, 1024, dtype=torch.bfloat16)
    before = gpu.digest(matrix)
    matrix.view(torch.int16)[row, column] ^= 1
    assert gpu.digest(matrix) != before


def test_two_swapped_elements_change_the_digest():
    matrix = torch.arange(64, dtype=torch.bfloat16).reshape(8, 8)
    swapped = matrix.clone()
    swapped[2, 3], swapped[5, 1] = matrix[5, 1], matrix[2, 3]
    assert gpu.digest(swapped) != gpu.digest(matrix)


def products(*wrong, rate=7e14, slow=None):
    return [
        gpu.Product(rate * (0.5 if i == slow else 1), "bad" if i in wrong else "good", True)
        for i in range(8)
    ]


def test_other_bits_are_corruption_and_a_slow_gpu_lags_behind_its_equals():
    assert {r.status for r in gpu.judge_products(look(), "bf16", products())} == {"ok"}
    found = gpu.judge_products(look(), "bf16", products(5))
    (bad,) = [r for r in found if r.status != "ok"]
    assert (bad.target, bad.status, bad.action) == ("gpu5 bf16", "fail", "rma")
    unsteady = [*products()[:7], gpu.Product(7e14, "good", False)]
    (bad,) = [r for r in gpu.judge_products(look(), "fp8", unsteady) if r.status != "ok"]
    assert "different bits" in bad.message
    (bad,) = [r for r in gpu.judge_products(look(), "bf16", products(slow=2)) if r.status != "ok"]
    assert (bad.target, bad.action, bad.bar) == ("gpu2 bf16", "evict", "median of the node")
    stated = look(bars={"gpu.gemm/bf16": Bar(at_least=9e14, source="stated")})
    assert {r.bar for r in gpu.judge_products(stated, "bf16", products())} == {"stated"}


def test_copies_are_measured_and_checked():
    assert gpu.copy_within(CPU, 1 << 20) > 1e6
    there, back = gpu.copy_to_host(CPU, 1 << 20)
    assert min(there, back) > 1e6
    assert gpu.copy_between(CPU, CPU, 1 << 20) > 1e6


def test_a_copy_that_differs_is_the_finding_of_its_check(monkeypatch):
    monkeypatch.setattr(torch, "equal", lambda a, b: False)
    monkeypatch.setattr(gpu, "_devices", lambda: [CPU])
    monkeypatch.setattr(gpu, "_COPY_BYTES", 1 << 16)
    (found,) = gpu.memory_rate(look())
    assert (found.status, found.action) == ("fail", "rma")
    assert "differs from its source" in found.message


def test_memory_that_does_not_keep_a_word_is_counted(monkeypatch):
    assert gpu.write_and_read(CPU, 4 << 20, 1 << 20) == 0
    honest = CPU.synchronize

    class Leaky(CpuDevice):
        def synchronize(self):
            honest()
            for held in list(_blocks):
                held[17] ^= 1 << 40

    _blocks = []
    xor = torch.bitwise_xor

    def remember(a, b, *, out):
        _blocks.append(out)
        return xor(a, b, out=out)

    monkeypatch.setattr(torch, "bitwise_xor", remember)
    # one bit flips in each of two blocks, under the pattern and, back again, under its complement
    assert gpu.write_and_read(Leaky(), 2 << 20, 1 << 20) >= 2


def test_a_slow_path_names_the_gpu_that_its_row_or_column_shares():
    rates = {(f"node{n}", f"gpu{g}"): 5e10 for n in range(2) for g in range(8)}
    (well,) = gpu._judge(look(), "gpu.h2d", rates)
    assert well.status == "ok"
    for n in range(2):
        rates[f"node{n}", "gpu6"] = 1.2e10
    (bad,) = gpu._judge(look(), "gpu.h2d", rates)
    assert (bad.target, bad.status) == ("gpu6", "fail")
    assert "2 of 2 paths are slow" in bad.message
    below = {key: 1e10 for key in rates}
    h100 = choose(builtin_profiles(), None, name="h100-nvl8")
    found = gpu._judge(Look(probe=look().probe, profile=h100), "gpu.h2d", below)
    assert {r.target for r in found} == {"node0", "node1"}
    assert {r.bar for r in found} == {"stated"}


def test_memory_nodes_have_the_cpus_that_may_be_used(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3, 9})
    root = "/sys/devices/system/node"
    files = {f"{root}/node0/cpulist": "0-1,8\n", f"{root}/node1/cpulist": "2-3,9\n",
             f"{root}/node2/cpulist": "\n"}  # fmt: skip
    assert gpu.numa_cpus(look(files)) == {"node0": {0, 1}, "node1": {2, 3, 9}}
    assert gpu.numa_cpus(look()) == {"node0": {0, 1, 2, 3, 9}}


@pytest.mark.parametrize("check", [gpu.gemm, gpu.memory_rate, gpu.memory, gpu.from_host])
def test_without_a_gpu_there_is_nothing_to_look_at(check, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingError, match="no CUDA device"):
        check(look())


@pytest.mark.gpu
def test_real_gpus_are_well_and_as_fast_as_a_plain_loop():
    found = [*gpu.gemm(look()), *gpu.memory_rate(look()), *gpu.from_host(look())]
    assert {r.status for r in found} <= {"ok", "skip"}
    device = torch.device("cuda", 0)
    a = torch.randn(16384, 16384, device=device).bfloat16()
    a @ a
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        a @ a
    end.record()
    end.synchronize()
    plain = 2 * 16384**3 / (start.elapsed_time(end) / 1e4)
    measured = next(r.measured for r in found if r.target == "gpu0 bf16")
    assert 0.95 < measured / plain < 1.05
