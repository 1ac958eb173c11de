"""Start and stop the loader process of a node; and what it does from start to end.

The driver starts it before the ranks, without torch on either side. It ends by itself when its
ranks have gone or its parent has, so that nothing is left behind.
"""

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from engine import log
from engine.data.dataset import Samples
from engine.data.node_server import Feed, NodeServer, refuse
from engine.data.order import SampleOrder
from engine.data.ring import Ring, RingShape
from engine.data.samples import open_samples, training_order, validation_order
from engine.data.share import Share
from engine.errors import EngineError
from engine.spec.base import Noun
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe

logger = logging.getLogger(__name__)

_END_S = 5.0
_STDIN = 0


class NodeTask(Noun, frozen=True, kw_only=True):
    """What a loader process is told."""

    recipe: str
    """Path of the resolved recipe."""
    replicas: tuple[int, ...]
    """dp indices that have ranks on this node."""
    ranks: int
    """Ranks on this node; all of them connect."""
    slots: int = 3
    """Steps held in memory: the one being copied and those ahead."""


class NodeProcess:
    """A running loader process, seen from its parent; a context manager that ends it."""

    def __init__(self, task: NodeTask, *, log_file: Path) -> None:
        """Start it; ranks may connect to `address` at once and wait there until it is ready."""
        self._folder = tempfile.mkdtemp(prefix="msctl-data-")
        self.address = os.path.join(self._folder, "socket")
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener, log_file.open("ab") as output:
            listener.bind(self.address)
            listener.listen(2 * task.ranks + 8)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.data.node_process", str(listener.fileno()),
                 msgspec.json.encode(task).decode()],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
                pass_fds=[listener.fileno()], start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code once it has ended; negative for a signal."""
        return self._process.poll()

    def stop(self) -> int:
        """End it if it has not ended; its exit code."""
        assert self._process.stdin is not None, "started with a pipe"
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def __enter__(self) -> "NodeProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def open_feeds(recipe: Recipe, task: NodeTask) -> dict[str, Feed]:
    """The streams that a node's ranks can ask for: `train`, and `validation` where there is one."""
    train, held_out = open_samples(recipe)
    feeds = {"train": _feed(recipe, task, train, training_order(recipe, train))}
    if held_out is not None:
        feeds["validation"] = _feed(recipe, task, held_out, validation_order(recipe, held_out))
    return feeds


def _feed(recipe: Recipe, task: NodeTask, samples: Samples, order: SampleOrder) -> Feed:
    """A feed for the replicas that have ranks on this node, with new shared memory."""
    batch, dp = recipe.batch, recipe.layout.dp
    shares = [Share(batch, dp=dp, replica=replica) for replica in task.replicas]
    is_endless = order.num_samples == len(samples)
    shape = RingShape(
        slots=task.slots,
        replicas=task.replicas,
        micro_batches=batch.microbatches(recipe.layout),
        micro_batch=batch.micro_batch,
        seq=samples.seq,
        dtype=np.dtype("<u2" if recipe.model.vocab <= 1 << 16 else "<i4").str,
        steps_per_epoch=max(1, order.num_samples // batch.global_batch),
        tokens_per_byte=samples.tokens_per_byte,
        is_endless=is_endless,
    )
    return Feed(samples, order, shares, Ring.create(shape))


@contextlib.contextmanager
def _gone_with(listener: socket.socket) -> Iterator[None]:
    """Remove the socket and its folder at the end: a parent that was killed cannot."""
    path = listener.getsockname()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
            os.rmdir(os.path.dirname(path))


def main() -> int:
    """Entry: descriptor of the listening socket, task as JSON; stdin is a pipe of the parent's.

    Returns its exit code: 0 when its ranks are done, 1 after an error that it has told them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log.configure("data")
    task = msgspec.json.decode(sys.argv[2].encode(), type=NodeTask)
    with socket.socket(fileno=int(sys.argv[1])) as listener, _gone_with(listener):
        try:
            feeds = open_feeds(load_recipe(Path(task.recipe)), task)
        except EngineError as error:
            logger.error("%s; %s", error.what, error.remedy)
            refuse(listener, error, ranks=task.ranks, parent=_STDIN)
            return 1
        try:
            NodeServer(feeds, listener, ranks=task.ranks).serve(_STDIN)
        except EngineError as error:
            logger.error("%s; %s", error.what, error.remedy)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
