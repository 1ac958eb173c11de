# ruff: noqa: E501 - lines as the components print them
import pytest

from engine.diagnose.logs.rules import classify, match, talks_about
from engine.diagnose.logs.scan import Scanner
from engine.diagnose.logs.table import RULES, WAKE

LINES = {
    "gpu_lost": [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=2211, name=python, GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:87:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus and is not responding to commands.",
        "Unable to determine the device handle for GPU 0000:8A:00.0: GPU is lost.  Reboot the system to recover this GPU",
        "pynvml.NVMLError_GpuIsLost: GPU is lost",
        "pcieport 0000:20:01.0: AER: Uncorrected (Fatal) error received: 0000:20:01.0",
    ],
    "gpu_ecc": [
        "NVRM: Xid (PCI:0000:0f:00): 48, pid=1122, DBE (double bit error) ECC Error",
        "NVRM: Xid (PCI:0000:0f:00): 94, pid=3431, name=python3, Contained: CE User Channel (0x9).",
        "NVRM: Xid (PCI:0000:0f:00): 64, pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row",
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
        "NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'",
    ],
    "gpu_nvlink": [
        "NVRM: Xid (PCI:0000:1a:00): 74, pid=22, NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0, 0x0)",
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 15",
        "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    ],
    "gpu_fault": [
        "NVRM: Xid (PCI:0000:52:00): 31, pid=771, name=python, Ch 00000008, MMU Fault: ENGINE GRAPHICS",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:0000:52:00): 119, pid=771, name=python, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
        "NCCL WARN Cuda failure 719 'unspecified launch failure'",
    ],
    "node_fault": [
        "EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x5 offset:0x0 grain:32)",
        "{1}[Hardware Error]: event severity: fatal",
        "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: Uncorrected error, Processor context corrupt",
        "Memory failure: 0x1f2a3b: recovery action for dirty LRU page: Failed",
        "Kernel panic - not syncing: Fatal machine check",
        "thermal thermal_zone0: critical temperature reached (105 C), shutting down",
        "blk_update_request: critical medium error, dev nvme1n1, sector 1234 op 0x0:(READ) flags 0x0",
        "I/O error, dev nvme1n1, sector 1234 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 2",
        "nvme nvme0: I/O 12 QID 3 timeout, aborting",
        "nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0",
        "XFS (nvme3n1): log I/O error -5",
        "OSError: [Errno 30] Read-only file system: '/local/out.pt'",
    ],
    "service_limit": [
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://hub/api",
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation: Please reduce your request rate.",
        "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage/b/x: Service Unavailable",
        "requests.exceptions.HTTPError: 503 Server Error: Slow Down for url: https://bucket/key",
    ],
    "driver_stack": [
        "Failed to initialize NVML: Driver/library version mismatch",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.",
        "Error 802: system not yet initialized",
        "nvidia-fabricmanager.service: Failed with result 'exit-code'. Fabric Manager version mismatch error",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ],
    "cuda_oom": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.",
    ],
    "host_oom": [
        "Memory cgroup out of memory: Killed process 33221 (python) total-vm:218441216kB, anon-rss:103111111kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=9921.0. Some of the step tasks have been OOM Killed.",
        "    reason: OOMKilled",
        "RuntimeError: DataLoader worker (pid 4123) is killed by signal: Killed. ",
        "  exitcode  : -9 (pid: 884)",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    ],
    "shm_limit": [
        "RuntimeError: unable to write to file </torch_1233_8812_3>: No space left on device (28) /dev/shm",
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-pW4xQz (size 9637888)",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ],
    "disk_full": [
        "OSError: [Errno 28] No space left on device: '/ckpt/iter_0001000/mp_rank_00'",
        "OSError: [Errno 122] Disk quota exceeded",
        "Warning  Evicted  kubelet  The node was low on resource: ephemeral-storage.",
    ],
    "os_limit": [
        "OSError: [Errno 24] Too many open files: '/data/shard_00412.bin'",
        "RuntimeError: received 0 items of ancdata",
        "RuntimeError: can't start new thread",
        "misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    ],
    "ckpt_corrupt": [
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        "_pickle.UnpicklingError: pickle data was truncated",
        "EOFError: Ran out of input",
    ],
    "fs_missing": [
        "FileNotFoundError: [Errno 2] No such file or directory: '/local/cache/idx.npy'",
        "OSError: [Errno 116] Stale file handle: '/nfs/ckpt/latest'",
        "OSError: [Errno 107] Transport endpoint is not connected: '/fsx/data'",
    ],
    "nic_link": [
        "mlx5_core 0000:5e:00.0 ens2f0np0: Link down",
        "transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
        "NCCL WARN NET/IB : Got completion from peer 10.4.2.1<4> with status=12 opcode=1 len=0 vendor err 129 (Send)",
        "bnxt_en 0000:41:00.0 eth2: NIC Link is Down",
    ],
    "net_config": [
        "NCCL WARN Bootstrap : no socket interface found",
        "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth9",
        "misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument errno 22",
        "socket.gaierror: [Errno -2] Name or service not known",
    ],
    "net_unreachable": [
        "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.1.0.7<41133> failed : No route to host",
        "RuntimeError: [pair.cc] connect [10.1.0.9]:3310: Connection refused",
    ],
    "pcie_acs": [
        "NCCL WARN Missing \"iommu=pt\" from kernel command line which can lead to system instability or hang!",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:c1:00.0 domain=0x0021 address=0xd0f70000 flags=0x0030]",
    ],
    "port_in_use": [
        "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE",
        "OSError: [Errno 98] Address already in use",
    ],
    "rank_layout": [
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 53000",
        "RuntimeError: CUDA error: invalid device ordinal",
        "AssertionError: world_size (12) is not divisible by tensor_model_parallel_size (8)",
    ],
    "rendezvous": [
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 31/32 clients joined.",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).",
    ],
    "desync": [
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=5",
        "NCCL WARN Message truncated : received 2048 bytes instead of 1024",
    ],
    "rank_blocked": [
        "RuntimeError: Ranks 3 failed to pass monitoredBarrier in 1800000 ms",
        "INFO: task python:2212 blocked for more than 120 seconds.",
    ],
    "numeric": [
        " iteration 100/ 5000 | lm loss: nan | grad norm: 1.2",
        "RuntimeError: Function 'MmBackward0' returned nan values in its 0th output.",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "Rank 12: found NaN in local grad norm in backward pass before data-parallel communication collective.",
    ],
    "data_error": [
        "PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f>",
        "tarfile.ReadError: unexpected end of data",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    ],
    "code_error": [
        "KeyError: 'input_ids'",
        "[rank3]: ValueError: token id 50304 is out of range",
        "RuntimeError: CUDA error: device-side assert triggered",
        "/pytorch/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.",
    ],
    "lib_bug": [
        "ncclInternalError: Internal check failed.",
        "ImportError: /env/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "Segmentation fault (core dumped)",
        "RuntimeError: grad.numel() == bucket_view.numel() INTERNAL ASSERT FAILED at reducer.cpp:339, please report a bug to PyTorch.",
    ],
    "scheduler": [
        "slurmstepd: error: *** JOB 881 ON gpu-12 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "slurmstepd: error: *** STEP 12.0 ON n3 CANCELLED AT 2025-01-01T00:00:00 DUE TO PREEMPTION ***",
        "Normal  Preempted  pod was preempted by a higher priority pod",
    ],
    "perf_gc": ["gc: done, 81233 unreachable, 0 uncollectable, 1.4312s elapsed"],
    "perf_straggler": [
        "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {3}",
        "GPU 5: HW Slowdown: Active, HW Thermal Slowdown: Active",
    ],
    WAKE: [
        "[Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.3]:55981",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ],
}  # fmt: skip
CASES = [(category, line) for category, lines in LINES.items() for line in lines]


@pytest.mark.parametrize(("category", "line"), CASES)
def test_what_a_component_prints_is_its_category(category, line):
    found = match(line)
    assert found is not None, line
    assert found.rule.category == category


@pytest.mark.parametrize(("category", "line"), CASES)
def test_the_first_cut_keeps_every_line_that_a_rule_knows(category, line, tmp_path):
    log = tmp_path / "rank_3.log"
    log.write_text("2026-01-01 [rank3] INFO iteration 1/9 | lm loss: 2.0\n" * 50 + line + "\n")
    hits = [hit for hits in Scanner().scan(log).hits.values() for hit in hits]
    assert [(hit.line, RULES[hit.rule].category) for hit in hits] == [(51, category)]


@pytest.mark.parametrize(
    "line",
    [
        " iteration 12/ 500 | consumed samples: 73728 | lm loss: 2.104E+00 | grad norm: 0.314 |",
        "node12:3096:3096 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE ; OOB eth0",
        "2026-01-01 10:00:00 INFO saving checkpoint at iteration 1000 to /ckpt",
        "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
        "node12:3096:3096 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        "wandb: Run data is saved locally in /runs/wandb",
        "Loading extension module fused_adam... Time to load: 0.31 seconds",
        "[INFO] [config.py:1002] fp16_enabled ................. False",
    ],
)
def test_healthy_lines_are_nobodys_fault(line):
    assert classify(line) is None


def test_advice_is_told_from_a_report():
    assert talks_about("hint: an uncorrectable ECC error means the GPU must be reset")
    assert not talks_about("RuntimeError: CUDA error: uncorrectable ECC error encountered")
