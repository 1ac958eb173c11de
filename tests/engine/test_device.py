"""The CPU as a device, and CUDA refused with a reason where there is none."""

import os
import time

import pytest
import torch

from engine import device
from engine.device import DTYPES, CpuDevice, CudaDevice, open_device
from engine.errors import MissingError
from engine.spec.recipe import TrainSpec

has_cuda = torch.cuda.is_available()


def test_every_precision_of_a_recipe_has_its_type():
    for precision in ("fp64", "fp32", "bf16"):
        assert TrainSpec(precision=precision).precision in DTYPES
    assert {t.itemsize for t in DTYPES.values()} >= {2, 4, 8}


def test_cpu_is_opened_where_it_is_asked_for_or_nothing_else_is_there(monkeypatch):
    assert isinstance(open_device("cpu", 0), CpuDevice)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert isinstance(open_device("auto", 3), CpuDevice)


def test_cuda_without_a_gpu_is_refused_with_its_remedy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingError, match="torch sees no CUDA device") as caught:
        open_device("cuda", 0)
    assert "train.device = cpu" in caught.value.remedy


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(MissingError, match="rank needs CUDA device 2, this node has 2"):
        CudaDevice(2)


def test_the_processor_has_a_name_and_uses_memory():
    cpu = CpuDevice()
    assert cpu.name().strip()
    assert cpu.memory_bytes() > 50 << 20, "an interpreter with torch takes more than that"
    cpu.synchronize()


def test_without_a_model_name_the_architecture_is_the_name(monkeypatch):
    def no_file(*_: object, **__: object) -> object:
        raise OSError("no /proc here")

    monkeypatch.setattr("builtins.open", no_file)
    assert CpuDevice().name() == os.uname().machine


def test_the_gemm_rate_is_that_of_a_product_timed_here(monkeypatch):
    """Two n^3 operations over the best of the times."""
    ticks = iter([0.0, 2.0, 10.0, 10.5, 20.0, 21.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    rate = device._gemm_rate(CpuDevice(), torch.float32, size=16, repeats=3)
    assert rate == 2 * 16**3 / 0.5


def test_real_products_are_timed():
    cpu = CpuDevice()
    assert cpu.gemm_flops_per_s(torch.float32) > 1e8
    assert cpu.gemm_flops_per_s(torch.float64) > 1e8


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda, reason="needs a CUDA device")
def test_a_gpu_is_opened_by_its_index():
    gpu = open_device("auto", 0)
    assert isinstance(gpu, CudaDevice)
    assert gpu.torch_device == torch.device("cuda", 0)
    assert gpu.name() == torch.cuda.get_device_name(0)
    before = gpu.memory_bytes()
    held = torch.empty(1 << 20, device=gpu.torch_device)
    assert gpu.memory_bytes() >= before + held.numel() * 4 - (1 << 20)
    assert gpu.gemm_flops_per_s(torch.bfloat16) > 1e12
