"""A real Slurm on this machine: one controller, eight virtual nodes, no cgroups, no database.

Needs root, slurmctld, slurmd and munged. Everything lies in one folder and ends with `stop`.
"""

import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo")
NODES = tuple(f"n{i}" for i in range(1, 9))
_CONF = """\
ClusterName=sim
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/slurmd-%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
TopologyPlugin=topology/tree
SlurmdTimeout=60
KillWait=2
HealthCheckInterval={interval}
HealthCheckNodeState=ANY
HealthCheckProgram={base}/health
NodeName=n[1-8] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 Boards=1 \
SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=1000
PartitionName=train Nodes=n[1-8] Default=YES MaxTime=INFINITE State=UP
"""
_TOPOLOGY = """\
SwitchName=tor0 Nodes=n[1-4]
SwitchName=tor1 Nodes=n[5-8]
SwitchName=spine Switches=tor[0-1]
"""


class Cluster:
    """`base` is a short path: it holds sockets. `health` is the HealthCheckProgram's text."""

    def __init__(self, base: Path, health: str, *, port: int, interval_s: int) -> None:
        self.base = base
        self._port, self._interval_s = port, interval_s
        self._processes: list[subprocess.Popen[bytes]] = []
        self.env = os.environ | {"SLURM_CONF": str(base / "slurm.conf")}
        for name in ("munge", "state", "spool", "run", "log"):
            (base / name).mkdir(parents=True)
        program = base / "health"
        program.write_text(health)
        program.chmod(0o755)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        port, base = self._port, self.base
        base.chmod(0o755)
        (base / "slurm.conf").write_text(
            _CONF.format(base=base, port=port, first=port + 1, last=port + len(NODES),
                         host=os.uname().nodename, interval=self._interval_s)
        )  # fmt: skip
        (base / "topology.conf").write_text(_TOPOLOGY)
        key, owner = base / "munge" / "key", pwd.getpwnam("munge")
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for path in (base / "munge", key):
            os.chown(path, owner.pw_uid, owner.pw_gid)
        at = base / "munge"
        self._run(
            ["munged", "--foreground", "--force", f"--socket={at}/socket", f"--key-file={key}",
             f"--pid-file={at}/pid", f"--log-file={at}/log", f"--seed-file={at}/seed"],
            user="munge", group="munge",
        )  # fmt: skip
        self.wait(lambda: (at / "socket").exists(), "munged")
        self._run(["slurmctld", "-D", "-f", str(base / "slurm.conf")])
        for node in NODES:
            (base / "spool" / node).mkdir()
            self._run(["slurmd", "-D", "-N", node, "-f", str(base / "slurm.conf")])
        self.wait(lambda: set(self.states().values()) == {"idle"}, "nodes")

    def _run(self, command: list[str], **how: str) -> None:
        with (self.base / "log" / f"{command[0]}.out").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **how
                )
            )

    def call(self, *command: str, must: bool = True) -> str:
        """What one of Slurm's commands prints."""
        ended = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        assert not must or ended.returncode == 0, f"{command}: {ended.stderr}"
        return ended.stdout

    def states(self, *, must: bool = False) -> dict[str, str]:
        """Node -> state as sinfo writes it, without its marks; nothing while it does not answer."""
        lines = self.call("sinfo", "-N", "-h", "-o", "%N %t", must=must).splitlines()
        return {line.split()[0]: line.split()[1].rstrip("*~#$@-") for line in lines}

    def reason(self, node: str) -> str:
        """Why a node is drained."""
        return self.call("sinfo", "-h", "-n", node, "-o", "%E").strip()

    def wait(self, is_so, what: str, limit_s: float = 90.0) -> None:
        """Until something is so."""
        end = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end, f"{what} did not come: {self.states()}"
            time.sleep(0.1)

    def stop(self) -> None:
        """End all daemons, the nodes first."""
        for process in reversed(self._processes):
            process.terminate()
        end = time.monotonic() + 3
        for process in reversed(self._processes):
            try:
                process.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.base, ignore_errors=True)
