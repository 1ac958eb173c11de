"""A node joins a job: `python -m engine.job.join RUN_FOLDER [NODE]` starts its executor.

What Slurm and Kubernetes run on each node, and what `torchrun --nproc-per-node 1 -m engine.job.join
RUN_FOLDER` starts as well. Everything needed is in the run folder, which all nodes see; the
password stands in a file, not on the command line.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from engine.errors import EngineError, MissingError
from engine.job.executor import Executor
from engine.job.keeper import FILE, Join, read_join
from engine.job.link_redis import RedisExecutorLink
from engine.job.order import ExecutorTask
from engine.spec.load import load_recipe

_WAIT_S = 120.0


def node_name(env: Mapping[str, str], host: str) -> str:
    """What the scheduler calls this node; several torchrun groups on one host get numbers."""
    name = env.get("SLURMD_NODENAME") or env.get("NODE_NAME") or host.partition(".")[0]
    group = env.get("GROUP_RANK", "")
    return f"{name}-{group}" if group.isdigit() else name


def wait_for_join(folder: Path, within_s: float) -> Join:
    """The way into the job; a driver may be a moment later than its nodes."""
    end = time.monotonic() + within_s
    while not (folder / FILE).exists() and time.monotonic() < end:
        time.sleep(0.1)
    return read_join(folder / FILE)


def executor_task(folder: Path, node: str, join: Join) -> ExecutorTask:
    """What an executor of this job is told."""
    recipe = load_recipe(folder / "recipe.toml")
    slots = -(-recipe.layout.world_size // recipe.job.nodes)
    return ExecutorTask(
        node=node, folder=str(folder), slots=slots, beat_s=recipe.job.beat_s, redis=join.redis,
        job=join.job,
    )  # fmt: skip


def main() -> int:
    """Serve until the driver says so: 0; 5 if the job cannot be reached."""
    if not 2 <= len(sys.argv) <= 3:
        sys.stderr.write("usage: python -m engine.job.join RUN_FOLDER [NODE]\n")
        return 2
    folder = Path(sys.argv[1])
    node = sys.argv[2] if len(sys.argv) > 2 else node_name(os.environ, os.uname().nodename)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def leave(number: int, frame: FrameType | None) -> None:
        executor.leave()

    try:
        task = executor_task(folder, node, wait_for_join(folder, _WAIT_S))
        link = RedisExecutorLink(task)
        executor = Executor(task, link)
        signal.signal(signal.SIGTERM, leave)  # a scheduler wants the node back: save first
        executor.serve()
        link.close()
    except EngineError as error:
        if isinstance(error, MissingError):
            sys.stderr.write(f"error: {error.what}\n\nhint: {error.remedy}\n")
            return 5
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
