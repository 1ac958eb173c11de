"""The library builds with c++ and nvcc alone, loads into torch, and holds what the headers say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.ops.native import SOURCES

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.timeout(900)]

ENTRIES = sorted(
    name
    for header in (SOURCES / "include" / "ms").glob("*.h")
    for name in re.findall(r"^MS_ENTRY\((\w+)", header.read_text(encoding="utf-8"), re.MULTILINE)
)


def make(target: str, out: Path) -> Path:
    torch_folder = Path(torch.__file__).parent
    command = ["make", "-C", str(SOURCES), "-j2", target, f"OUT={out}", f"TORCH={torch_folder}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "warning" not in ended.stderr, ended.stderr
    return out / "libmsctl_ops.so"


def loaded_operators(library: Path) -> set[str]:
    """Names of the operators that a fresh process has after loading the library."""
    program = (
        f"import torch; torch.ops.load_library({str(library)!r}); "
        "print(*(n for n in torch._C._dispatch_get_all_op_names() if n.startswith('msctl::')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.removeprefix("msctl::") for name in ended.stdout.split()}


def symbols(library: Path) -> set[str]:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def test_the_cpu_library_holds_every_entry_and_loads(tmp_path):
    if shutil.which("c++") is None or shutil.which("make") is None:
        pytest.skip("needs make and c++")
    library = make("cpu", tmp_path)
    assert {f"ms_cpu_{name}" for name in ENTRIES} <= symbols(library)
    assert loaded_operators(library) == set(ENTRIES)


def test_every_kernel_compiles_for_every_architecture(tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc: the CUDA kernels were not compiled")
    library = make("check", tmp_path)
    kernels = [path.stem for path in (SOURCES / "kernels").glob("*.cu")]
    for kernel in kernels:
        assert (tmp_path / f"{kernel}.ptx").stat().st_size
        for arch in ("80", "90"):
            assert (tmp_path / f"{kernel}.sm_{arch}.cubin").stat().st_size
            log = (tmp_path / f"{kernel}.sm_{arch}.cubin.log").read_text(encoding="utf-8")
            spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
            assert max(spills) <= 16, f"{kernel} keeps values in local memory on sm_{arch}"
    both = {f"ms_{device}_{name}" for name in ENTRIES for device in ("cpu", "cuda")}
    assert both <= symbols(library)
    assert loaded_operators(library) == set(ENTRIES), "loads without a GPU and without CUDA's torch"


def test_every_entry_has_a_test_by_name():
    texts = [
        path.read_text(encoding="utf-8")
        for path in Path(__file__).parent.glob("test_*.py")
        if path != Path(__file__)
    ]
    assert ENTRIES
    assert [
        name for name in ENTRIES if not any(f'"{name}"' in t or f"_{name}" in t for t in texts)
    ] == []
