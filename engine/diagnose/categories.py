# ruff: noqa: E501 - one row a category reads better than folded sentences
"""Every category of cause: what it means, how it ranks, what to do next. One literal table.

`order` decides between causes seen in the same evidence when nothing else does: hardware before host,
host before configuration, configuration before software, and waiting last.
"""

from engine.spec.base import Noun


class Category(Noun, frozen=True, kw_only=True):
    """A class of cause."""

    domain: str
    order: int
    meaning: str
    next: str


def _c(domain: str, order: int, meaning: str, next: str) -> Category:
    return Category(domain=domain, order=order, meaning=meaning, next=next)


CATEGORIES: dict[str, Category] = {
    "gpu_lost": _c("hardware", 1, "a GPU left the bus", "drain the node, power-cycle it and reseat or replace the GPU, then restart from the last checkpoint"),
    "gpu_ecc": _c("hardware", 2, "uncorrectable GPU memory error", "reset the GPU, drain the node if the error returns, then restart from the last checkpoint"),
    "gpu_nvlink": _c("hardware", 3, "NVLink or NVSwitch fault", "drain the node, check `nvidia-smi nvlink -e` and the fabric manager's log, then restart without it"),
    "gpu_fault": _c("hardware", 12, "device fault without a software cause in sight", "restart without the node; if it follows the program rather than the node, run once with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer"),
    "node_fault": _c("hardware", 4, "memory, processor, board or local disk of a host failed", "drain the node, read its BMC log (`ipmitool sel list`) and kernel log, replace the part, restart without it"),
    "driver_stack": _c("host", 5, "driver, fabric manager or CUDA set-up is unfit", "bring driver, fabric manager and CUDA runtime to matching versions and start the fabric manager, then run `msctl selfcheck`"),
    "disk_full": _c("host", 6, "a file system is full", "free space on the file system, delete checkpoints cut short, resume from the one before"),
    "shm_limit": _c("host", 7, "/dev/shm is too small", "start the container with a larger --shm-size (or --ipc=host)"),
    "host_oom": _c("host", 8, "host memory ran out and a process was killed", "give the job more host memory, or use fewer data workers and less off-loading"),
    "os_limit": _c("host", 9, "a limit of the operating system was reached", "raise the limit (ulimit -n, ulimit -l, pids) for the launcher and its children"),
    "cuda_oom": _c("workload", 10, "GPU memory ran out", "use a smaller micro-batch or sequence, recompute activations, or split the model further"),
    "nic_link": _c("network", 11, "a network link or adapter failed", "check cable, port counters and switch of the port named, take the node out if it recurs"),
    "pcie_acs": _c("config", 13, "peer-to-peer traffic is redirected by ACS or IOMMU", "disable ACS or boot with iommu=pt, then run the peer-to-peer check"),
    "ckpt_corrupt": _c("storage", 14, "a checkpoint cannot be read", "resume from the checkpoint before it and verify the copy's size and digest"),
    "fs_missing": _c("storage", 15, "a file is not visible on this node", "put the path on a shared file system or create it on every node"),
    "port_in_use": _c("config", 16, "the rendezvous port is taken", "use another port, or port 0 at the rendezvous endpoint, and end the job that holds it"),
    "rank_layout": _c("config", 17, "ranks, devices or degrees do not fit together", "set the device from LOCAL_RANK and make processes per node equal visible GPUs and degrees multiply to the world size"),
    "scheduler": _c("scheduler", 18, "the scheduler ended the job", "nothing to repair: resume from the last checkpoint"),
    "desync": _c("workload", 19, "ranks call different collectives, sizes or orders", "look at the named ranks' code path: every rank must call the same collectives in the same order"),
    "lib_bug": _c("software", 20, "a fault inside a library or other native code", "upgrade the library named or pin the version before it; for a segmentation fault look at the native stack (faulthandler, gdb): it may be code of your own"),
    "numeric": _c("workload", 21, "NaN, Inf or a limit on loss or gradients", "restart from a checkpoint before the first bad step, skip its data, lower the learning rate or check the limit"),
    "data_error": _c("workload", 22, "a bad sample or shard", "take the shard named out of the data set or repair it, then resume"),
    "code_error": _c("workload", 23, "the program raised an error", "fix the line of the traceback named, then resume"),
    "net_config": _c("config", 24, "network interface, HCA list, MTU or GID is set wrongly", "set NCCL_SOCKET_IFNAME / NCCL_IB_HCA / GLOO_SOCKET_IFNAME and the MTU to what all nodes have"),
    "net_unreachable": _c("network", 25, "a node cannot be reached", "check that the address named is up and that the firewall lets the port range through between all nodes"),
    "rank_blocked": _c("workload", 26, "one rank is busy or stuck outside the collective the others wait in", "look at what the named rank does (stack, host), move long work before the barrier or raise its time-out"),
    "rendezvous": _c("config", 27, "not all members came", "start as many processes as the job expects, with one address and one world size"),
    "perf_gc": _c("workload", 28, "garbage collection pauses", "collect on all ranks at a shared step: gc.disable() after set-up, gc.freeze(), gc.collect() every n steps"),
    "perf_data": _c("workload", 29, "the input pipeline is slower than the step", "use more data workers, prefetch further or faster storage"),
    "perf_straggler": _c("hardware", 30, "one rank, node or link is slower than its peers", "run `msctl selfcheck` on the node, take it out if it is slow there as well"),
    "traffic": _c("network", 31, "network traffic left its period", "look at the NIC named: counters, cable, switch port"),
    "perf_drift": _c("workload", 32, "the step grows over time", "look at the segment that grows; restart from a checkpoint brings back the old speed if it is state in memory"),
    "service_limit": _c("network", 34, "a remote service refuses or limits requests", "fetch once and share the copy (a cache per node), spread the requests, retry later and later"),
    "crash": _c("unknown", 35, "a rank ended without a word", "read the kernel log and the scheduler's record of the node for the time named"),
    "unknown_hang": _c("unknown", 40, "only waiting is visible, not its cause", "collect stacks (py-spy) or flight-recorder dumps of the silent ranks; do not guess"),
    "unreadable": _c("input", 50, "an input cannot be read", "look at the file named"),
}  # fmt: skip
"""Category -> what it means. Names and meanings are interface: they appear in --json."""


def next_step(category: str) -> str:
    """What to do about a category."""
    return CATEGORIES[category].next
