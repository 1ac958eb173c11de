#!/usr/bin/env python3
"""Checkpoints on real stores, while the stores and the flusher are killed and frozen.

    python real_stores.py --store hdfs|seaweedfs|rclone|moto --dir SCRATCH

Starts the store (hdfs_local.py, s3_local.py) and prints one JSON line per scenario: what was seen,
and `ok`. rclone's S3 does not honour create-if-absent: there the rows say how the product notices.
Packages: hdfs-native for hdfs, s3fs and the server's own for S3 (`s3_local.PACKAGES`).
"""

import argparse
import contextlib
import importlib.util
import json
import logging
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hdfs_local import Hdfs
from real_job import Job, msctl
from real_training import training
from s3_local import S3

from engine.ckpt.catalog import catalog
from engine.ckpt.prune import Retention, plan_prune, prune
from engine.ckpt.store import open_store
from engine.ckpt.verify import verify

FROZEN_S = 30.0
SLOW_MIB_S = 8.0
"""Bound on a drain that has to be caught in its middle."""

Row = dict[str, Any]


def steps_of(root: str) -> list[int]:
    return [info.step for info in catalog(root) if info.state == "committed"]


def commands(root: str, server: Any) -> Row:
    """Save, list, show, verify, load, prune, as a user does."""
    job = Job(root, mib=16)
    for step in (1, 2, 3):
        job.save(step)
        job.two.wait(120)
    exact = all(job.is_exact(step) for step in (1, 2, 3))
    listed = msctl("list", root)[1]
    asked = {"show": (), "verify": (), "prune": ("--keep", "1", "--yes")}
    answers = {name: msctl(name, root, *more) for name, more in asked.items()}
    codes = {name: code for name, (code, _) in answers.items()}
    said = {name: answer for name, (code, answer) in answers.items() if code}
    left = [info.name for info in catalog(root)]
    again = job.save(4).folder
    job.two.wait(120)
    job.close()
    ok = exact and len(listed) == 3 and not any(codes.values()) and left == ["step-00000003"]
    return {"exact": exact, "listed": len(listed), "exit_codes": codes, "said": said, "left": left,
            "ok": ok and again == "step-00000004" and steps_of(root) == [3, 4]}  # fmt: skip


def killed_flusher(root: str, server: Any) -> Row:
    """SIGKILL in the middle of a drain; the next flusher finishes from memory."""
    job = Job(root, mib_s=SLOW_MIB_S)
    job.save(1)
    at = job.until_writing()
    job.kill_flusher()
    nothing_yet = steps_of(root) == []
    done = job.two.wait(120)
    job.close()
    return {"killed_at_percent": at, "exact": (exact := job.is_exact(1)),
            "ok": done and nothing_yet and exact and verify(root).ok}  # fmt: skip


def killed_server(root: str, server: Any, node: str) -> Row:
    """SIGKILL of the store itself in the middle of a drain, started again after three seconds."""
    job = Job(root, mib_s=SLOW_MIB_S)
    job.save(1)
    at = job.until_writing()
    begin = time.monotonic()
    server.send(node, signal.SIGKILL)
    time.sleep(3)
    server.run(node)
    up_s = time.monotonic() - begin
    done = job.two.wait(300)
    took, failures = time.monotonic() - begin, job.status.failures
    exact = done and job.is_exact(1)
    job.close()
    return {"node": node, "killed_at_percent": at, "down_s": round(up_s, 1),
            "committed_after_s": round(took, 1), "failures_seen": failures,
            "ok": done and exact and verify(root).ok}  # fmt: skip


def frozen(root: str, server: Any, node: str) -> Row:
    """SIGSTOP of the store for 30 s in the middle of a drain, while training goes on saving."""
    job = Job(root, mib_s=SLOW_MIB_S * 2)
    for step in range(1, 7):
        job.save(step)
        job.two.wait(120)
    normal, job.stalls = job.stalls[1:], []
    job.save(7)
    at = job.until_writing()
    job.stalls = []
    server.send(node, signal.SIGSTOP)
    begin, step, gave_way, skipped, backlog = time.monotonic(), 7, 0, 0, 0
    while time.monotonic() - begin < FROZEN_S:
        time.sleep(1.5)
        step += 1
        taken = job.save(step)
        gave_way += taken.dropped_step >= 0
        skipped += not taken.folder
        backlog = max(backlog, len(job.two.spool.jobs()))
    during = job.status.committed_step  # the store itself may not answer
    server.send(node, signal.SIGCONT)
    thawed = time.monotonic()
    done = job.two.wait(300)
    took = time.monotonic() - thawed
    last = job.save(step + 1)
    done = done and job.two.wait(120) and job.is_exact(step + 1)
    found = steps_of(root)
    job.close()
    stall = [statistics.median(normal), statistics.median(job.stalls)]
    return {"node": node, "frozen_at_percent": at, "stall_s": round(stall[0], 4),
            "stall_frozen_s": round(stall[1], 4), "stall_frozen_max_s": round(max(job.stalls), 4),
            "saves_while_frozen": step - 7, "gave_way": gave_way, "skipped": skipped,
            "most_waiting": backlog, "committed_while_frozen": during - 6,
            "all_done_after_s": round(took, 1), "failures_seen": job.status.failures,
            "ok": bool(done and last.folder and backlog <= 2 and step + 1 in found
                       and max(job.stalls) < 5)}  # fmt: skip


def dead_writer(root: str, server: Any) -> Row:
    """A node is lost in the middle of a drain: prune finds what it left, and only that."""
    job = Job(root, mib=96, mib_s=4 * SLOW_MIB_S)
    job.save(1)
    job.two.wait(120)
    job.save(2)
    at = job.until_writing(0.7)  # s3fs begins a multipart upload with the first 50 MiB
    job.die()
    store = open_store(root)
    files = [(f.name, f.bytes) for f in store.files("step-00000002")]
    uploads = [upload.name for upload in store.uploads()]
    young = [d.name for d in plan_prune(root, Retention()) if d.action == "remove"]
    plan = plan_prune(root, Retention(), now_s=time.time() + 30000)
    removed = prune(root, plan)
    left = [info.name for info in catalog(root)]
    later = Job(root, mib=16)
    again = later.save(2).folder
    done = again == "step-00000002" and later.two.wait(120) and later.is_exact(2)
    later.close()
    return {"killed_at_percent": at, "left_files": files, "left_uploads": uploads,
            "removed_within_grace": young, "removed_later": removed, "kept": left,
            "uploads_after": len(store.uploads()),
            "ok": done and not young and left == ["step-00000001"] and not store.uploads()
            and {name.partition("/")[0] for name in removed} == {"step-00000002"}}  # fmt: skip


def two_writers(root: str, server: Any) -> Row:
    """Two runs with one path save the same step: one has it, the other hears why it does not."""
    jobs = [Job(root, mib=16, mib_s=SLOW_MIB_S, seed=seed) for seed in (1, 2)]
    for job in jobs:
        job.save(1)
    end = time.monotonic() + 90
    while time.monotonic() < end and not any(job.two.is_idle() for job in jobs):
        time.sleep(0.1)
    time.sleep(3)
    said = [job.status.committed_step == 1 for job in jobs]
    errors = ["another run" in job.status.error for job in jobs]
    exact = [job.is_exact(1) for job in jobs]
    caution = max(job.status.caution for job in jobs)
    for job in jobs:
        job.die()
    return {"reported": said, "told": errors, "whose_bytes": exact, "caution": caution[:70],
            "ok": sum(said) == 1 and said == exact and errors == [not s for s in said]
            and verify(root).ok}  # fmt: skip


def races(root: str, server: Any) -> Row:
    """Threads that create one name at the same instant: how many are told that they made it."""
    winners, trials = [], 20
    for trial in range(trials):
        stores, wall = [open_store(root) for _ in range(2)], threading.Barrier(2)
        made: list[bool] = []

        def work(
            store: Any, mine: bytes, wall: Any = wall, made: Any = made, n: int = trial
        ) -> None:
            wall.wait()
            made.append(store.create(f"step-{n + 1:08d}/ATTEMPT", mine))

        threads = [
            threading.Thread(target=work, args=(store, bytes([65 + i]) * 9))
            for i, store in enumerate(stores)
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        winners.append(sum(made))
    cautions = sum(bool(store.caution) for store in stores)
    return {"trials": trials, "two_winners": winners.count(2), "no_winner": winners.count(0),
            "stores_that_warn": cautions, "ok": winners.count(2) == 0}  # fmt: skip


def second_client(root: str, server: Any) -> Row:
    """Another implementation copies a checkpoint away; its digests hold, the tensors are equal."""
    job = Job(root, mib=16)
    job.save(1)
    job.two.wait(120)
    job.close()
    rows, path = [], root.partition("://")[2].partition("/")[2]
    with tempfile.TemporaryDirectory(prefix="second-") as scratch:
        for name, copy in clients(root, server, path).items():
            folder = Path(scratch) / name
            folder.mkdir()
            begin = time.monotonic()
            copy(folder / "step-00000001")
            took = time.monotonic() - begin
            job.root = str(folder)
            fine = verify(str(folder)).ok and job.is_exact(1)
            rows.append({"client": name, "exact": fine, "seconds": round(took, 1)})
    return {"clients": rows, "ok": bool(rows) and all(row["exact"] for row in rows)}


def clients(root: str, server: Any, path: str) -> dict[str, Callable[[Path], object]]:
    """Ways to copy the checkpoint that do not use our client."""
    source, found = f"{path}/step-00000001", {}
    if isinstance(server, S3):
        import boto3

        def boto(to: Path) -> None:
            s3, bucket = boto3.client("s3"), root.split("/")[2]
            to.mkdir()
            for entry in s3.list_objects_v2(Bucket=bucket, Prefix=f"{source}/")["Contents"]:
                s3.download_file(bucket, entry["Key"], str(to / entry["Key"].rpartition("/")[2]))

        return {"boto3": boto}
    if shutil.which("hdfs"):
        environment = {"HADOOP_NAMENODE": f"127.0.0.1:{server.port}", "HADOOP_USER_NAME": "root"}
        found["hdfs-cli"] = lambda to: subprocess.run(
            ["hdfs", "get", f"/{source}", str(to)], env=environment, check=True
        )
    if server.has_webhdfs:
        from fsspec.implementations.webhdfs import WebHDFS

        fs = WebHDFS("127.0.0.1", server.port + 1, user="root")
        found["webhdfs"] = lambda to: fs.get(f"/{source}", str(to), recursive=True)
    return found


def scenarios(kind: str) -> dict[str, Callable[[str, Any], Row]]:
    """Every scenario of a store, by name."""
    nodes = ("namenode", "datanode") if kind == "hdfs" else ("server",)
    rows: dict[str, Callable[[str, Any], Row]] = {
        "commands": commands, "second_client": second_client, "killed_flusher": killed_flusher,
        "dead_writer": dead_writer, "two_writers": two_writers, "races": races,
    }  # fmt: skip
    if kind != "moto":  # its objects die with it
        rows["killed_server"] = lambda root, server: killed_server(root, server, nodes[-1])
    rows["frozen"] = lambda root, server: frozen(root, server, nodes[0])
    rows["training"] = lambda root, server: training(root, server, nodes[0])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", required=True, choices=["hdfs", "seaweedfs", "rclone", "moto"])
    parser.add_argument("--dir", required=True, help="where the store keeps its files")
    parser.add_argument("--port", type=int, default=0, help="first of ten ports; 0: a usual one")
    parser.add_argument("--only", default="", help="scenarios, by comma")
    args = parser.parse_args()
    client, extra = ("hdfs_native", "hdfs") if args.store == "hdfs" else ("s3fs", "s3")
    if importlib.util.find_spec(client) is None:
        sys.exit(f"{client} is not installed: pip install 'msctl[{extra}]'")
    logging.disable(logging.WARNING)
    server = (
        Hdfs(args.dir, args.port or 19000)
        if args.store == "hdfs"
        else S3(args.store, args.dir, args.port or 19600)
    )
    failed = 0
    try:
        server.start()
        chosen = scenarios(args.store)
        for name in args.only.split(",") if args.only else chosen:
            begin = time.monotonic()
            try:
                seen = chosen[name](f"{server.url}/{name}-{uuid.uuid4().hex[:6]}/ckpt", server)
            except Exception as error:  # the other scenarios still run
                seen = {"ok": False, "error": f"{type(error).__name__}: {error}"[:300]}
            Job.end_all()
            failed += not seen["ok"]
            row = {"store": args.store, "scenario": name, **seen,
                   "seconds": round(time.monotonic() - begin, 1)}  # fmt: skip
            print(json.dumps(row), flush=True)
    finally:
        with contextlib.suppress(Exception):
            server.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
