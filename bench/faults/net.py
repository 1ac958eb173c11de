"""Network namespaces as nodes: one bridge as the switch, one namespace and cable per node.

Needs root, `ip`, `tc` and `nft`. The host has an address on the switch, where driver and Redis are.
"""

import fcntl
import os
import shutil
import subprocess

HOST = "10.77.0.1"
_BRIDGE = "msbr0"
_LOCK = "/run/msctl-campaign.lock"


def run(*words: str, must: bool = True) -> str:
    """A command's output."""
    ended = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if must and ended.returncode:
        raise RuntimeError(f"{' '.join(words)}: {ended.stderr.strip()}")
    return ended.stdout


def _inside(index: int) -> tuple[str, ...]:
    """Words that run a command on a node."""
    return ("ip", "netns", "exec", f"ms{index}")


class Network:
    """`count` namespaces `ms0`, `ms1`, ... on one switch; a context manager that removes them.

    One at a time on a machine: another caller waits until it is gone.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> "Network":
        missing = [tool for tool in ("ip", "tc", "nft") if shutil.which(tool) is None]
        if missing or os.geteuid() != 0:
            raise SystemExit(
                f"needs root, ip, tc and nft; not here: {', '.join(missing) or 'root'}"
            )
        self._lock = open(_LOCK, "a")  # held until the end
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # one network at a time on a machine
        self._clean()
        run("ip", "link", "add", _BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{HOST}/24", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")
        for i in range(self.count):
            run("ip", "netns", "add", f"ms{i}")
            run("ip", "link", "add", f"msv{i}", "type", "veth", "peer", "name", "veth0",
                "netns", f"ms{i}")  # fmt: skip
            run("ip", "link", "set", f"msv{i}", "master", _BRIDGE, "up")
            inside = _inside(i)
            run(*inside, "ip", "addr", "add", f"10.77.0.{10 + i}/24", "dev", "veth0")
            run(*inside, "ip", "link", "set", "veth0", "up")
            run(*inside, "ip", "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        self._clean()
        self._lock.close()

    def _clean(self) -> None:
        for i in range(16):
            run("ip", "netns", "del", f"ms{i}", must=False)
            run("ip", "link", "del", f"msv{i}", must=False)
        run("ip", "link", "del", _BRIDGE, must=False)

    @staticmethod
    def words(node: str) -> list[str]:
        """What to put before a command so that it runs on a node (`node-2` or its later lives)."""
        index = int(node.partition(".")[0].rpartition("-")[2])
        return ["ip", "netns", "exec", f"ms{index}", "env", "GLOO_SOCKET_IFNAME=veth0"]

    @staticmethod
    def cut(index: int) -> None:
        """Pull the cable at the switch."""
        run("ip", "link", "set", f"msv{index}", "down")

    @staticmethod
    def join(index: int) -> None:
        """Plug it in again."""
        run("ip", "link", "set", f"msv{index}", "up")

    @staticmethod
    def slow(index: int, rate: str, *, both: bool = False) -> None:
        """Limit what the node receives, or both ways."""
        shape = ("root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms")
        run("tc", "qdisc", "add", "dev", f"msv{index}", *shape)
        if both:
            run(*_inside(index), "tc", "qdisc", "add", "dev", "veth0", *shape)

    @staticmethod
    def fast(index: int) -> None:
        """Without limit again."""
        run("tc", "qdisc", "del", "dev", f"msv{index}", "root", must=False)
        run(*_inside(index), "tc", "qdisc", "del", "dev", "veth0", "root", must=False)

    @staticmethod
    def deaf(index: int) -> None:
        """Drop what the node exchanges with the host (driver and Redis), not with other nodes."""
        inside = (*_inside(index), "nft")
        run(*inside, "add", "table", "ip", "cut")
        for hook, side in (("input", "saddr"), ("output", "daddr")):
            run(*inside, "add", "chain", "ip", "cut", hook,
                f"{{ type filter hook {hook} priority 0 ; }}")  # fmt: skip
            run(*inside, "add", "rule", "ip", "cut", hook, "ip", side, HOST, "drop")

    @staticmethod
    def hears(index: int) -> None:
        """Let it talk to the host again."""
        run(*_inside(index), "nft", "delete", "table", "ip", "cut", must=False)
