"""A rank of an earlier start that wakes late: `python -m bench.faults.stale RANK`, task on stdin.

It does what every rank does: meets the others, under the names of its own start, and would train.
"""

import sys

import msgspec

from engine.train.task import RankTask
from engine.train.worker import run_rank, warm_up


def main() -> None:
    """Run as the rank named."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=RankTask)
    warm_up()
    print("late", flush=True)
    raise SystemExit(run_rank(int(sys.argv[1]), task, -1))


if __name__ == "__main__":
    main()
