"""The state of all GPUs as plain values, read once through NVML.

A value that the driver or the GPU does not offer is None, never a guess. A GPU that answers with an
error keeps its place with `error` set, so that a lost GPU is a finding and not a shorter list.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from engine.errors import MissingError
from engine.health.kernel_log import normal_pci
from engine.spec.base import Noun

_MAX_LINKS = 18
T = TypeVar("T")


class Gpu(Noun, frozen=True, kw_only=True):
    """One GPU. Counters are totals; memory in bytes, power in watts, clocks in MHz."""

    index: int
    error: str = ""
    """What NVML answered when asked for the GPU, e.g. `GPU is lost`; nothing else is known then."""
    name: str = ""
    uuid: str = ""
    pci: str = ""
    vbios: str | None = None
    ecc_on: bool | None = None
    mig_on: bool | None = None
    persistence: bool | None = None
    compute_mode: int | None = None
    """0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process."""
    sram_uncorrected: int | None = None
    dram_uncorrected: int | None = None
    corrected: int | None = None
    """Volatile corrected errors, all places."""
    aggregate_uncorrected: int | None = None
    remap_corrected: int | None = None
    remap_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_replays: int | None = None
    pstate: int | None = None
    utilization: int | None = None
    """Per cent of the last sample period."""
    throttle: int | None = None
    """Bit set of reasons why the clock is not at its maximum."""
    clock_sm: int | None = None
    clock_sm_max: int | None = None
    temperature: int | None = None
    temperature_slowdown: int | None = None
    power_limit: float | None = None
    power_default: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    processes: tuple[int, ...] | None = None
    """Process ids with a compute context."""
    links: tuple[bool, ...] | None = None
    """Each NVLink: is it up."""
    link_errors: tuple[int, ...] | None = None
    """Each NVLink: replay, recovery and CRC errors together."""
    fabric: int | None = None
    """Registration with the NVSwitch fabric: 0 not supported, 1 not started, 2 in progress, 3
    done."""
    fabric_status: int | None = None


class GpuState(Noun, frozen=True, kw_only=True):
    """What the driver says about the whole node."""

    driver: str
    library: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()

    @property
    def present(self) -> tuple[Gpu, ...]:
        """GPUs that answer."""
        return tuple(g for g in self.gpus if not g.error)


def read_gpus() -> GpuState:
    """Ask NVML; MissingError if there is no library, no driver or no agreement between the two."""
    try:
        import pynvml
    except ImportError:
        raise MissingError(
            "the package nvidia-ml-py is not installed", remedy="run `pip install nvidia-ml-py`"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _no_driver(error, pynvml) from error
    try:
        number = int(pynvml.nvmlDeviceGetCount())
        version = _ask(pynvml, pynvml.nvmlSystemGetCudaDriverVersion)
        return GpuState(
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
            library=_text(_ask(pynvml, pynvml.nvmlSystemGetNVMLVersion) or ""),
            cuda=f"{version // 1000}.{version % 1000 // 10}" if version else "",
            gpus=tuple(_read_gpu(pynvml, index) for index in range(number)),
        )
    finally:
        pynvml.nvmlShutdown()


def _no_driver(error: Any, pynvml: Any) -> MissingError:
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return MissingError(
            "NVML: driver and library versions differ",
            remedy="reboot the node, or reload the nvidia modules, after the driver's update",
        )
    return MissingError(
        f"NVML: {error}", remedy="install the NVIDIA driver, or check `lsmod | grep nvidia`"
    )


def _read_gpu(pynvml: Any, index: int) -> Gpu:
    """One GPU, or its error."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = _text(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError as error:
        return Gpu(index=index, error=str(error))
    facts: dict[str, Any] = {}
    for part in (_identity, _memory_errors, _pcie, _clocks, _memory, _nvlink):
        facts |= part(pynvml, handle)
    return Gpu(index=index, name=name, **facts)


def _ask(pynvml: Any, function: Callable[..., T], *arguments: Any) -> T | None:
    """A value, None if this GPU or driver does not offer it."""
    try:
        return function(*arguments)
    except (pynvml.NVMLError, AttributeError):
        return None


def _identity(p: Any, h: Any) -> dict[str, Any]:
    pci = _ask(p, p.nvmlDeviceGetPciInfo, h)
    ecc = _ask(p, p.nvmlDeviceGetEccMode, h)
    mig = _ask(p, p.nvmlDeviceGetMigMode, h)
    persistence = _ask(p, p.nvmlDeviceGetPersistenceMode, h)
    return {
        "uuid": _text(_ask(p, p.nvmlDeviceGetUUID, h) or ""),
        "pci": normal_pci(_text(pci.busId)) if pci is not None else "",
        "vbios": _text(_ask(p, p.nvmlDeviceGetVbiosVersion, h) or "") or None,
        "ecc_on": None if ecc is None else bool(ecc[0]),
        "mig_on": None if mig is None else bool(mig[0]),
        "persistence": None if persistence is None else bool(persistence),
        "compute_mode": _ask(p, p.nvmlDeviceGetComputeMode, h),
    }


def _memory_errors(p: Any, h: Any) -> dict[str, Any]:
    def counter(place: int) -> int | None:
        kind = p.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        return _ask(p, p.nvmlDeviceGetMemoryErrorCounter, h, kind, p.NVML_VOLATILE_ECC, place)

    def total(kind: int, since: int) -> int | None:
        return _ask(p, p.nvmlDeviceGetTotalEccErrors, h, kind, since)

    rows = _ask(p, p.nvmlDeviceGetRemappedRows, h)
    causes = (
        p.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        p.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    pages = [_ask(p, p.nvmlDeviceGetRetiredPages, h, cause) for cause in causes]
    known = [len(found) for found in pages if found is not None]
    pending = _ask(p, p.nvmlDeviceGetRetiredPagesPendingStatus, h)
    return {
        "sram_uncorrected": counter(p.NVML_MEMORY_LOCATION_SRAM),
        "dram_uncorrected": counter(p.NVML_MEMORY_LOCATION_DRAM),
        "corrected": total(p.NVML_MEMORY_ERROR_TYPE_CORRECTED, p.NVML_VOLATILE_ECC),
        "aggregate_uncorrected": total(p.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, p.NVML_AGGREGATE_ECC),
        "remap_corrected": rows[0] if rows else None,
        "remap_uncorrected": rows[1] if rows else None,
        "remap_pending": bool(rows[2]) if rows else None,
        "remap_failed": bool(rows[3]) if rows else None,
        "retired_pages": sum(known) if known else None,
        "retired_pending": None if pending is None else bool(pending),
    }


def _pcie(p: Any, h: Any) -> dict[str, Any]:
    return {
        "pcie_width": _ask(p, p.nvmlDeviceGetCurrPcieLinkWidth, h),
        "pcie_width_max": _ask(p, p.nvmlDeviceGetMaxPcieLinkWidth, h),
        "pcie_gen": _ask(p, p.nvmlDeviceGetCurrPcieLinkGeneration, h),
        "pcie_gen_max": _ask(p, p.nvmlDeviceGetMaxPcieLinkGeneration, h),
        "pcie_replays": _ask(p, p.nvmlDeviceGetPcieReplayCounter, h),
    }


def _clocks(p: Any, h: Any) -> dict[str, Any]:
    use = _ask(p, p.nvmlDeviceGetUtilizationRates, h)
    limit = _ask(p, p.nvmlDeviceGetPowerManagementLimit, h)
    default = _ask(p, p.nvmlDeviceGetPowerManagementDefaultLimit, h)
    slowdown = p.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    reasons = _ask(p, p.nvmlDeviceGetCurrentClocksEventReasons, h)
    if reasons is None:  # the function's name before driver 535
        reasons = _ask(p, p.nvmlDeviceGetCurrentClocksThrottleReasons, h)
    return {
        "pstate": _ask(p, p.nvmlDeviceGetPerformanceState, h),
        "utilization": None if use is None else int(use.gpu),
        "throttle": reasons,
        "clock_sm": _ask(p, p.nvmlDeviceGetClockInfo, h, p.NVML_CLOCK_SM),
        "clock_sm_max": _ask(p, p.nvmlDeviceGetMaxClockInfo, h, p.NVML_CLOCK_SM),
        "temperature": _ask(p, p.nvmlDeviceGetTemperature, h, p.NVML_TEMPERATURE_GPU),
        "temperature_slowdown": _ask(p, p.nvmlDeviceGetTemperatureThreshold, h, slowdown),
        "power_limit": None if limit is None else limit / 1000,
        "power_default": None if default is None else default / 1000,
    }


def _memory(p: Any, h: Any) -> dict[str, Any]:
    memory = _ask(p, p.nvmlDeviceGetMemoryInfo, h)
    running = _ask(p, p.nvmlDeviceGetComputeRunningProcesses, h)
    return {
        "memory_total": None if memory is None else int(memory.total),
        "memory_used": None if memory is None else int(memory.used),
        "processes": None if running is None else tuple(int(r.pid) for r in running),
    }


def _nvlink(p: Any, h: Any) -> dict[str, Any]:
    """States and errors of links until the first that the GPU does not have."""
    states, errors = [], []
    kinds = (p.NVML_NVLINK_ERROR_DL_REPLAY, p.NVML_NVLINK_ERROR_DL_RECOVERY,
             p.NVML_NVLINK_ERROR_DL_CRC_FLIT)  # fmt: skip
    for link in range(_MAX_LINKS):
        state = _ask(p, p.nvmlDeviceGetNvLinkState, h, link)
        if state is None:
            break
        states.append(bool(state))
        seen = [_ask(p, p.nvmlDeviceGetNvLinkErrorCounter, h, link, kind) for kind in kinds]
        errors.append(sum(n for n in seen if n is not None))
    info = p.c_nvmlGpuFabricInfo_t()
    fabric = _ask(p, p.nvmlDeviceGetGpuFabricInfo, h, p.byref(info))
    return {
        "links": tuple(states) if states else None,
        "link_errors": tuple(errors) if states else None,
        "fabric": None if fabric is None else int(info.state),
        "fabric_status": None if fabric is None else int(info.status),
    }


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
