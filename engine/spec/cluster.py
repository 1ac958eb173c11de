"""What the ranks run on: device, links, nodes.

Rates are per device and per direction in bytes per second, because "200 Gb/s" without "per what"
is the commonest mistake in a plan (a vendor's bits are divided by eight at the door).
"""

from typing import Annotated

from msgspec import field

from engine.spec.base import Count, NonNegative, Noun, Positive, Size, doc


class DeviceSpec(Noun, frozen=True, kw_only=True):
    """One accelerator (or CPU): what it can do at most, and what it sustains."""

    name: Annotated[str, doc("as the vendor calls it")]
    peak_flops_per_s: Annotated[
        dict[str, float], doc("dense peak by precision (fp64, fp32, fp16, bf16, fp8)")
    ]
    memory_bytes: Annotated[Count, doc("usable device memory")]
    memory_bytes_per_s: Annotated[Positive, doc("peak memory bandwidth")]
    sustained: Annotated[float, doc("share of the peak that the best large GEMM reaches, 0..1")] = (
        0.8
    )
    units: Annotated[Size, doc("multiprocessors, for wave quantisation; 0 = not modelled")] = 0


class LinkSpec(Noun, frozen=True, kw_only=True):
    """One kind of connection, as seen by one device."""

    bytes_per_s: Annotated[Positive, doc("per device and direction")]
    latency_s: Annotated[NonNegative, doc("of one hop, software included")] = 5e-6
    shared: Annotated[bool, doc("one wire of that rate for all ranks of a node")] = False


class HostSpec(Noun, frozen=True, kw_only=True):
    """What was measured on a machine, written by `msctl plan --calibrate`; 0 = not measured."""

    step_s: Annotated[NonNegative, doc("host seconds a step has beyond its micro-batches")] = 0.0
    slope: Annotated[NonNegative, doc("factor on the time of every micro-batch")] = 0.0
    launch_s: Annotated[NonNegative, doc("host seconds to issue one operator")] = 0.0
    collective_s: Annotated[NonNegative, doc("core seconds of one collective, bytes apart")] = 0.0
    log_error: Annotated[NonNegative, doc("spread of the log error of runs left out")] = 0.0


class ClusterSpec(Noun, frozen=True, kw_only=True):
    """A set of equal nodes."""

    name: Annotated[str, doc("shown in reports")] = "unnamed"
    nodes: Annotated[Count, doc("machines")] = 1
    gpus_per_node: Annotated[Count, doc("devices of one machine")] = 8
    device: Annotated[DeviceSpec, doc("the device")]
    intra: Annotated[LinkSpec, doc("between devices of one node")]
    inter: Annotated[LinkSpec, doc("between nodes, the share of one device")]
    cores: Annotated[Size, doc("CPU cores that a node's ranks share; 0 = a device for each")] = 0
    host: Annotated[HostSpec, doc("overheads as measured")] = field(default_factory=HostSpec)

    @property
    def world_size(self) -> int:
        """Devices in total."""
        return self.nodes * self.gpus_per_node

    def node_of(self, rank: int) -> int:
        """The node that holds a rank."""
        return rank // self.gpus_per_node

    def link(self, a: int, b: int) -> LinkSpec:
        """The link between two ranks."""
        return self.intra if self.node_of(a) == self.node_of(b) else self.inter
