# ruff: noqa: E501 - one rule a row; a folded pattern cannot be compared with the line it is for
"""The one table of rules: what components print, and which cause it shows.

Each row is written from what the component itself prints (kernel driver, CUDA, NCCL, torch, gloo, DeepSpeed,
Slurm, Kubernetes, Python), not from single reports. strength: 3 names the cause, 2 usually does, 1 only when
nothing better is there, less than 1 only when nothing else is; 0 is a wake: what ranks print because another one has gone.
"""

import re

from engine.diagnose.logs.pieces import pieces_of


class Rule:
    """One row: category, strength, and the pattern of a line. A row equals itself only."""

    def __init__(
        self, category: str, strength: float, source: str, *, needs: str, lasting: bool
    ) -> None:
        """Make a row.

        source   the pattern; case does not count
        needs    a piece of text, digits aside, without which it cannot match
        lasting  it stays a finding even if the rank went on afterwards (a skipped step, a pause)
        """
        self.category, self.strength, self.source = category, strength, source
        self.needs, self.lasting = needs, lasting
        self.pieces = pieces_of(source)
        self._pattern: re.Pattern[str] | None = None

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern, compiled when it is first asked: most rows never are."""
        if self._pattern is None:
            self._pattern = re.compile(self.source, re.IGNORECASE)
        return self._pattern

    def may_match(self, text: str, folded: str) -> bool:
        """A quick look, blind to digits: False is certain. folded is the line's casefold."""
        if self.needs and self.needs not in text:
            return False
        if not self.pieces:
            return True
        for piece in self.pieces:  # noqa: SIM110 - a generator costs more than the search
            if piece in folded:
                return True
        return False

    @property
    def reads_digits(self) -> bool:
        """Whether the answer depends on digits, so that it differs between lines of one template."""
        return re.search(r"\\d|[0-9]", re.sub(r"\{[\d,]+\}", "", self.source)) is not None


def _r(
    category: str, strength: float, pattern: str, *, needs: str = "", lasting: bool = False
) -> Rule:
    return Rule(category, strength, pattern, needs=needs, lasting=lasting)


def _xid(category: str, strength: int, numbers: str) -> Rule:
    """A number of the driver's catalogue, as the kernel, the Kubernetes plug-in and gpud print it."""
    said = r"(?<!previous )\bXid(?: \((?P<gpu>[^)]*)\): |=| (?=\d+ (?:detected|on|error)\b))"
    return _r(category, strength, f"{said}(?:{numbers})\\b")


WAKE = "wake"

RULES: tuple[Rule, ...] = (
    # --- absurd sizes are data that never arrived, whatever they claim to be
    _r(WAKE, 0, r"tried to allocate (?:more than )?(?:\d{5,}(?:\.\d+)? GiB|\d+ ?EB|\d+EB|\d{3,} ?TiB|\d+(?:\.\d+)? ?PiB)", needs="llocate"),
    # --- GPU: the driver's Xid numbers (its catalogue), then CUDA's own words
    _r(WAKE, 0, r"Xid \([^)]*\): (?:45|154)\b", needs="Xid"),
    _xid("gpu_lost", 3, r"79"),
    _xid("gpu_ecc", 3, r"(?:48|63|64|92|94|95|140|160|161|171|172)"),
    _xid("gpu_nvlink", 3, r"(?:74|137|14[2-9]|150|155)"),
    _xid("gpu_fault", 2, r"(?:13|31|32|38|43|56|57|58|61|62|68|69|109|119|120|122|123|136|158)"),
    _r("gpu_nvlink", 3, r"SXid \((?P<gpu>[^)]*)\): \d+", needs="SXid"),
    _r("gpu_lost", 3, r"(?:GPU|at) (?P<gpu>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.\d)?):? .*fallen off the bus", needs="bus"),
    _r("gpu_lost", 3, r"GPU has fallen off the bus|GPU is lost|NVML_ERROR_GPU_IS_LOST|cudaErrorDeviceUnavailable.*lost"),
    _r("gpu_lost", 3, r"fallen off the bus|ERROR_GPU_IS_LOST|GPU_IS_LOST|device is lost", needs=""),
    _r("gpu_lost", 2, r"NVRM: .*(?:probe routine failed|osInitNvMapping failed|Cannot attach gpu)"),
    _r("gpu_lost", 2, r"Unable to determine the device handle for (?:GPU ?)?(?P<gpu>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.\d)?)?", needs="device handle"),
    _r("gpu_lost", 2, r"RmInitAdapter failed|rm_init_adapter failed|GPU .*(?:is|became) (?:inaccessible|not accessible)|NVML.*not found on the bus"),
    _r("gpu_lost", 2, r"PCIe Bus Error: severity=Uncorrect\w+|AER: .*Uncorrect\w+ \(Fatal\)|pciehp.*(?:Link Down|Card not present)"),
    _r("gpu_ecc", 3, r"uncorrectable ECC error(?: was)? encountered|ECC_UNCORRECTABLE|ECCUncorrectable|uncorrectable (?:double bit )?ECC|double[- ]bit ECC|Uncontained(?: ECC)? error|Row Remapper: .*(?:remapping|failure)|row[- ]remap\w* (?:failure|failed|pending)"),
    _r("gpu_ecc", 2, r"(?:volatile|aggregate)\w* uncorrect\w*[ :=]+[1-9]|hbm\w* .*uncorrectable|[DS]RAM uncorrectable(?: \w+)? ?[:=] ?[1-9]|remapping (?:pending|failure occurred) ?: ?Yes"),
    _r("gpu_ecc", 2, r"\bDBE volatile errors: *[1-9]|Double[- ]Bit ECC +: [1-9]|DBE \w+ (?:was|were)? ?detected", needs="E"),
    _r("gpu_ecc", 2, r"[DS]RAM Uncorrectable(?: \S+)? *: *[1-9]|[1-9]\d* uncorrectable hardware errors", needs="ncorrectable"),
    _r("gpu_ecc", 2, r"Retired Pages.*Double Bit|Pending Page Blacklist *: *Yes|Channel Repair Pending *: *Yes|Uncorrectable Error *: *[1-9]"),
    _r("gpu_nvlink", 3, r"uncorrectable NVLink error|NvlinkUncorrectable|NVLINK_UNCORRECTABLE|nvlink.*(?:fatal|(?:is |went |state )(?:down|inactive)|uncorrect|link (?:is )?down|training failed|lane \w+ error)|nvswitch.*(?:fatal|non-fatal error)|NVLink .*(?:recovery|replay) error|Link \d+: <inactive>"),
    _r("gpu_nvlink", 3, r"\b[1-9]\d* down NvLinks?|NVSwitch fatal error|NVLink (?:Replay|Recovery|CRC) Error on", needs="v"),
    _r("code_error", 3, r"device-side assert triggered|Assertion `[^`]*`? failed|: block: \[.*thread: \["),
    _r("gpu_fault", 2, r"an illegal (?:memory access|instruction) was encountered|unspecified launch failure|CUDA(?: runtime)? error.*(?:illegal memory access|illegal instruction|misaligned address|invalid program counter|hardware stack error|launch timed out|invalid address space|tensor memory|memory access fault)|CUDA_ERROR_(?:ILLEGAL_\w+|MISALIGNED_ADDRESS|LAUNCH_FAILED|LAUNCH_TIMEOUT|HARDWARE_STACK_ERROR|INVALID_PC|CONTAINED)|cudaError(?:Illegal\w+|LaunchFailure|MisalignedAddress)|Cuda failure.*'(?:an illegal memory access|an illegal instruction|unspecified launch failure|misaligned address)|Memory access fault by GPU|HSA_STATUS_ERROR_(?!OUT)|CU(?:DNN|BLAS)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)"),
    _r("gpu_fault", 2, r"amdgpu.*(?:GPU reset begin|ring \S+ timeout|HW ASIC hang|page fault)|HSA exception|GPU hang|GCVM_L2_PROTECTION_FAULT"),
    _r("gpu_ecc", 2, r"\buncorrectable hardware error\(ERREVENT_\w+\) detected", needs="ERREVENT"),
    # --- the host itself: EDAC, machine checks, APEI, thermal zones, block devices, file systems on them
    _r("node_fault", 3, r"\bEDAC \w+: [1-9]\d* UE\b|EDAC\b.*HANDLING MCE MEMORY ERROR.*\bUE\b|Kernel panic - not syncing: .*machine check"),
    _r("node_fault", 3, r"\[Hardware Error\]:.*(?:event severity: (?:fatal|recoverable)|Uncorrected error|Processor context corrupt)|Memory failure: 0x\w+: .*(?:Failed|Killing)"),
    _r("node_fault", 3, r"critical temperature reached|thermal\b.*shutting down"),
    _r("node_fault", 2, r"(?:blk_update_request|I/O error, dev|Buffer I/O error on dev)\b.*(?:error|sector|block)|critical (?:medium|target) error, dev", needs="error"),
    _r("node_fault", 2, r"\bnvme\d*\b.*(?:timeout, (?:aborting|reset controller)|controller is down; will reset|Device not ready; aborting)", needs="nvme"),
    _r("node_fault", 2, r"EXT4-fs error \(device|XFS \(\S+\): .*(?:metadata I/O error|log I/O error|corruption (?:detected|of in-memory))"),
    _r("node_fault", 2, r"\[Errno 30\]|os error 30\b|Read-only file system"),
    # --- driver, runtime, container
    _r("driver_stack", 3, r"CUDA driver version is insufficient|system not yet initialized|cudaErrorSystemNotReady|unsupported display driver|forward compatibility was attempted|Driver/library version mismatch|couldn't communicate with the NVIDIA driver|API mismatch: the client has|Found no NVIDIA driver|no NVIDIA driver on your system|driver on your system is too old|compiled with an unsupported toolchain|no kernel image is available"),
    _r("driver_stack", 3, r"fabric ?manager.*(?:not running|inactive|failed|error|mismatch|not (?:been )?(?:start|init)\w*|version)|Failed to start .*fabric ?manager|fabric state.*(?:not started|in progress|failed)"),
    _r("driver_stack", 3, r"error in the Fabric Manager|fabric manager .*(?:don't|does not|doesn't) match|IMEX (?:channel|domain|daemon).*(?:configuration|not|fail|error)|/dev/nvidia-caps-imex-channels"),
    _r("driver_stack", 3, r"ibv_reg_dmabuf_mr\b.*fail.*(?:Bad address|Invalid argument|not supported)|ibv_reg_\w+\b.*fail.*Bad address", needs="ibv_reg"),
    _r("driver_stack", 2, r"Couldn't (?:allocate|register) (?:GPU )?MR\b", needs="MR"),
    _r("driver_stack", 2, r"nvls\.cc\S* NCCL WARN Cuda failure|NCCL WARN .*NVLS.*(?:fail|error)", needs="NCCL"),
    _r("driver_stack", 2, r"modprobe: (?:ERROR|FATAL).*(?:nvidia|gdrdrv|peermem|amdgpu)|Cuda failure.*'(?:unknown error|initialization error|operation not permitted|API call is not supported|OS call failed|invalid device function)|nvidia-persistenced failed|NVRM: API mismatch|DKMS.*(?:fail|error)"),
    _r("driver_stack", 2, r"CUDA unknown error|CUDA error: unknown error|is/are busy or unavailable|no CUDA-capable device|No CUDA GPUs are available|Torch not compiled with CUDA|NVML.*(?:not (?:loaded|initialized)|Unknown Error)|Failed to initialize NVML|libcuda\.so\S*: cannot open|nvidia-container-cli: .*error|could not select device driver|CUDA initialization: |cudaGetDeviceCount.*(?:error|fail)|error: (?:driver|runtime) not (?:found|loaded)|nvidia-modprobe.*fail|^(?!.*(?:libnccl-net|NET/Plugin|libibverbs)).*cannot open shared object file"),
    # --- GPU memory
    _r("cuda_oom", 3, r"(?:CUDA|HIP|XPU) out of memory|(?:torch(?:\.cuda)?\.)OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|Cuda failure.*'?out of memory|cudaMalloc\w* .*out of memory|cudaErrorMemoryAllocation|CUDA error: out of memory|RESOURCE_EXHAUSTED: .*(?:memory|allocat)|hipErrorOutOfMemory"),
    _r("cuda_oom", 2, r"CU(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED|NVSHMEM.*out of memory|failed to allocate .*(?:device|GPU) memory|Failed to CUDA (?:calloc|malloc)"),
    # --- /dev/shm before disks: the same errno, another cure
    _r("shm_limit", 3, r"insufficient shared memory|killed by signal: Bus error|creating shared memory segment|/dev/shm\S*.*(?:No space|error|fail)|No space left on device.*(?:/dev/shm|shm)|shm\.(?:h|cc):?\d*.*(?:No space|fallocate)|raise your shared memory limit|unable to (?:open|write to|mmap|resize|allocate) .*(?:shared memory|</?torch_).*(?:No space|\(28\))|unable to (?:write to|resize|allocate) .*(?:shared memory|</?torch_)|shm_open.*fail|too small .*shm|increase .*(?:shm[-_ ]size|shared memory)"),
    _r("shm_limit", 2, r"Bus error \(core dumped\)|\bSIGBUS\b|exit ?code *:? *-7\b|signal 7\b"),
    _r("shm_limit", 2, r"unable to (?:open|mmap) .*(?:shared memory|</?torch_)"),
    _r("shm_limit", 2, r"exit ?code *[:=]? *-7\b|signal 7\b", needs="ode"),
    _r("shm_limit", 2, r"return code *[:=]? *-7\b|terminated with code -7\b|terminated with signal SIGBUS", needs="ermin"),
    _r("shm_limit", 2, r"(?:return|error) code *[:=]? *-7\b", needs="ode"),
    _r("shm_limit", 2, r"\btasks? \S+: Bus error", needs="task"),
    _r("shm_limit", 2, r"attaching to shared memory segment|TL_SHM ERROR|attach to shmseg|Caught signal 7\b|failed to extend .*nccl|shmget|shmat\b.*fail|No space left on device: '?/(?:dev|run)/shm"),
    # --- host memory
    _r("host_oom", 3, r"invoked oom-killer|oom-kill:|Out of memory: Kill(?:ed)? process (?P<pid>\d+)|Memory cgroup out of memory|oom_reaper: reaped process (?P<reaped>\d+)|OOMKilled|oom[-_ ]kill\w* event|Exceeded (?:job|step) memory limit|exceeded memory limit|low on memory|low on resource: \[?memory|MemoryPressure|Out Of Memory.*(?:task|step|job)|(?:task|step|job).*Out Of Memory|out-of-memory handler"),
    _r("host_oom", 3, r"(?-i:\bOUT_OF_ME(?:MORY\b|\+))"),
    _r("host_oom", 3, r"DataLoader worker \(pid\(?s?\)? (?P<pid>[\d, ]+)\) (?:is|was) killed by signal: Killed", needs="DataLoader"),
    _r("host_oom", 2, r"(?:exit ?|return |error )code *[:=]? *-9\b|exit(?:ed)?(?: with)?(?: exit)? ?code *[:=]? *137\b|Signal 9 \(SIGKILL\)|signal: 9\b|exitcode=-9|status=137", needs="ode"),
    _r("host_oom", 2, r"Signal 9 \(SIGKILL\)|killed by signal 9\b|signal=9\b", needs="ignal"),
    _r("host_oom", 2, r"terminated with code -9\b|died with <Signals\.SIGKILL|terminated with signal SIGKILL|exited with signal 9\b|Exit Code: *137\b", needs=""),
    _r("os_limit", 3, r"ibv_(?:reg_mr\w*|create_\w+|alloc_\w+).*(?:Cannot allocate memory|failed with error)|^(?!.*(?:ulimit -l|max locked memory.*\)) +unlimited\s*$).*(?:memlock|ulimit -l|max locked memory)|create \w* ?QP.*Cannot allocate memory"),
    _r("host_oom", 2, r"Cannot allocate memory|can't allocate memory|you tried to allocate \d+ bytes|std::bad_alloc|^\S*MemoryError|cudaHostAlloc\w*.*(?:out of memory|fail)|unable to allocate .* for an array"),
    _r("host_oom", 2, r"exited on signal 9|killed by SIGKILL|was killed by the (?:kernel|OOM)"),
    _r("host_oom", 1, r"^\s*Killed\s*$|line \d+: +\d+ Killed\b|DataLoader worker \(pid\S* \d+\) exited unexpectedly"),
    _r("host_oom", 2, r"std::bad_alloc|\bMemoryError\b"),
    # --- other limits of the operating system
    _r("os_limit", 3, r"Too many open files|received 0 items of ancdata|can't start new thread|pthread_create.*(?:fail|error)|RLIMIT_NPROC|\[Errno 11\] Resource temporarily unavailable|rejected by pids|failed to create UD QP|Thread creation failed|fork rejected by pids|fork: .*(?:Resource temporarily unavailable|No child processes)|Failed to create new thread|Resource temporarily unavailable.*(?:thread|fork|process)|inotify.*(?:limit|watches)|max_map_count|too many processes|nofile|EMFILE"),
    _r("os_limit", 3, r"\[Errno 24\]|received 0 items", needs="rrno"),
    # --- disks
    _r("disk_full", 3, r"No space left on device|Disk quota exceeded|\bENOSPC\b|DiskPressure|low on resource: \[?ephemeral-storage|disk is full|not enough (?:free )?(?:disk )?space|quota (?:limit )?exceeded"),
    _r("disk_full", 3, r"\[Errno (?:28|122)\]|errno[ :=]+28\b", needs="rrno"),
    _r("disk_full", 3, r"ephemeral (?:local )?storage (?:usage exceeds|limit)|exceed\w* (?:its|the) local ephemeral[- ]storage|EmptyDir volume \S+ exceeds the limit"),
    _r("disk_full", 2, r"\bwrite\(\): fd \d+ (?:failed|claims)", needs="write()"),
    _r("disk_full", 2, r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+"),
    # --- checkpoints
    _r("ckpt_corrupt", 3, r"PytorchStreamReader failed|failed finding central directory|invalid magic number; corrupt|header or archive is corrupted|SafetensorError|safetensors_rust|Error while deserializing header|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization|(?:checkpoint|ckpt|state[-_ ]?dict|\.pt\b|\.distcp).*(?:corrupt|truncat|incomplete|checksum|CRC|digest)|(?:corrupt|truncat|incomplete)\w* (?:checkpoint|ckpt|state)|storage has wrong (?:byte )?size|file might be corrupted|could not load checkpoint|Inconsistent (?:checkpoint|metadata)|checkpoint .*(?:is|was) (?:empty|invalid|unreadable|damaged)|UnpicklingError|CheckpointException"),
    _r("ckpt_corrupt", 2, r"EOFError: Ran out of input|pickle data was truncated|BadZipFile|unexpected EOF, expected|invalid load key|failed reading file data/"),
    # --- scheduler, operator, platform
    _r("scheduler", 3, r"^(?!.*got preempted, or crashed).*(?:DUE TO (?:TIME LIMIT|PREEMPTION|JOB REQUEUE|NODE FAIL\w*|TASK FAIL\w*)|JOB \S+ (?:\S+ )?ON \S+ CANCELLED AT|preempting to accommodate|PreemptionByScheduler|DeletionByTaintManager|EvictionByEvictionAPI|TerminationByKubelet|imminent node shutdown|interruption notice|job is preempted|(?<!no )\bpreempt(?:ed|ion)\b.*(?:job|signal|node|pod|requeue|notice|by)|(?:job|pod|node|instance|workload)\b.*\bpreempt|being preempted|requeu(?:e|ed|ing)\b|TERM_(?:RUNLIMIT|OWNER|PREEMPT)|exceeded (?:its )?(?:wall ?time|time limit|deadline)|walltime|time limit reached|MaxRuntimeExceeded|maximum (?:run ?time|duration)|job (?:time|run ?time) (?:limit|exceeded)|(?:SIG\w+|killed|terminated|cancel\w*|slurm)\b.*\btime limit|TaintManagerEviction|NodeShutdown|node is (?:shutting down|being drained)|Spot\b.*(?:interruption|reclaim|terminat)|instance-action|maintenance event|activeDeadlineSeconds|DeadlineExceeded: Job|scancel|qdel|Evicted: |was evicted|pod .*evict)"),
    _r("scheduler", 3, r"(?-i:\bPREEMPTED\b|\bNODE_FAIL\b)|\bJob ?State[:=] ?(?:TIMEOUT|DEADLINE|CANCELLED)|\bState: (?:TIMEOUT|CANCELLED) \(|\bReason=(?:TimeLimit|NodeFail|Preempt\w*)\b"),
    _r("scheduler", 2, r"FailedScheduling|NodeNotReady|Node failure on|node \S+ (?:is|was) (?:drained|cordoned|not ready)|marked dead because the autoscaler"),
    _r("scheduler", 2, r"received (?:[12]|Signals\.SIG(?:HUP|INT)) death signal|SignalException: Process \d+ got signal: [12]\b", needs="ignal"),
    _r("crash", 2, r"marked dead because the detector has missed|because its node has died\b", needs="because"),
    _r("scheduler", 0.6, r"\bCANCELLED AT\b"),  # also what srun does with a step of which a task failed
    # --- files that only some nodes see
    _r("fs_missing", 3, r"Stale file handle|after transport endpoint shutdown|\[Errno (?:107|108|116|121)\]|Transport endpoint is not connected|MountVolume\S* failed|mount(?:ing)? failed|nfs: server \S+ not responding|LustreError|Remote I/O error"),
    _r("fs_missing", 2, r"FileNotFoundError|RuntimeError: File \S+ cannot be opened|Parent directory \S+ does not exist|^(?!.*(?:libnccl-net|NET/Plugin|libibverbs|nccl\.conf|shared object)).*No such file or directory|can't open file|NotADirectoryError|does not appear to have a file named|is not a local folder and is not"),
    _r("fs_missing", 2, r"\bNoSuch(?:Key|Bucket)\b|\(404\).*(?:HeadObject|GetObject)|specified (?:key|bucket|blob) does not exist|not found, missing one or more of files|(?:file|path|director\w+|dataset|checkpoint) \S* ?(?:is |was )?(?:not found|does not exist|is missing)|Unable to find (?:latest file|checkpoint)|could not find the metadata file|was lost; in progress operations"),
    # --- services that refuse: hubs and object stores
    _r("service_limit", 2, r"\b429\b.{0,40}Too Many Requests|\bTooManyRequests|(?-i:\bSlowDown\b)|reduce your request rate|rate ?limit (?:exceeded|reached)|rateLimitExceeded|ThrottlingException"),
    _r("service_limit", 2, r"\b503\b.{0,40}(?:Service Unavailable|Slow Down)|ServiceUnavailable: 503", needs="S"),
    _r("service_limit", 1, r"HTTP Error (?:429|503) thrown while requesting|rate limited\. waiting"),
    # --- links and adapters
    _r("nic_link", 3, r"async (?:fatal )?event ?: ?(?:port error|local catastrophic|device fatal|QP fatal|.*error)|(?<![a-z])port error\b|IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL)|\b(?:mlx[45]_\w+|bnxt_\w+|ice|ena|efa\d*|ib\d+|eth\d+|en[sp]\d\w*|bond\d+|irdma|hfi1\w*)\b[: ].*(?:link (?:is )?down|lost carrier|port down|health (?:poll )?(?:failed|compromised)|fatal error|firmware (?:fatal|error)|internal error|tx timeout|transmit queue .*timed out)|NIC Link is Down|link state changed to DOWN|port \d+ state (?:changed to )?(?:DOWN|ERROR)|NETDEV WATCHDOG|catastrophic error|async fatal event|Port module event\[error\]|mlx5_error_sw_reset|mlx5_health_try_recover|health compromised|status definitely down|Physical state: (?:Polling|Disabled|LinkErrorRecovery)|link (?:flap|fail)\w*|IBV_WC_(?:RETRY|RNR_RETRY)\w*"),
    _r("nic_link", 2, r"IBV_WC_SUCCESS\b.*\berror|IBV_WC_(?:FATAL|REM_\w+|LOC_\w+|RESP_TIMEOUT)_ERR|\bstate DOWN\b.* physical_state|physical_state (?:POLLING|DISABLED|LINK_ERROR_RECOVERY)"),
    _r("nic_link", 2, r"Got completion (?:from peer \S+ )?with (?:error|status)[ =](?:7|11|12|13|16|19|20|21)\b", needs="completion"),
    _r("nic_link", 2, r"(?:transport )?retry counter exceeded|RNR retry|vendor[ _]err(?:or)? ?(?:=|:)? ?129\b|NET/OFI.*(?:error|failed)|OFI.*completion error|libfabric.*error"),
    _r("nic_link", 1, r"vendor[ _]err(?:or)? ?(?:=|:)? ?249\b", needs="vendor"),  # a request that was flushed after another had failed
    _r("nic_link", 2, r"Transport retry count exceeded|Work completion status: (?:remote|unreachable|local)|wait_func.*timeout\. Will cause a leak|link_downed[ :=]+[1-9]|port .* (?:is |in state )(?:down|not active)|cxi.*(?:fatal|retry|link (?:is )?down)|endpoint timeout"),
    # --- NCCL's RAS and its like: who is behind, without a word why
    _r("unknown_hang", 1, r"task:(?P<rank>\d+) heartbeat timeout", needs="heartbeat"),
    _r("unknown_hang", 1, r"\b(?:no|missed|missing|lack of) heartbeats?\b|\blame workers found"),
    _r("unknown_hang", 2, r"ranks? (?:have|has) launched up to operation|members? at operation|(?:members?|ranks?) .*\b(?:behind|at operation N?-\d)|communicator.*(?:incomplete|mismatch|missing ranks)"),
    # --- network set-up
    _r("net_config", 3, r"Unable to find address for|no socket interface found|No (?:usable )?(?:listen )?interface|interface \S+ (?:not found|does not exist)|Unable to find interface|makeDeviceForInterface|No interface .*(?:match|found)|NCCL_(?:SOCKET_IFNAME|IB_HCA|IB_GID_INDEX|TOPO_FILE|NET)\b.*(?:not|invalid|wrong|no |fail|could)|ibv_modify_qp.*(?:fail|error)|ibv_query_gid.*fail|GID (?:index|table).*(?:invalid|not|wrong|mismatch)|invalid GID|MTU.*mismatch|mismatch\w*.*MTU|path ?mtu|XML.*(?:topo|could not|error)|Could not open XML|topology file.*(?:not|fail|invalid)|Address family .*(?:not supported|mismatch)|Gloo connectFullMesh failed|GID table change|(?:find|match|get|read|query) (?:a |the )?(?:valid )?GID\b|failed to modify QP to RT[RS]|network device not available|no eligible providers|provider .*not found|[Nn]o (?:device|interface)s? found (?:matching|for)|couldn't find interface|no usable (?:NIC|network)|Unable to (?:resolve|determine) (?:the )?(?:address|interface)|mixed? .*(?:IPv4|IPv6)"),
    _r("net_config", 3, r"Only EFA provider is supported|aws-ofi-nccl initialization failed|Failed to initialize (?:sendrecv|rdma) protocol|NET/OFI .*(?:Couldn't open|Creating new endpoint|Could(?:n't| not) (?:find|initialize|allocate)|No eligible|No available)|fi_getinfo\S* .*(?:failed|empty list|No data available)"),
    _r("net_config", 3, r"connecting to address .*\bis neither AF_INET", needs="neither AF"),
    _r("os_limit", 2, r"Call to ibv_(?:reg_mr\w*|create_\w+|alloc_\w+) failed"),
    _r("net_config", 2, r"Call to ibv_\w+ failed|XML Import |Attribute \S+ of node \S+ not found|Unable to open device (?:mlx|ib|bnxt|efa|irdma)\w*|local GPU \d+ in topology|No IB device|IB device .*not found"),
    _r("net_config", 3, r"connect \[127\.0\.[01]\.1\]", needs="connect"),
    _r("net_config", 2, r"Name or service not known|Temporary failure in name resolution|nodename nor servname|Could not resolve host|getaddrinfo|Invalid hostname|bind: Cannot assign requested address|Cannot assign requested address|connect(?:ing)? (?:to )?\[?(?:127\.0\.[01]\.1|localhost).*(?:fail|refus)"),
    _r("port_in_use", 3, r"EADDRINUSE|address already in use|port \S+ (?:is )?(?:already )?(?:in use|taken|occupied)|failed to bind to|could not bind to|cannot bind|Failed to start (?:RPC|gRPC) server|another process is utilizing it|port is already allocated|Only one usage of each socket address"),
    # --- members and places
    _r("rank_layout", 3, r"Duplicate GPU detected ?: rank (?P<ranks>\d+ and rank \d+)", needs="Duplicate"),
    _r("rank_layout", 3, r"invalid device ordinal|both on CUDA device|rank \d+ of \d+ ranks has already checked in|mismatch in rank count|(?:not|must be|should be) (?:evenly )?divisible by .*(?:parallel|world|GPUs?|ranks?|devices?|\b[tpd]p\b)|(?:number of |num[-_ ])(?:GPUs|ranks|devices|processes)\b.* not divisible|world[-_ ]?size\b.*(?:not divisible|is not|must be|less than|greater than|does not)|(?:not divisible|must (?:be|equal|divide)).*world[-_ ]?size|\bnproc\w*.*(?:greater|more|exceed)|not enough (?:GPUs|devices)|number of (?:processes|ranks|workers|GPUs|devices)\b.*(?:does not|do not|doesn.t|not) (?:match|equal)|(?:only|just) \d+ (?:GPUs?|devices?) (?:are |is )?(?:visible|available)|(?:tensor|pipeline|data|context|expert)[-_ ](?:model[-_ ])?parallel[-_ ]size.*(?:divis|divide|must)|local[-_ ]rank.*(?:out of range|exceed|>=)|rank \d+ .*out of range|invalid rank|ncclInvalidArgument.*rank"),
    _r("rank_layout", 3, r"your machine only has|tasks per node configured in SLURM|Invalid parallel dims|No slot .* specified on host|train_batch_size is not equal to|!= ?world_size|is not equal to .*world[-_ ]?size|(?:GPU|device) ids? .*(?:out of range|not available|invalid)|requested gpu|only supports? \d+ (?:GPU|device)|mesh (?:shape|size|dim).*(?:world|devices|match)"),
    _r("rank_blocked", 3, r"retrieving ncclUniqueId from \[(?P<rank>\d+)\]", needs="ncclUniqueId"),
    _r("rendezvous", 3, r"\d+/\d+ clients joined|Rendezvous(?:Timeout|Connection|Closed|State|Graceful\w*)\w*Error|waiting for clients|rendezvous.*(?:timed? ?out|fail|closed|timeout)|(?:timed out|waiting).*(?:nodes|members|workers|peers|ranks) to (?:join|register|connect)|DistStoreError|wait timeout after \d+ ?ms, keys|not all (?:nodes|ranks|members|workers).*(?:join|start|connect)"),
    _r("rendezvous", 2, r"workers of the worker process\(\d+\) have not registered within", needs="registered"),
    _r("rendezvous", 2, r"client socket has (?:timed out|failed to connect)|timed out .*(?:TCPStore|store)|store->get\(.*Socket Timeout"),
    _r("rendezvous", 2, r"connect\(\) timed out|PjRT_Client_Connect|RegisterTask|Timed out initializing process group|coordination service.*(?:timed? out|not (?:reach|connect))|store based barrier .*worker_count|have joined\b.*timed|gang .*(?:incomplete|not ready)"),
    _r("rendezvous", 1, r"Waiting in store based barrier"),
    _r("rank_blocked", 3, r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier|monitoredBarrier.*rank (?P<rank>\d+)", needs="onitoredBarrier"),
    _r("rank_blocked", 3, r"\[(?P<rank>\d+)\] finished collective #\d+, but didn't join", needs="join collective"),
    _r("rank_blocked", 3, r"missing ranks: ?(?P<ranks>[\d, ]+)", needs="ing ranks"),
    _r("rank_blocked", 2, r"never joined any collectives|submitted to be reduced, gathered or broadcasted by subset of ranks|Missing ranks:|Stalled ranks:"),
    _r("rank_blocked", 2, r"could not acquire GIL|GIL[- ]induced hang|holding the GIL|rank (?P<rank>\d+) (?:did not (?:join|arrive|reach|respond|enter)|(?:is|was|seems|appears) (?:stuck|blocked|hung|not responding))|soft lockup|blocked for more than \d+ seconds|hung_task"),
    # --- ranks that do not call the same
    _r("desync", 3, r"Detected mismatch between collectives.*but Rank (?P<rank>\d+) is running", needs="mismatch"),
    _r("desync", 3, r"Culprit rank (?P<rank>\d+); Error type: (?!COLLECTIVE_STATE)\w*MISMATCH", needs="Culprit"),
    _r("desync", 3, r"Detected mismatch between collectives|is running (?:inconsistent )?collective|op\.preamble\.length <= op\.nbytes|Received data size doesn't match|collective mismatch|mismatch\w* (?:in |of |between )?collective|Message truncated|expects same model across all ranks|DDP.*(?:different|inconsistent).*ranks|(?:sizes?|shapes?|order|dtypes?) (?:do|does|are|is) ?(?:not|n't) match.*ranks|ranks? (?:are|is) (?:out of sync|desynchroni\w*)|(?<!dead/mismatched ranks that caused the )\bdesync\w*\b|has different values for .*Other ranks|appears not to match (?:sizes|strides|dtypes?|device)|(?:Forward|Backward|execution) order differs|disagreement (?:error|between rank)|sync_global_devices name mismatch|Mismatched (?:all\w+|broadcast|reduce|MPI|data types)|(?:must|should|expects?|to) be (?:the )?(?:same|identical|equal|consistent) (?:across|on|for) (?:all )?ranks|[Hh]ashes (?:do )?not match\w* across|count mismatch.*rank|rank .* (?:skipped|missed) a collective|different (?:number|order|sequence) of collectives|ncclInvalidUsage.*mismatch"),
    # --- numbers
    _r("numeric", 3, r"(?:found|detected|contains?|got|encountered|produced?|is|are|has|returned|returns) (?:a |an |the )?(?:nan|inf|infinite|non-?finite)\b|\b(?:nan|inf)\b ?(?:/|or|and) ?\b(?:nan|inf)\b|(?:loss|norm|grad\w*|value|logits?|activation\w*|output|weights?)['\"]? ?(?:=|:|is|are|was|became|went)? ?(?:to )?\b-?(?:nan|inf(?:inity)?)\b|\b(?:nan|inf)s? (?:in|at|from|for) |probability tensor contains either|contains a NaN|Unexpected result (?:nan|inf)|not finite|non-?finite|loss scale (?:already )?(?:at|reached|below).*minimum|Minimum loss scale|FloatingPointError|loss (?:spike|diverge|explo)\w*|grad\w* (?:norm )?(?:spike|explo|overflow)\w*|spiky gradient", lasting=True),
    _r("numeric", 2, r"(?:grad\w*|loss)\b.{0,40}\b(?:exceeds?|exceeded|above|over|larger than|spiked)\b.{0,40}\d|overflow.*(?:skipping|skipped) .*(?:scale: [0-2](?:\.0)?\b|to [01](?:\.0)?$)", lasting=True),
    _r("numeric", 1, r"\boverflow\b.*(?:loss scale|skipping step)"),
    _r("numeric", 3, r"(?:loss|norm|grad)\w*['\"]?: ?\S+ \(-?(?:nan|inf)\)", lasting=True),
    _r("numeric", 2, r"number of nan iterations: *[1-9]", needs="nan iterations", lasting=True),
    # --- libraries
    _r("lib_bug", 2, r"ncclInternalError|Internal check failed|NCCL.*internal error|please report.*(?:bug|issue|NCCL)|INTERNAL ASSERT FAILED|Segmentation fault|SIGSEGV|segfault at|general protection fault|LLVM ERROR|PTXAS error|ptxas fatal|double free|corrupted size vs|malloc\(\): |free\(\): |pure virtual method|undefined symbol|GLIBC\w*_\S* not found|symbol lookup error|(?:NCCL|library) version mismatch|mismatched (?:NCCL )?version|known (?:bug|issue|regression|hang|deadlock)\b|(?:bug|fixed) in (?:NCCL|torch|pytorch|CUDA|cuDNN|driver)|(?:exit ?|return |error )code *[:=]? *-(?:4|11)\b|Illegal instruction \(core dumped\)|SIGILL|Caught signal (?:4|11)\b"),
    # --- PCI peers
    _r("pcie_acs", 3, r"\bACS\b.*(?:enabled|on\b|redirect|must|disable|set)|(?<!DMAR: )\biommu\b.*(?:enabled|redirect|hang|disable)|Missing \"?iommu=pt|DMAR: .*fault|AMD-Vi: .*(?:PAGE_FAULT|fault)|IO_PAGE_FAULT|(?:P2P|peer[- ]to[- ]peer|peer access).*(?:ACS|IOMMU)|SrcValid\+|ReqRedir\+"),
    _r("pcie_acs", 1, r"(?:intel|amd)_iommu=on(?!.*iommu=pt)"),
    _r("pcie_acs", 2, r"peer access is not supported|peer mapping|P2P .*(?:disabled|unavailable|not supported) between"),
    # --- data
    _r("data_error", 3, r"short read|UnidentifiedImageError|truncated (?:image|JPEG|record|sample|shard|file)|image file is truncated|(?:corrupt|bad|broken|invalid|malformed|damaged)\w* (?:sample|shard|image|record|jpeg|document|row|tar|parquet|arrow|data (?:file|point|sample|shard))|tarfile\.ReadError|ReadError\(|processing shard|shard\b.*(?:checksum|mismatch|corrupt|truncat)|record .*(?:checksum|mismatch)|Not an Arrow file|Hash mismatch|JSON parse error|ArrowInvalid|JSONDecodeError|Could not deserialize|invalid (?:parquet|jsonl?) |(?:sample|shard|record|document) \S+ (?:is|was) (?:corrupt|empty|invalid|malformed|bad)|DataLossError|checksum .*(?:sample|shard|record)|magic bytes not found|\[Errno 5\] Input/output error|UnicodeDecodeError"),
    _r("data_error", 2, r"mmap (?:length|offset) is greater than file size|cannot mmap an empty file"),
    # --- unreachable
    _r("net_unreachable", 3, r"No route to host|Network is unreachable|Host is unreachable|Destination .*unreachable|errno[ :=]+113\b|firewall|iptables"),
    _r("net_unreachable", 2, r"\bssh\b.*(?:exit status|exit code|exited with) 255\b|not reachable via ssh", needs="ssh"),
    _r("net_unreachable", 2, r"Connection refused|connect\w* .*(?:timed out|timeout)|Connection timed out|failed to connect to|\bECONNREFUSED\b|\bETIMEDOUT\b|\bEHOSTUNREACH\b|connect to \S+ failed"),
    _r("net_unreachable", 1, r"socket\.cc:\d+ -> \d+ \((?:Operation now in progress|Connection timed out|No route)", needs="socket.cc"),
    _r("net_unreachable", 2, r"Max retries exceeded|couldn.t connect to '?http|Could not connect to the endpoint|EndpointConnectionError|Software caused connection abort|returned (?:No route|Connection (?:refused|timed))|exceeded error retry count"),
    # --- pace
    _r("perf_gc", 3, r"^(?!.*(?:manual|periodic|initial|coordinated|scheduled)).*(?:\bgc\b|garbage collect\w*|gc\.collect\w*|full collection|gen(?:eration)?[- ]?2).*\b(?:\d{3,}(?:\.\d+)? ?m(?:illi)?s|(?:[1-9]\d*(?:\.\d+)?|0\.[2-9]\d*) ?s(?:ec\w*)?)\b", lasting=True),
    _r("perf_gc", 2, r"gc[ _]callback|collecting generation 2|\b(?:gc|garbage collect\w*)\b.{0,30}\b(?:pauses?|stalls?|stragglers?)\b", lasting=True),
    _r("perf_straggler", 3, r"STRAGGLER DETECTION WARNING|(?<!no )\bstragglers? (?:on|detected(?! ?: ?(?:none|no\b))|found|identified|ranks?|nodes?|gpus?|is)\b|\bstragglers?: ?[\[{(]?\d|slow(?:est)? (?:rank|node|gpu|worker)|(?:rank|gpu|node) \S+ (?:is|was|runs) .*slower|thermal throttl\w*|(?:Slowdown|Brake|Thermal)[^:]*: Active|SW Power Cap *: Active|clocks? (?:throttled|lowered)", lasting=True),
    _r("perf_data", 3, r"(?:data ?load\w*|input pipeline|data(?:set)? (?:reader|worker|fetch)\w*|prefetch\w*).*(?:bottleneck|too slow|slow\b|starv\w*|stall\w*|behind|blocked for|took (?:more|longer))|(?:bottleneck|starv\w*|waiting) .*(?:data ?load\w*|input pipeline)|data_time.*exceeds|queue is empty.*(?:data|loader)|might be a bottleneck", lasting=True),
    _r("perf_data", 3, r"(?:dataloader_next|fetch_next_data|get_train_batch)\W.*\|\s*(?:[5-9]\d|100)(?:\.\d+)?\s*\|?\s*$", needs="|", lasting=True),
    # --- the wake: what a rank prints because another one has gone
    _r(WAKE, 0, r"Watchdog caught collective operation timeout|Timed out waiting \d* ?ms for (?:recv|send)|Application timeout caused pair closure|Timeout at NCCL work|To avoid data inconsistency|Received a (?:dump|global timeout) signal|preparing to dump debug info|failure detected by watchdog|Exception \(either an error or timeout\) detected by watchdog|NCCL operations have failed or timed out|Observed flight recorder dump signal"),
    _r(WAKE, 0, r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection closed by remote peer|remote process exited|ncclRemoteError|communicator was aborted|Heartbeat monitor timed out|watchdog got stuck|failed to recv, got 0 bytes|TCPStore server has shut down|(?:recv|send)(?:Value|Bytes)\w* (?:failed|on)|should dump flag|work request flushed|socketProgress|NCCL Exception occurred"),
    _r(WAKE, 0, r"ChildFailedError|Sending process \d+ closing signal|closing signal SIGTERM|received .*death signal|Signal 15|Signal(?:s\.| )?\(?SIGTERM|SignalException|SIGTERM received|Killing subprocess|exitcode *: *-15|Exited with exit code|task \S+: (?:Killed|Terminated|Exited|Aborted)|MPI_ABORT|Other Failures:|process group.*(?:abort|shut)|Terminating process because|Barrier timed out|DEADLINE_EXCEEDED|terminate called|exit code -6|SIGABRT|EngineCore failed|srun: error|MESSAGE_TASK_EXIT|Fatal Python error: Aborted|KeyboardInterrupt|ActorDiedError|ActorHandleNotFound|WorkerCrashed"),
    _r(WAKE, 0, r"Failed to execute operation \w+ from rank \d+, retcode 6\b", needs="retcode"),  # the far side had gone
    _r(WAKE, 0, r"Root Cause \(first observed", needs="Root Cause"),
    _r(WAKE, 0, r"failed \(exitcode: -?\d+\) local_rank: \d+", needs="exitcode"),
    _r(WAKE, 0, r"NCCL watchdog thread terminated|watchdog thread terminated with exception|Process group watchdog"),
    _r(WAKE, 0, r"forcefully exiting via|may be stuck: |threads? to join the rendezvous|(?:Read|Write|Connect) timeout \[|Back-off restarting|Terminating worker|lagging/dead/mismatched"),
    _r("rendezvous", 1, r"Socket Timeout"),
    # --- NCCL's own summaries, when no line says more
    _r("shm_limit", 1, r"NCCL WARN.*\b(?:shm|shared memory)\b"),
    _r("net_config", 1, r"NCCL WARN.*\b(?:NET|IB|RoCE|ibv_\w+|QP|GID|HCA|socket|interface|OFI|UCX)\b|ncclSystemError|unhandled system error|Failed to execute operation (?:Connect|Setup|Init)(?!.*retcode 6\b)"),
    _r("gpu_fault", 1, r"NCCL WARN Cuda failure|ncclUnhandledCudaError|unhandled cuda error|CUDA error: |CUDA_ERROR_\w+|HCCL error|error code is 507\d+"),
    _r("lib_bug", 1, r"NCCL WARN (?!.*(?:libibverbs|NUMA auto balancing|Missing \"iommu))(?:.*(?:error|fail|invalid|no algorithm|unsupported|unexpected|abort))"),
    _r("rank_layout", 2, r"ncclInvalidUsage"),
    # --- any other exception of a program
    _r("code_error", 1, r"^(?:\S+ ){0,8}?(?:\[[^\]]*\]:? *|\([^)]*\) *|\S+\| *)*(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Exit|Failure|Warning\b(?!:))(?:: .*|:?$)|terminate called after throwing|AssertionError"),
)  # fmt: skip
"""Read from the top: of rules of one strength the first that matches a line counts."""
