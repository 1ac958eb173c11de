"""Start an agent on every node of an allocation: here, by ssh, in Slurm or Kubernetes.

Every starter hands the greeting over by standard input, never on a command line.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec

from engine.errors import MissingError, RecipeError
from engine.health.agent import Hello
from engine.health.bounded import read_bounded

Where = Literal["local", "hosts", "slurm", "k8s"]
_AGENT = ("-m", "msctl.agent")
_MAX_HOSTS = 1 << 20
_TAIL = 4096
_SSH_FAILED = 255
_HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$")


class Starter(NamedTuple):
    """One process that brings up agents, and what it complains about."""

    nodes: tuple[str, ...]
    process: "subprocess.Popen[bytes]"
    errors: BinaryIO
    command: str = ""

    def last_line(self) -> str:
        """What it or its agent said last on its error output, hints left out."""
        end = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, end - _TAIL))
        lines = self.errors.read().decode("utf-8", "replace").splitlines()
        said = [line.strip() for line in lines if not line.startswith("hint: ")]
        return next((line[:300] for line in reversed(said) if line), "")


class Started:
    """Running agents; `stop` ends what is left of them."""

    def __init__(self, nodes: Sequence[str], starters: Sequence["Starter"]) -> None:
        self.nodes = list(nodes)
        self._starters = list(starters)
        self._processes = [starter.process for starter in starters]

    def said(self) -> dict[str, str]:
        """Node -> the last line that its starter or agent wrote to its error output."""
        found: dict[str, str] = {}
        for starter in self._starters:
            last = starter.last_line()
            found |= {node: last for node in starter.nodes if last}
        return found

    def gone(self) -> dict[str, str]:
        """Node -> why, of each whose starter has ended: its agent will not come any more."""
        found: dict[str, str] = {}
        for starter in self._starters:
            code = starter.process.poll()
            if code is not None:
                program = starter.command.partition(" ")[0]
                why = starter.last_line() or f"{program} ended with {code} and said nothing"
                found |= dict.fromkeys(starter.nodes, why)
        return found

    def remedy(self) -> str:
        """What to do about the first starter that ended by itself; empty if the way to Redis is.

        An agent that cannot reach Redis ends with 5; ssh that cannot reach a host with 255.
        """
        ended = [s for s in self._starters if s.process.poll() not in (None, 5)]
        if not ended:
            return ""
        if ended[0].process.poll() == _SSH_FAILED and ended[0].command.startswith("ssh "):
            return (
                f"make `ssh {ended[0].nodes[0]} true` work from here without a password, "
                "or correct the name in the file of nodes"
            )
        return f"make this start from here: {ended[0].command}"

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
        options = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ConnectionAttempts=1")
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
    return Started(nodes, [_popen(command, hello, tuple(nodes))])


def _each(nodes: Sequence[str], hello: Hello, command: Callable[[str], list[str]]) -> Started:
    return Started(nodes, [_popen(command(node), hello, (node,)) for node in nodes])


def read_hosts(path: Path) -> tuple[list[str], dict[str, str]]:
    """Nodes of a file, one a line, optionally with their switch: `node17 tor3`; # is a remark."""
    try:
        lines = read_bounded(path, _MAX_HOSTS).decode("utf-8").splitlines()
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


def _popen(command: Sequence[str], hello: Hello, nodes: tuple[str, ...]) -> Starter:
    """Start, and greet by standard input; an agent that serves one node is told which."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - read when a node stays silent
    process = subprocess.Popen(
        list(command), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
    )
    assert process.stdin is not None, "a pipe was asked for"
    alone = nodes[0] if len(nodes) == 1 and "srun" not in command[0] else ""
    greeting = msgspec.structs.replace(hello, node=alone)
    with contextlib.suppress(BrokenPipeError):  # ended at once: its node will stay silent
        process.stdin.write(msgspec.json.encode(greeting) + b"\n")
        process.stdin.close()
    return Starter(nodes, process, errors, " ".join(command))


def _need(program: str, remedy: str) -> None:
    if shutil.which(program) is None:
        raise MissingError(f"{program} is not installed", remedy=remedy)
