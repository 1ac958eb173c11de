"""Start an agent on every node of an allocation: here, by ssh, in Slurm or Kubernetes.

Every starter hands the greeting over by standard input, never on a command line.
"""

import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from engine.errors import MissingError, RecipeError
from engine.health.agent import Hello

Where = Literal["local", "hosts", "slurm", "k8s"]
_AGENT = ("-m", "msctl.agent")
_MAX_HOSTS = 1 << 20
_HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$")


class Started:
    """Running agents; `stop` ends what is left of them."""

    def __init__(
        self, nodes: Sequence[str], processes: Sequence["subprocess.Popen[bytes]"]
    ) -> None:
        self.nodes = list(nodes)
        self._processes = list(processes)

    def stop(self) -> None:
        """End the starters; agents end with them or when nobody speaks to them."""
        end = time.monotonic() + 2
        for process in self._processes:
            try:
                process.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def new_run() -> str:
    """A name for the keys of one check."""
    return f"selfcheck-{uuid.uuid4().hex[:12]}"


def start(where: Where, hello: Hello, nodes: Sequence[str], *, job: str = "",
          pods: Mapping[str, str] | None = None, namespace: str = "") -> Started:  # fmt: skip
    """Start an agent on each node. MissingError if the starter is not there.

    job is the Slurm job to run in, pods says which pod of Kubernetes is on a node.
    """
    if where == "local":
        return _each(nodes, hello, lambda node: [sys.executable, *_AGENT])
    if where == "hosts":
        _need("ssh", "install openssh-client")
        options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
        return _each(nodes, hello, lambda node: ["ssh", *options, node, "python3", *_AGENT])
    if where == "k8s":
        _need("kubectl", "install kubectl and give it access to the cluster")
        place, found = (["-n", namespace] if namespace else []), pods or {}
        return _each(
            nodes, hello,
            lambda n: ["kubectl", "exec", "-i", *place, found[n], "--", "python3", *_AGENT],
        )  # fmt: skip
    _need("srun", "run this on a Slurm login node, or inside an allocation")
    within = [f"--jobid={job}", "--overlap"] if job else []
    command = ["srun", *within, f"--nodes={len(nodes)}", "--ntasks-per-node=1", "--no-kill",
               f"--nodelist={','.join(nodes)}", sys.executable, *_AGENT]  # fmt: skip
    return Started(nodes, [_popen(command, hello, "")])


def _each(nodes: Sequence[str], hello: Hello, command: Callable[[str], list[str]]) -> Started:
    return Started(nodes, [_popen(command(node), hello, node) for node in nodes])


def read_hosts(path: Path) -> tuple[list[str], dict[str, str]]:
    """Nodes of a file, one a line, optionally with their switch: `node17 tor3`; # is a remark."""
    try:
        if path.stat().st_size > _MAX_HOSTS:
            raise RecipeError(f"{path}: larger than 1 MiB", remedy="give one node a line")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{path}: cannot be read: {error}", remedy="give a file of nodes"
        ) from error
    nodes, switch_of = [], {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or not _HOST.match(words[0]):
            raise RecipeError(
                f"{path}:{number}: {line.strip()[:60]!r} is not a node and its switch",
                remedy="write `node17` or `node17 tor3` on each line",
            )
        nodes.append(words[0])
        if len(words) == 2:
            switch_of[words[0]] = words[1]
    if not nodes:
        raise RecipeError(f"{path}: names no node", remedy="write one node a line")
    return nodes, switch_of


def reachable_host() -> str:
    """The address at which other nodes reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent; the route decides
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _popen(command: Sequence[str], hello: Hello, node: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None, "a pipe was asked for"
    greeting = msgspec.structs.replace(hello, node=node)
    try:
        process.stdin.write(msgspec.json.encode(greeting) + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended at once: the node will be reported as silent
    return process


def _need(program: str, remedy: str) -> None:
    if shutil.which(program) is None:
        raise MissingError(f"{program} is not installed", remedy=remedy)
