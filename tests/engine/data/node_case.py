"""A node's loader served from a thread, and what its ranks do as real processes."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.comm.world import Rendezvous
from engine.data.node_loader import open_node_loaders
from engine.data.node_process import NodeTask, open_feeds
from engine.data.node_server import NodeServer
from engine.errors import EngineError
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe


@contextlib.contextmanager
def served(recipe: Recipe, folder: Path, task: NodeTask) -> Iterator[str]:
    """The address of a server in this process."""
    address = str(folder / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    server = NodeServer(open_feeds(recipe, task), listener, ranks=task.ranks)
    closing, closed = os.pipe()

    def serve() -> None:
        with contextlib.suppress(EngineError):  # its ranks are told
            server.serve(closing)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield address
    os.close(closed)
    thread.join(10)
    assert not thread.is_alive()
    os.close(closing)
    listener.close()


def task_of(recipe: Recipe, ranks: int, slots: int = 3) -> NodeTask:
    """All replicas on one node."""
    replicas = tuple(range(recipe.layout.dp))
    return NodeTask(recipe="", replicas=replicas, ranks=ranks, slots=slots)


def steps_of_rank(rank: int, meet: Rendezvous, args: Any) -> Any:
    """A rank's process: tokens of some steps by sample, what it maps, what was counted."""
    recipe = load_recipe(Path(args["recipe"]))
    replica = rank % recipe.layout.dp
    train, held_out = open_node_loaders(recipe, args["address"], replica=replica)
    found = []
    for step in range(args["first"], args["last"]):
        for tokens, targets, ids in train.microbatches(step):
            for column, key in enumerate(ids.tolist()):
                found.append((key, tokens[:, column].tolist(), targets[-1, column].item()))
    evaluated = []
    if held_out is not None:
        for step in range(held_out.steps_per_epoch):
            evaluated += [t.tolist() for t, _, _ in held_out.microbatches(step)]
    maps = Path("/proc/self/maps").read_text()
    counters = train.counters
    return {
        "replica": replica, "found": found, "evaluated": evaluated,
        "maps_tokens": ".bin" in maps, "bytes_read": counters.bytes_read, "steps": counters.steps,
    }  # fmt: skip
