"""Faults of nodes: lost, silent, unfit, two at once, one that wakes late."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.faults.hit import AGAIN_S, RANKS, Hit, Struck, kill


def _signal_node(number: int, *, whole: bool = True) -> Callable[[Hit], Struck]:
    def do(hit: Hit) -> Struck:
        family = hit.job.pids(hit.node)
        now = time.time()
        for pid in family if whole else family[:1]:
            kill(pid, number)
        return Struck(now, node=hit.node)

    return do


def _two_nodes(hit: Hit) -> Struck:
    """One more than there are spares: the job waits for one that is repaired."""
    other = hit.job.node_of((hit.rank + 4) % RANKS)
    families = hit.job.pids(hit.node) + hit.job.pids(other)
    now = time.time()
    for pid in families:
        kill(pid, signal.SIGKILL)
    return Struck(now, node=f"{hit.node},{other}")


def _again(hit: Hit) -> Struck:
    """Two deaths on one node within half an hour: it leaves though its check finds nothing."""
    view = hit.job.view
    on_node = next(n.ranks for n in view.nodes if n.node == hit.node) if view else (hit.rank,)
    kill(hit.job.rank_pid(on_node[0]), signal.SIGKILL)
    if not hit.job.wait_restart(AGAIN_S):
        return Struck(time.time(), node=hit.node, wrong="no step after the first death")
    if hit.job.node_of(on_node[-1]) != hit.node:  # it had a death before this fault came
        return Struck(time.time(), node=hit.node, wrong="skip: the node left after the first death")
    now = time.time()
    kill(hit.job.rank_pid(on_node[-1]), signal.SIGKILL)
    return Struck(now, ranks=frozenset({on_node[-1]}), evicts=hit.node)


def _bad_node(hit: Hit) -> Struck:
    """A node's /dev/shm is too small; a rank of another node dies, and all nodes are checked."""
    other = (hit.rank + 4) % RANKS
    executor = next(pid for pid in hit.job.pids(hit.node))
    subprocess.run(
        ["nsenter", "-t", str(executor), "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs",
         "/dev/shm"], check=True)  # fmt: skip
    now = time.time()
    kill(hit.job.rank_pid(other), signal.SIGKILL)
    return Struck(now, ranks=frozenset({other}), evicts=hit.node)


def _wedged(hit: Hit) -> Struck:
    """A node's GPU driver answers no call any more; a rank of another node dies, all are checked.

    Of a driver that is missing here a library takes the place (nvml.c), loaded as the real one is.
    """
    other = (hit.rank + 4) % RANKS
    (hit.job.folder / f"wedged-{hit.node}").touch()
    now = time.time()
    kill(hit.job.rank_pid(other), signal.SIGKILL)
    return Struck(now, ranks=frozenset({other}), evicts=hit.node)


def _bad_spare(hit: Hit) -> Struck:
    """The spare stands still when a node is lost: it must not get the ranks."""
    view = hit.job.view
    spare = next((n.node for n in view.nodes if not n.ranks and n.state == "ready"), "") if (
        view
    ) else ""  # fmt: skip
    still = hit.job.pids(spare)
    for pid in still:
        kill(pid, signal.SIGSTOP)
    family = hit.job.pids(hit.node)
    now = time.time()
    for pid in family:
        kill(pid, signal.SIGKILL)
    went_on = hit.job.wait_restart(AGAIN_S)
    wrong = "" if went_on else "no new step while the spare stood still"
    for pid in still:
        kill(pid, signal.SIGCONT)
    return Struck(now, node=hit.node, wrong=wrong)


def build_nvml(folder: Path) -> Path:
    """The library that can be wedged, compiled; returns the folder in which it lies."""
    source, made = Path(__file__).with_name("nvml.c"), folder / "nvml"
    made.mkdir()
    words = ["cc", "-shared", "-fPIC", "-o", str(made / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(words, check=True)
    return made


HOW: dict[str, Callable[[Hit], Struck]] = {
    "node-kill": _signal_node(signal.SIGKILL), "node-stop": _signal_node(signal.SIGSTOP),
    "executor-kill": _signal_node(signal.SIGKILL, whole=False), "two-nodes": _two_nodes,
    "kill-again": _again, "bad-node": _bad_node, "bad-spare": _bad_spare, "nvml-wedged": _wedged,
}  # fmt: skip
