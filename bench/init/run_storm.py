"""Play the store traffic of many ranks against real servers: python bench/init/run_storm.py --help.

Builds storm.c, starts a private Redis, Valkey and two TCPStores, and prints one JSON line a run.
The servers' CPU time is reported, since wall time on a shared machine says little. At 1,024 ranks
and more the two schemes in which all ranks meet after each group run a spread sample of the groups;
`full_*` is the sample scaled up.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from engine.comm.embedded_redis import EmbeddedRedis, _packaged, find_server
from engine.comm.resp import Client

HERE = Path(__file__).resolve().parent
TICK = os.sysconf("SC_CLK_TCK")
SAMPLE = {1024: 60, 2048: 28}
MEETING_OF_ALL = ("poll", "global")
GIVE_UP_S = 400


def cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def without_dns():
    """Names from files only, where root can arrange it: TCPStore looks up the name of each client.

    One lost answer of a name server would stall all ranks for 5 s and hide everything else.
    """
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return []
    script = (
        "printf 'hosts: files\\n' > /tmp/.storm-nsswitch && "
        'mount --bind /tmp/.storm-nsswitch /etc/nsswitch.conf && exec "$@"'
    )
    return ["unshare", "-m", "sh", "-c", script, "sh"]


def servers(stack, wanted):
    """Name -> (protocol, port, pid, password, a function that empties it)."""
    found = {}
    programs = {"redis": "/usr/bin/redis-server", "valkey": _packaged()}
    for name in wanted:
        if name in programs:
            program = programs[name] if programs[name] and os.path.exists(programs[name]) else None
            if program is None and name == "redis":
                program = find_server()
            if program is None:
                continue
            s = stack.enter_context(EmbeddedRedis(host="127.0.0.1", durable=False, program=program))
            client = Client(s.local)
            port = int(s.url.rsplit(":", 1)[1].split("/")[0])
            found[name] = ("redis", port, s.pid, s.password, lambda c=client: c.call(("FLUSHALL",)))
        else:
            arguments = ["nouv"] if name == "tcp-old" else []
            process = subprocess.Popen(
                [*without_dns(), sys.executable, str(HERE / "tcp_server.py"), *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(process.kill)
            port = int(process.stdout.readline())
            found[name] = ("tcp", port, process.pid, "", lambda: None)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="64,256,1024,2048")
    parser.add_argument("--servers", default="redis,valkey,tcp,tcp-old")
    parser.add_argument("--scenarios", default="poll,global,local,ordered,batched")
    parser.add_argument("--reps", type=int, default=2)
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        storm = Path(folder, "storm")
        subprocess.run(["cc", "-O2", "-o", str(storm), str(HERE / "storm.c")], check=True)
        running = servers(stack, args.servers.split(","))
        for size in map(int, args.sizes.split(",")):
            for scenario in args.scenarios.split(","):
                for name, server in running.items():
                    best = min(
                        (run(storm, name, server, size, scenario) for _ in range(args.reps)),
                        key=lambda row: row.get("wall_s", 1e9),
                    )
                    print(json.dumps(best), flush=True)


def run(storm, name, server, size, scenario):
    protocol, port, pid, password, empty = server
    limit = SAMPLE.get(size, 0) if scenario in MEETING_OF_ALL else 0
    before = cpu(pid)
    ended = subprocess.run(
        [str(storm), protocol, str(port), str(size), scenario, str(limit)],
        capture_output=True, text=True, timeout=GIVE_UP_S,
        env=os.environ | ({"STORM_PASSWORD": password} if password else {}),
    )  # fmt: skip
    empty()
    row = {"server": name, "ranks": size, "scenario": scenario}
    if ended.returncode:
        return row | {"error": ended.stderr[-200:]}
    row |= json.loads(ended.stdout)
    scale = row["groups_all"] / row["groups_run"] if limit else 1.0
    used = cpu(pid) - before
    return row | {
        "server_cpu_s": round(used, 2), "full_calls": int(row["ops"] * scale),
        "full_wall_s": round(row["wall_s"] * scale, 3), "full_cpu_s": round(used * scale, 2),
    }  # fmt: skip


if __name__ == "__main__":
    main()
