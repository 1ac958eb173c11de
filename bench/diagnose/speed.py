"""Reading speed on one core: megabytes of logs or traces per second of processor time.

python bench/diagnose/speed.py logs DIR
python bench/diagnose/speed.py traces DIR
"""

import sys
import time
from pathlib import Path

from engine.diagnose.logs.reading import log_files
from engine.diagnose.logs.scan import Scanner
from engine.diagnose.readers.files import FileFault
from engine.diagnose.readers.kineto import read_trace


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    paths = log_files(folder)
    size = hits = 0
    scanner = Scanner()
    begin = time.process_time()
    for path in paths:
        if what == "logs":
            scan = scanner.scan(path)
            size += scan.size
            hits += sum(scan.counts.values())
        else:
            try:
                hits += len(read_trace(path).compute)
                size += path.stat().st_size
            except FileFault as fault:
                print(f"  {path}: {fault}")
    seconds = time.process_time() - begin
    print(f"{what}: {size / 1e6:.0f} MB, {size / 1e6 / seconds:.0f} MB/s, {hits} hits")


if __name__ == "__main__":
    main()
