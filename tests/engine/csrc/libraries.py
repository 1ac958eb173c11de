"""Libraries for tests of the C interface: the C++ twins, and the CUDA kernels by emulation."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from engine.ops.native import SOURCES, choose

EMULATION = Path(__file__).parent / "emulation"
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


@functools.cache
def twins() -> ctypes.CDLL:
    """The library that the product builds, by its C interface."""
    kernels = choose("native", torch.device("cpu"), torch.float32)
    assert kernels is not None
    return ctypes.CDLL(str(kernels.library))


@functools.cache
def emulated() -> ctypes.CDLL:
    """The CUDA kernels compiled for the CPU: their arithmetic and indexing, without a GPU."""
    if shutil.which("c++") is None:
        pytest.skip("needs c++")
    folder = Path(tempfile.mkdtemp(prefix="emulated-"))
    library = folder / "libemulated.so"
    flags = ["-x", "c++", "-std=c++20", "-O1", "-w", "-fPIC", "-c", f"-I{EMULATION}"]
    paths = [f"-I{SOURCES / part}" for part in ("include", "kernels")]
    objects = []
    for source in sorted((SOURCES / "kernels").glob("*.cu")):
        made = str(folder / f"{source.stem}.o")
        subprocess.run(["c++", *flags, *paths, str(source), "-o", made], check=True)
        objects.append(made)
    subprocess.run(["c++", "-shared", "-o", str(library), *objects], check=True)
    return ctypes.CDLL(str(library))


def argument(value: object) -> object:
    """A Python value as C sees it: tensors as pointers, integers wide, floats double."""
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if value is None:
        return ctypes.c_void_p(0)
    return ctypes.c_double(value) if isinstance(value, float) else value


def call(library: ctypes.CDLL, name: str, *values: object) -> int:
    """Status of an entry point; plain Python ints are int64_t, `Code` is int."""
    made = [ctypes.c_int64(v) if type(v) is int else argument(v) for v in values]
    made = [ctypes.c_int(int(v)) if isinstance(v, Code) else v for v in made]
    return int(getattr(library, name)(*made))


class Code(int):
    """An argument whose C type is int."""
