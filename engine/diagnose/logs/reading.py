"""Read all logs of a job: over several processes when there is much of it, with progress."""

from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path

from engine.diagnose.logs.scan import FileScan, Scanner
from engine.diagnose.logs.triage import Triage, triage
from engine.diagnose.readers.files import cores, files_below, size_of

_ALONE = 256 << 20
"""Below so many bytes starting processes costs more than it saves."""
_SKIP = frozenset({"truth.json", "README.md", "answers.jsonl", "job.json"})
_BATCH = 64


def read_logs(
    places: Iterable[Path],
    *,
    kernel: Path | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> tuple[Triage, int, list[tuple[str, str]]]:
    """Triage of every log below the places: what they say, files read, what could not be read.

    kernel  a place that holds kernel logs, read as well
    A file that is empty, or of which a part could not be read, is not among those that were read.
    """
    of_kernel = log_files(kernel) if kernel is not None else []
    roots = [*places, *([kernel] if kernel is not None else [])]
    paths = [path for root in roots if root != kernel for path in log_files(root)] + of_kernel
    sizes = [size_of(path) for path in paths]
    scans: list[FileScan] = []
    total = max(1, sum(sizes))
    done = 0
    for batch in _scanned(paths, total):
        scans += batch
        done += sum(scan.size for scan in batch)
        on_progress(min(1.0, done / total))
    faults = [(str(scan.path), fault) for scan in scans for fault in scan.faults]
    root = roots[0] if roots[0].is_dir() else roots[0].parent
    whole = sum(scan.complete and scan.lines > 0 for scan in scans)
    return triage(scans, root, kernel=frozenset(of_kernel)), whole, faults


def log_files(root: Path) -> list[Path]:
    """The log files below a place; a file is itself."""
    return files_below(root, _SKIP)


def _scanned(paths: list[Path], total: int) -> Iterable[list[FileScan]]:
    batches = [paths[i : i + _BATCH] for i in range(0, len(paths), _BATCH)]
    if total < _ALONE or cores() < 2 or len(batches) < 2:
        scanner = Scanner()
        yield from ([scanner.scan(path) for path in batch] for batch in batches)
        return
    with futures.ProcessPoolExecutor(cores()) as pool:
        yield from pool.map(scan_batch, batches)


def scan_batch(paths: list[Path]) -> list[FileScan]:
    """Scan some files in a process of their own."""
    scanner = Scanner()
    return [scanner.scan(path) for path in paths]
