#!/usr/bin/env python3
"""Show whether a checkpoint that a system calls complete survives a power cut.

Each system saves once onto a file system inside an image file (loop mount).
At the moment it reports completion the image is copied: what the kernel still
holds in its page cache is not in the copy, just as after a power cut. The copy
is mounted (the journal is replayed), loaded and compared byte by byte.

Needs root, a loop device and mkfs. One JSON line per system.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ckpt_bench
import systems


def sh(*cmd):
    subprocess.run(cmd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--systems", default="all")
    p.add_argument("--world", type=int, default=1)
    p.add_argument("--layout", default="sharded")
    p.add_argument("--gib", type=float, default=0.02)
    p.add_argument("--image-mib", type=int, default=1024)
    p.add_argument("--fs", default="ext4")
    p.add_argument("--limit", type=float, default=120)
    a = p.parse_args()
    a.saves, a.verbose = 1, False
    names = list(systems.ALL) if a.systems == "all" else a.systems.split(",")
    root = tempfile.mkdtemp(prefix="power-cut-")
    img, cut, mnt = (os.path.join(root, x) for x in ("img", "cut", "mnt"))
    os.mkdir(mnt)
    try:
        for name in names:
            if name in systems.ALL and a.layout not in systems.ALL[name].layouts:
                continue
            row = dict(system=name, fs=a.fs, world=a.world, layout=a.layout)
            with open(img, "wb") as f:
                f.truncate(a.image_mib << 20)
            sh(f"mkfs.{a.fs}", *(["-q", "-F"] if a.fs == "ext4" else ["-q", "-f"]), img)
            sh("mount", "-o", "loop", img, mnt)
            os.sync()
            try:
                ev, _, err = ckpt_bench.run_phase(
                    a,
                    name,
                    a.world,
                    a.layout,
                    "save",
                    mnt,
                    a.limit,
                    ("--snapshot", f"{img}::{cut}"),
                )
            finally:
                sh("umount", mnt)
            saved = next((e for e in ev if e["ev"] == "saved"), None)
            if not saved or not os.path.exists(cut):
                row["error"] = err or "save did not finish"
                print(json.dumps(row), flush=True)
                continue
            sh("mount", "-o", "loop", cut, mnt)
            try:
                left = sorted(
                    os.path.relpath(os.path.join(r, f), mnt)
                    + f":{os.path.getsize(os.path.join(r, f))}"
                    for r, _d, fs in os.walk(mnt)
                    for f in fs
                )
                ev, _, err = ckpt_bench.run_phase(
                    a,
                    name,
                    a.world,
                    a.layout,
                    "load",
                    mnt,
                    a.limit,
                    ("--step", str(saved["step"]), "--name", saved["path"]),
                )
            finally:
                sh("umount", mnt)
            got = next((e for e in ev if e["ev"] == "loaded"), None)
            row["survives"] = bool(got and got["bad"] == 0)
            if not row["survives"]:
                row["why"] = f"{got['bad']} wrong tensors" if got else err
                row["left"] = left[:6]
            os.unlink(cut)
            print(json.dumps(row), flush=True)
    finally:
        subprocess.run(["umount", "-l", mnt], stderr=subprocess.DEVNULL)
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
