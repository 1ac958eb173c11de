"""Time every operator in its native and plain torch form, forward and backward, beside a copy.

    python bench/ops/bench_ops.py [--device cpu|cuda] [--dtype fp32|bf16] [--rows N] [--hidden N]

Prints microseconds (best of the rounds, forms alternating), bytes moved by the native form as
written in csrc/include/ms/*.h, the rate that makes, and its share of the rate of a copy measured in
the same run. On the CPU times are CPU time of one thread. --json: one object a line.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from engine.device import DTYPES, Device, open_device
from engine.ops import activation, cross_entropy
from engine.ops.adamw import Moment, Slots, adamw_
from engine.ops.lamb import cut, lamb_apply_, lamb_moments_
from engine.ops.native import Kernels, choose
from engine.ops.norm import NormOp, wide
from engine.ops.rotary import rotary_tables, rotate


class Case(NamedTuple):
    name: str
    bytes: int
    native: Callable[[], object]
    plain: Callable[[], object]


def cases(kernels: Kernels, rows: int, hidden: int, like: torch.Tensor) -> list[Case]:
    size = like.element_size()
    return [
        *norm_cases(kernels, rows, hidden, like),
        *activation_cases(kernels, rows, 4 * hidden, like, size),
        *rotary_cases(kernels, rows, hidden, like),
        *loss_cases(kernels, rows, 8 * hidden, like, size),
        *optimizer_cases(kernels, 16 * hidden * hidden, like),
    ]


def norm_cases(kernels: Kernels, rows: int, hidden: int, like: torch.Tensor) -> list[Case]:
    made = []
    x, residual, dy = (torch.randn_like(like.new_empty(rows, hidden)) for _ in range(3))
    weight, bias = torch.ones_like(x[0]), torch.zeros_like(x[0])
    into = (torch.zeros(hidden, dtype=wide(x.dtype), device=x.device),) * 2
    each = rows * hidden * x.element_size()
    for kind in ("layernorm", "rmsnorm"):
        b = bias if kind == "layernorm" else None
        grads = (into[0], into[1] if b is not None else None)
        ops = {form: NormOp(kind, 1e-5, k) for form, k in (("native", kernels), ("plain", None))}
        saved = {form: op.forward(x, weight, b)[1] for form, op in ops.items()}

        def forward(form: str, r=None, ops=ops, b=b):
            return lambda: ops[form].forward(x, weight, b, r)

        def backward(form: str, more=None, ops=ops, saved=saved, grads=grads):
            return lambda: ops[form].backward(dy, saved[form], weight, grads, more)

        made += [
            Case(f"{kind} forward", 2 * each, forward("native"), forward("plain")),
            Case(
                f"{kind} + residual forward", 4 * each,
                forward("native", residual), forward("plain", residual),
            ),
            Case(f"{kind} backward", 3 * each, backward("native"), backward("plain")),
            Case(
                f"{kind} + residual backward", 4 * each,
                backward("native", residual), backward("plain", residual),
            ),
        ]  # fmt: skip
    return made


def activation_cases(kernels, rows, cols, like, size) -> list[Case]:
    made = []
    for name, function, inputs, traffic in (
        ("gelu", activation.gelu, 1, (2, 3)),
        ("swiglu", activation.swiglu, 2, (3, 5)),
    ):
        values = [
            torch.randn_like(like.new_empty(rows, cols)).requires_grad_() for _ in range(inputs)
        ]
        dy = torch.randn_like(values[0])
        run = {k: (lambda k=k, f=function, v=values: f(*v, kernels=k)) for k in (kernels, None)}
        out = {k: f() for k, f in run.items()}

        def back(k, out=out, values=values, dy=dy):
            return lambda: torch.autograd.grad(out[k], values, dy, retain_graph=True)

        each = rows * cols * size
        made.append(Case(f"{name} forward", traffic[0] * each, run[kernels], run[None]))
        made.append(Case(f"{name} backward", traffic[1] * each, back(kernels), back(None)))
    return made


def rotary_cases(kernels: Kernels, rows: int, hidden: int, like: torch.Tensor) -> list[Case]:
    dim = min(128, hidden // 2)
    x = torch.randn_like(like.new_empty(rows, 1, hidden // dim, dim))
    tables = rotary_tables(rows, dim, 10000.0, x)
    run = {k: (lambda k=k: rotate(x, *tables, kernels=k)) for k in (kernels, None)}
    return [Case("rotary", 2 * x.numel() * x.element_size(), run[kernels], run[None])]


def loss_cases(kernels, rows, vocab, like, size) -> list[Case]:
    logits = torch.randn_like(like.new_empty(rows, vocab))
    targets = torch.randint(vocab, (rows,), device=logits.device)
    stats = cross_entropy.local_stats(logits, targets, 0, kernels=kernels)
    scale = torch.ones((), device=logits.device)
    each = rows * vocab * size

    def forward(k):
        return lambda: cross_entropy.local_stats(logits, targets, 0, kernels=k)

    def backward(k):
        return lambda: cross_entropy.gradient_(logits, targets, stats, scale, 0, kernels=k)

    return [
        Case("cross-entropy stats", each, forward(kernels), forward(None)),
        Case("cross-entropy gradient", 2 * each, backward(kernels), backward(None)),
    ]


def optimizer_cases(kernels, n, like) -> list[Case]:
    precision = wide(like.dtype)
    slots = Slots(*(torch.rand(n, dtype=precision, device=like.device) for _ in range(4)))
    moment = Moment(0.9, 0.95, 1e-8, 3)
    leaf = torch.nn.Parameter(torch.zeros_like(slots.param))
    leaf.grad = torch.rand_like(leaf)
    fused = torch.optim.AdamW([leaf], fused=True)
    pieces = cut([(i, i + n // 8) for i in range(0, n, n // 8)], [0.1] * 8, like.device)
    ratio = torch.ones(8, dtype=torch.float64, device=like.device)
    size = slots.param.element_size()

    def lamb(k):
        def run():
            lamb_moments_(slots, moment, pieces, kernels=k)
            lamb_apply_(slots, pieces, ratio, lr=1e-4, kernels=k)

        return run

    return [
        Case("adamw (plain: torch fused)", 7 * n * size,
             lambda: adamw_(slots, moment, lr=1e-4, decay=0.1, kernels=kernels), fused.step),
        Case("lamb, both phases", 10 * n * size, lamb(kernels), lamb(None)),
    ]  # fmt: skip


def best_s(run: Callable[[], object], device: Device, repeats: int) -> float:
    """Seconds a call: of this process on the CPU, of the wall on a GPU."""
    device.synchronize()
    clock = time.process_time if device.backend == "gloo" else time.perf_counter
    start = clock()
    for _ in range(repeats):
        run()
    device.synchronize()
    return (clock() - start) / repeats


def measure(case: Case, device: Device, rounds: int) -> tuple[float, float]:
    """Seconds of the native and of the plain form."""
    repeats = max(1, min(200, int(0.02 / best_s(case.native, device, 1))))
    pairs = [
        (best_s(case.native, device, repeats), best_s(case.plain, device, repeats))
        for _ in range(rounds)
    ]
    return min(p[0] for p in pairs), min(p[1] for p in pairs)


def copy_rate(device: Device, numel: int) -> float:
    """Bytes per second of a copy, read and written bytes both counted."""
    a = torch.ones(numel, device=device.torch_device)
    b = torch.empty_like(a)
    times = [best_s(lambda: b.copy_(a), device, 10) for _ in range(7)]
    return 2 * a.numel() * a.element_size() / min(times)


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cpu")
    ap.add_argument("--dtype", default="fp32")
    ap.add_argument("--rows", type=int, default=256)
    ap.add_argument("--hidden", type=int, default=256)
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    device = open_device(a.device, 0)
    like = torch.empty(0, dtype=DTYPES[a.dtype], device=device.torch_device)
    kernels = choose("native", like.device, like.dtype)
    assert kernels is not None
    rate = copy_rate(device, 1 << (28 if a.device == "cuda" else 24))
    case = f"torch {torch.__version__}, {a.dtype}, {a.rows} x {a.hidden}"
    print(f"# {device.name()}, {case}, copy {rate / 1e9:.1f} GB/s")
    for case in cases(kernels, a.rows, a.hidden, like):
        native, plain = measure(case, device, a.rounds)
        row = {"op": case.name, "native_us": native * 1e6, "plain_us": plain * 1e6,
               "speedup": plain / native, "gb_per_s": case.bytes / native / 1e9,
               "of_copy": case.bytes / native / rate}  # fmt: skip
        if a.json:
            print(json.dumps(row))
        else:
            print("{op:30s} {native_us:9.1f} us  plain {plain_us:9.1f} us  {speedup:5.2f}x  "
                  "{gb_per_s:7.1f} GB/s  {of_copy:5.2f} of copy".format(**row))  # fmt: skip


if __name__ == "__main__":
    main()
