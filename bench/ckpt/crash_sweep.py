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
        line = ["strace", "-f", "-qq", "-y", "-s", "64", "-e", "signal=none",
                "-e", "trace=" + calls, "-o", log.name, *cmd]  # fmt: skip
        p = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=limit)
        if p.returncode:
            sys.exit("the command fails without any fault:\n" + p.stderr.decode()[-2000:])
        seen, points = collections.Counter(), []
        for line in log:
            m = LINE.match(line)
            if not m or "resumed>" in line:
                continue
            pid, call, rest = m.groups()
            seen[pid, call] += 1
            if d in rest and (call, seen[pid, call]) not in points:
                points.append((call, seen[pid, call]))
    return points


def spread(points, most):
    """At most so many points, evenly spread; 0 = all."""
    total = len(points)
    return [points[i * total // most] for i in range(most)] if most and total > most else points


def is_tried(call, fault):
    """A write that lies about its size cannot be told from here: fsync, rename, ... are dropped."""
    return not (fault == "lost" and call in ("write", "pwrite64", "writev", "pwritev"))


def run_with_fault(cmd, call, n, fault, said, *, limit, delay_s=2.0):
    """Run the command with a fault at the n-th such call; returns its exit status."""
    how = {"kill": "signal=KILL", "lost": "retval=0", "slow": f"delay_enter={int(delay_s * 1e6)}"}
    inject = f"inject={call}:{how.get(fault, 'error=' + fault)}:when={n}"
    line = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e", inject, *cmd]
    with open(said, "wb") as out:
        try:
            return subprocess.run(
                line, stdout=out, stderr=subprocess.DEVNULL, timeout=limit
            ).returncode
        except subprocess.TimeoutExpired:
            return "timeout"


def command_check(check, limit):
    """A checker that runs a command; returns its verdict and last line."""

    def run(d, said):
        c = subprocess.run(fill(check, d, said), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, timeout=limit)  # fmt: skip
        return c.returncode == 0, (c.stdout.strip().splitlines() or [""])[-1][:200]

    return run


def sweep(command, check, fault, *, root, start_from=None, most=0, limit=120.0, delay_s=2.0,
          calls=CALLS, tell=None):  # fmt: skip
    """Every point with one fault; `check(dir, said)` gives (ok, note). Returns the totals."""
    d, said = os.path.join(root, "d"), os.path.join(root, "said")

    def reset():
        shutil.rmtree(d, ignore_errors=True)
        if start_from:
            shutil.copytree(start_from, d)
        else:
            os.mkdir(d)

    reset()
    every = [p for p in trace(fill(command, d, said), d, calls, limit) if is_tried(p[0], fault)]
    points, bad, begin = spread(every, most), [], time.time()
    for call, n in points:
        reset()
        rc = run_with_fault(
            fill(command, d, said), call, n, fault, said, limit=limit, delay_s=delay_s
        )
        ok, note = check(d, said)
        if not ok:
            bad.append(f"{call}#{n}: {note}")
        if tell:
            tell(dict(call=call, n=n, fault=fault, exit=rc, ok=ok, check=note))
    return dict(
        fault=fault, points=len(points), of=len(every), violations=len(bad), where=bad[:20],
        sec_per_point=round((time.time() - begin) / max(1, len(points)), 2),
    )  # fmt: skip


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--cmd", required=True)
    p.add_argument("--check", required=True)
    p.add_argument("--fault", default="kill")
    p.add_argument("--calls", default=CALLS)
    p.add_argument("--delay", type=float, default=2.0)
    p.add_argument("--max", type=int, default=0, help="at most so many points, evenly spread")
    p.add_argument("--start-from", help="folder to copy into {dir} before each run")
    p.add_argument("--limit", type=float, default=120)
    p.add_argument("--quiet", action="store_true", help="only the summary line")
    a = p.parse_args()
    root = tempfile.mkdtemp(prefix="crash-sweep-")
    try:
        total = sweep(
            a.cmd, command_check(a.check, a.limit), a.fault, root=root, start_from=a.start_from,
            most=a.max, limit=a.limit, delay_s=a.delay, calls=a.calls,
            tell=None if a.quiet else lambda row: print(json.dumps(row), flush=True),
        )  # fmt: skip
        print(json.dumps(total))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if total["violations"] else 0)


if __name__ == "__main__":
    main()
