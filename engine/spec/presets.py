"""Named models and clusters, written out.

Models: 175b and 530b are the paper's Table 1 (vocabulary 64,000, sequence 2,048); 13b is the size
of its convergence tests; Llama shapes are from their published configurations. Clusters:
data-sheet peaks and the best sustained GEMM seen in public benchmarks; link rates are per device
and direction.
"""

from typing import Any

from engine.spec.cluster import ClusterSpec, DeviceSpec, LinkSpec
from engine.spec.model import ModelSpec

_LLAMA: dict[str, Any] = {
    "norm": "rmsnorm",
    "activation": "swiglu",
    "position": "rotary",
    "bias": False,
    "tied": False,
}
_GPT: dict[str, Any] = {"vocab": 64000, "seq": 2048, "tied": True}

MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 4, "hidden": 64, "heads": 4, "vocab": 256, "seq": 128},
    "small": {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50304, "seq": 1024},
    "13b": {"layers": 40, "hidden": 5120, "heads": 40, **_GPT},
    "175b": {"layers": 96, "hidden": 12288, "heads": 128, **_GPT},
    "530b": {"layers": 105, "hidden": 20480, "heads": 160, **_GPT},
    "llama2-7b": {
        "layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000, "seq": 4096,
        **_LLAMA,
    },
    "llama2-13b": {
        "layers": 40, "hidden": 5120, "heads": 40, "ffn": 13824, "vocab": 32000, "seq": 4096,
        **_LLAMA,
    },
    "llama2-70b": {
        "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 32000,
        "seq": 4096, **_LLAMA,
    },
    "llama3-8b": {
        "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256,
        "seq": 8192, "rope_theta": 500000.0, **_LLAMA,
    },
    "llama3-70b": {
        "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256,
        "seq": 8192, "rope_theta": 500000.0, **_LLAMA,
    },
    "llama3-405b": {
        "layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248,
        "vocab": 128256, "seq": 8192, "rope_theta": 500000.0, **_LLAMA,
    },
}  # fmt: skip
"""Model presets as the keys of a recipe's [model] section."""


def _tera(**peaks: float) -> dict[str, float]:
    return {name: value * 1e12 for name, value in peaks.items()}


_GIB = 2**30

DEVICES: dict[str, DeviceSpec] = {
    "v100": DeviceSpec(
        name="V100-32GB", peak_flops_per_s=_tera(fp64=7.8, fp32=15.7, fp16=125, bf16=15.7),
        memory_bytes=32 * _GIB, memory_bytes_per_s=0.9e12, sustained=0.8, units=80,
    ),
    "a100-40": DeviceSpec(
        name="A100-40GB", peak_flops_per_s=_tera(fp64=9.7, fp32=19.5, fp16=312, bf16=312),
        memory_bytes=40 * _GIB, memory_bytes_per_s=1.555e12, sustained=0.87, units=108,
    ),
    "a100": DeviceSpec(
        name="A100-80GB", peak_flops_per_s=_tera(fp64=9.7, fp32=19.5, fp16=312, bf16=312),
        memory_bytes=80 * _GIB, memory_bytes_per_s=2.0e12, sustained=0.87, units=108,
    ),
    "h100": DeviceSpec(
        name="H100-80GB", peak_flops_per_s=_tera(fp64=34, fp32=67, fp16=989, bf16=989, fp8=1979),
        memory_bytes=80 * _GIB, memory_bytes_per_s=3.35e12, sustained=0.80, units=132,
    ),
    "h200": DeviceSpec(
        name="H200-141GB", peak_flops_per_s=_tera(fp64=34, fp32=67, fp16=989, bf16=989, fp8=1979),
        memory_bytes=141 * 10**9, memory_bytes_per_s=4.8e12, sustained=0.80, units=132,
    ),
    "b200": DeviceSpec(
        name="B200-180GB", peak_flops_per_s=_tera(fp64=37, fp32=75, fp16=2250, bf16=2250, fp8=4500),
        memory_bytes=180 * 10**9, memory_bytes_per_s=8.0e12, sustained=0.78, units=148,
    ),
    "mi300x": DeviceSpec(
        name="MI300X-192GB",
        peak_flops_per_s=_tera(fp64=81.7, fp32=163.4, fp16=1300, bf16=1300, fp8=2610),
        memory_bytes=192 * 10**9, memory_bytes_per_s=5.3e12, sustained=0.51, units=304,
    ),
}  # fmt: skip
"""Device presets by the name that cluster presets build on."""


def _nodes(name: str, device: str, *, intra: float, inter: float) -> ClusterSpec:
    """Eight devices a node; rates in bytes per second, device and direction."""
    return ClusterSpec(
        name=name,
        nodes=1,
        gpus_per_node=8,
        device=DEVICES[device],
        intra=LinkSpec(bytes_per_s=intra, latency_s=4e-6),
        inter=LinkSpec(bytes_per_s=inter, latency_s=12e-6),
    )


CLUSTERS: dict[str, ClusterSpec] = {
    "v100-nvl8": _nodes("v100-nvl8", "v100", intra=150e9, inter=3.125e9),
    "a100-40-nvl8": _nodes("a100-40-nvl8", "a100-40", intra=300e9, inter=25e9),
    "a100-nvl8": _nodes("a100-nvl8", "a100", intra=300e9, inter=25e9),
    "a800-nvl8": _nodes("a800-nvl8", "a100", intra=200e9, inter=25e9),
    "a100-pcie8": _nodes("a100-pcie8", "a100", intra=25e9, inter=12.5e9),
    "h100-nvl8": _nodes("h100-nvl8", "h100", intra=450e9, inter=50e9),
    "h800-nvl8": _nodes("h800-nvl8", "h100", intra=200e9, inter=50e9),
    "h200-nvl8": _nodes("h200-nvl8", "h200", intra=450e9, inter=50e9),
    "b200-nvl8": _nodes("b200-nvl8", "b200", intra=900e9, inter=50e9),
    "mi300x-8": _nodes("mi300x-8", "mi300x", intra=448e9, inter=50e9),
}
"""Cluster presets; a recipe or `--gpus` sets the number of nodes. a100-nvl8 is the paper's node."""


def model_preset(name: str) -> ModelSpec:
    """A preset as a noun; KeyError if there is none (the loader has checked)."""
    return ModelSpec(**MODELS[name])
