"""The CUDA kernels, run by an emulation on the CPU, against their C++ twins: every entry point.

Proves indexing, sums, strides and element types on a machine without a GPU; speed and hardware
approximations are the business of bench/ops on a machine with a GPU.
"""

import pytest
import torch

from tests.engine.csrc.libraries import DTYPES, Code, call, emulated, twins

pytestmark = [pytest.mark.native, pytest.mark.slow]

BOUND = {torch.float32: 5e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}
ALL = list(BOUND)
SHAPES = [
    (1, 1),
    (3, 7),
    (5, 64),
    (37, 129),
    (7, 2056),
    (300, 16),
    (2, 4104),
    (2, 8200),
    (1, 16392),
]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def close(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> None:
    error = (a.double() - b.double()).abs().max()
    assert float(error) <= BOUND[dtype] * max(1.0, float(b.double().abs().max())), float(error)


def both(name: str, make, outputs: tuple[int, ...], dtype: torch.dtype) -> None:
    """Call both forms on fresh arguments and compare the arguments numbered in outputs."""
    results = []
    for library, form in ((emulated(), "ms_cuda_"), (twins(), "ms_cpu_")):
        arguments = make()
        assert call(library, form + name, *arguments, None) == 0
        results.append([arguments[i] for i in outputs])
    for ours, twin in zip(*results, strict=True):
        close(ours, twin, dtype)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("residual", [False, True])
def test_norm(kind, shape, dtype, residual):
    rows, cols = shape

    def forward():
        more = numbers(rows, cols, dtype=dtype, seed=1) if residual else None
        total = torch.empty(rows, cols, dtype=dtype) if residual else None
        bias = numbers(cols, dtype=dtype, seed=3) if kind == 0 else None
        return [
            Code(kind),
            numbers(rows, cols, dtype=dtype),
            more,
            numbers(cols, dtype=dtype, seed=2),
            bias,
            torch.empty(rows, cols, dtype=dtype),
            total,
            torch.zeros(rows, dtype=wide(dtype)),
            torch.empty(rows, dtype=wide(dtype)),
            rows,
            cols,
            1e-5,
            Code(DTYPES[dtype]),
        ]

    both("norm_forward", forward, (5, 7, 8, *((6,) if residual else ())), dtype)

    def backward():
        scratch = max(
            twins().ms_cpu_column_scratch(*map(_int64, shape), 2),
            emulated().ms_cuda_column_scratch(*map(_int64, shape), 2),
        )
        dtotal = numbers(rows, cols, dtype=dtype, seed=4) if residual else None
        return [
            Code(kind),
            numbers(rows, cols, dtype=dtype),
            dtotal,
            numbers(rows, cols, dtype=dtype, seed=1),
            numbers(cols, dtype=dtype, seed=2),
            numbers(rows, dtype=wide(dtype), seed=5),
            numbers(rows, dtype=wide(dtype), seed=6).abs(),
            torch.empty(rows, cols, dtype=dtype),
            torch.ones(cols, dtype=wide(dtype)),
            torch.ones(cols, dtype=wide(dtype)) if kind == 0 else None,
            torch.empty(scratch, dtype=wide(dtype)),
            rows,
            cols,
            Code(DTYPES[dtype]),
        ]

    both("norm_backward", backward, (7, 8, *((9,) if kind == 0 else ())), dtype)


def _int64(value: int):
    import ctypes

    return ctypes.c_int64(value)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
@pytest.mark.parametrize("gap", [0, 3, 8])
@pytest.mark.parametrize("biased", [False, True])
def test_activations(shape, dtype, gap, biased):
    rows, cols = shape
    stride = cols + gap

    def wide_matrix(seed: int):
        return numbers(rows, stride, dtype=dtype, seed=seed)

    def bias():
        return numbers(cols, dtype=dtype, seed=3) if biased else None

    code = Code(DTYPES[dtype])

    def blank(width: int = cols):
        return torch.zeros(rows, width, dtype=dtype)

    both(
        "gelu_forward",
        lambda: [wide_matrix(0), bias(), blank(), rows, cols, stride, code],
        (2,),
        dtype,
    )
    scratch = torch.empty(2 * 2048 * cols, dtype=wide(dtype))
    both(
        "gelu_backward",
        lambda: [
            numbers(rows, cols, dtype=dtype),
            wide_matrix(1),
            bias(),
            blank(stride),
            torch.ones(cols, dtype=wide(dtype)) if biased else None,
            scratch,
            rows,
            cols,
            stride,
            stride,
            code,
        ],
        (3, 4) if biased else (3,),
        dtype,
    )
    if biased:
        return
    both(
        "swiglu_forward",
        lambda: [wide_matrix(0), wide_matrix(1), blank(), rows, cols, stride, code],
        (2,),
        dtype,
    )
    both(
        "swiglu_backward",
        lambda: [
            numbers(rows, cols, dtype=dtype),
            wide_matrix(0),
            wide_matrix(1),
            blank(stride),
            blank(stride),
            rows,
            cols,
            stride,
            stride,
            code,
        ],
        (3, 4),
        dtype,
    )


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("gap", [0, 5, 8])
def test_cross_entropy(shape, dtype, gap):
    rows, cols = shape
    first, stride = 3, cols + gap
    targets = torch.randint(0, cols + 6, (rows,), generator=torch.Generator().manual_seed(1))
    logits = 4 * numbers(rows, stride, dtype=dtype)
    stats = [torch.empty(rows, dtype=wide(dtype)) for _ in range(3)]
    code = Code(DTYPES[dtype])
    both(
        "cross_entropy_stats",
        lambda: [
            logits,
            targets,
            *(torch.empty_like(s) for s in stats),
            rows,
            cols,
            stride,
            first,
            code,
        ],
        (2, 3, 4),
        dtype,
    )
    call(
        twins(),
        "ms_cpu_cross_entropy_stats",
        logits,
        targets,
        *stats,
        rows,
        cols,
        stride,
        first,
        code,
        None,
    )
    scale = torch.tensor([0.3], dtype=wide(dtype))

    def gradient():
        own = logits.clone()
        return [own, targets, stats[0], stats[1], scale, own, rows, cols, stride, first, code]

    both("cross_entropy_gradient", gradient, (5,), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 5, 1000, 40003])
def test_optimizers(n, dtype):
    code = Code(DTYPES[dtype])

    def state():
        return [
            numbers(n, dtype=dtype, seed=i).abs_() if i == 3 else numbers(n, dtype=dtype, seed=i)
            for i in range(4)
        ]

    both(
        "adamw",
        lambda: [*state(), n, 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.19, 0.0975, 0.5, code],
        (0, 2, 3),
        dtype,
    )

    cut = n // 3
    table = [(0, i, min(i + 4096, cut)) for i in range(0, cut, 4096)]
    firsts = [0, len(table)]
    table += [(1, i, min(i + 4096, n)) for i in range(cut, n, 4096)]
    firsts += [len(table), len(table)]  # the third tensor has no part here
    pieces, first_piece = torch.tensor(table), torch.tensor(firsts)
    decay = torch.tensor([0.1, 0.0, 0.1], dtype=torch.float64)

    def moments():
        partial = torch.empty(len(table), 2, dtype=torch.float64)
        norms = torch.empty(3, 2, dtype=torch.float64)
        return [
            *state(),
            pieces,
            len(table),
            first_piece,
            decay,
            partial,
            norms,
            3,
            0.9,
            0.95,
            1e-8,
            0.19,
            0.0975,
            0.5,
            code,
        ]

    both("lamb_moments", moments, (1, 2, 3, 9), dtype)
    ratio = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    both("lamb_apply", lambda: [*state()[:2], pieces, len(table), ratio, 1e-2, code], (0,), dtype)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize(
    ("rows", "batch", "heads", "dim"), [(2, 1, 1, 2), (6, 2, 3, 10), (9, 3, 4, 64)]
)
@pytest.mark.parametrize("gap", [0, 3, 16])
@pytest.mark.parametrize("inverse", [0, 1])
def test_rotary(rows, batch, heads, dim, gap, inverse, dtype):
    cols = heads * dim
    angle = numbers(rows // batch, dim // 2, dtype=torch.float64)
    tables = [angle.cos().to(dtype), angle.sin().to(dtype)]

    def make():
        y = torch.zeros(rows, cols + gap, dtype=dtype)
        return [
            numbers(rows, cols + gap, dtype=dtype), *tables, y, rows, batch, heads, dim, cols + gap,
            cols + gap, Code(inverse), Code(DTYPES[dtype]),
        ]  # fmt: skip

    both("rotary", make, (3,), dtype)


def test_the_same_call_twice_gives_the_same_bits():
    rows, cols = 37, 129
    found = []
    for _ in range(2):
        dweight, dbias = torch.zeros(cols), torch.zeros(cols)
        dx = torch.empty(rows, cols)
        scratch = torch.full(
            (emulated().ms_cuda_column_scratch(_int64(rows), _int64(cols), 2),), 7.0
        )
        call(
            emulated(),
            "ms_cuda_norm_backward",
            Code(0),
            numbers(rows, cols, dtype=torch.float32),
            None,
            numbers(rows, cols, dtype=torch.float32, seed=1),
            torch.ones(cols),
            torch.zeros(rows),
            torch.ones(rows),
            dx,
            dweight,
            dbias,
            scratch,
            rows,
            cols,
            Code(0),
            None,
        )
        found.append((dx, dweight, dbias))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
