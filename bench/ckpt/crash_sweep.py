#!/usr/bin/env python3
"""Stop a program at every syscall that touches its checkpoint folder, then check what is left.

    crash_sweep.py --cmd "python save.py {dir}" --check "python check.py {dir} {said}"

The command runs once under strace to learn which write, fsync, rename, ... calls
touch {dir}; then once for each of them with a fault at just that call:

    kill    SIGKILL on entry of the call (the call itself does not happen)
    ENOSPC, EIO, EDQUOT, ...   the call fails with that error
    lost    the call claims success and does nothing (a lying disk)
    slow    the call takes --delay seconds longer

After each run the check command decides: exit status 0 means the invariant
holds. {said} is a file with what the command had printed until then, so the
check can demand that everything reported as committed is really there.
One JSON line per point and one summary line. Needs strace and Linux.
"""

import argparse
import collections
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

CALLS = (
    "write,pwrite64,pwritev,writev,copy_file_range,sendfile,fsync,fdatasync,sync_file_range,"
    "rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,mkdir,mkdirat,"
    "ftruncate,truncate,fallocate,msync"
)
LINE = re.compile(r"^(\d+)\s+(\w+)\((.*)$")


def fill(text, d, said):
    return [p.replace("{dir}", d).replace("{said}", said) for p in shlex.split(text)]


def trace(cmd, d, calls, limit):
    """(syscall, ordinal) pairs that touch d, in order; ordinals count per thread, as in strace."""
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as log:
        t0 = time.time()
        p = subprocess.run(
            [
                "strace",
                "-f",
                "-qq",
                "-y",
                "-s",
                "64",
                "-e",
                "signal=none",
                "-e",
                "trace=" + calls,
                "-o",
                log.name,
                *cmd,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=limit,
        )
        if p.returncode:
            sys.exit("the command fails without any fault:\n" + p.stderr.decode()[-2000:])
        seen, points = collections.Counter(), []
        for line in log:
            m = LINE.match(line)
            if not m or "resumed>" in line:
                continue
            pid, call, rest = m.groups()
            seen[pid, call] += 1
            if d in rest:
                point = (call, seen[pid, call])
                if point not in points:
                    points.append(point)
    return points, time.time() - t0


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--cmd", required=True)
    p.add_argument("--check", required=True)
    p.add_argument("--fault", default="kill")
    p.add_argument("--calls", default=CALLS)
    p.add_argument("--delay", type=float, default=2.0)
    p.add_argument(
        "--max", type=int, default=0, help="test at most this many points, evenly spread"
    )
    p.add_argument("--start-from", default=None, help="folder to copy into {dir} before each run")
    p.add_argument("--limit", type=float, default=120)
    p.add_argument("--quiet", action="store_true", help="only the summary line")
    a = p.parse_args()
    root = tempfile.mkdtemp(prefix="crash-sweep-")
    d, said = os.path.join(root, "d"), os.path.join(root, "said")

    def reset():
        shutil.rmtree(d, ignore_errors=True)
        if a.start_from:
            shutil.copytree(a.start_from, d)
        else:
            os.mkdir(d)

    try:
        reset()
        points, _sec = trace(fill(a.cmd, d, said), d, a.calls, a.limit)
        total = len(points)
        if a.max and total > a.max:
            points = [points[i * total // a.max] for i in range(a.max)]
        bad = []
        t0 = time.time()
        for call, n in points:
            reset()
            how = {
                "kill": "signal=KILL",
                "lost": "retval=0",
                "slow": f"delay_enter={int(a.delay * 1e6)}",
            }.get(a.fault, "error=" + a.fault)
            if a.fault == "lost" and call in ("write", "pwrite64", "writev", "pwritev"):
                continue  # the size is not known; drop fsync, rename, ... instead
            with open(said, "wb") as out:
                try:
                    rc = subprocess.run(
                        [
                            "strace",
                            "-f",
                            "-qq",
                            "-o",
                            "/dev/null",
                            "-e",
                            "trace=" + call,
                            "-e",
                            f"inject={call}:{how}:when={n}",
                            *fill(a.cmd, d, said),
                        ],
                        stdout=out,
                        stderr=subprocess.DEVNULL,
                        timeout=a.limit,
                    ).returncode
                except subprocess.TimeoutExpired:
                    rc = "timeout"
            c = subprocess.run(
                fill(a.check, d, said),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=a.limit,
            )
            ok = c.returncode == 0
            note = (c.stdout.strip().splitlines() or [""])[-1][:200]
            if not ok:
                bad.append(f"{call}#{n}")
            if not a.quiet:
                print(
                    json.dumps(dict(call=call, n=n, fault=a.fault, exit=rc, ok=ok, check=note)),
                    flush=True,
                )
        print(
            json.dumps(
                dict(
                    fault=a.fault,
                    points=len(points),
                    of=total,
                    violations=len(bad),
                    where=bad[:20],
                    sec_per_point=round((time.time() - t0) / max(1, len(points)), 2),
                )
            )
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
