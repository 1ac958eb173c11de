"""The floor: what copying and writing cost on the bare machine, as systems for ckpt_bench.py."""

import contextlib
import json
import multiprocessing as mp
import os
import time

import torch
import torch.distributed as dist
from systems import System, fsync_path, register


# ------------------------------------------------------- the floor: bare machine
def _write_file(path, buf, nbytes, direct):
    """Buffered, or the aligned part past the page cache; fsync either way."""
    done, step = 0, 16 << 20
    if direct:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
            try:
                whole = nbytes // 4096 * 4096
                while done < whole:
                    done += os.write(fd, buf[done : min(done + step, whole)])
            finally:
                os.close(fd)
        except OSError:  # no direct I/O on this file system
            done = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | (0 if done else os.O_TRUNC))
    os.lseek(fd, done, os.SEEK_SET)
    while done < nbytes:
        done += os.write(fd, buf[done : min(done + step, nbytes)])
    os.fsync(fd)
    os.close(fd)


def _writer(conn, name, nbytes, rank, world, direct, nice):
    from multiprocessing import shared_memory

    os.nice(nice)
    shm = shared_memory.SharedMemory(name=name)
    buf = shm.buf
    while True:
        job = conn.recv()
        if job is None:
            break
        path, step, index = job
        os.makedirs(path, exist_ok=True)
        _write_file(os.path.join(path, f"r{rank}.bin"), buf, nbytes, direct)
        with open(os.path.join(path, f"r{rank}.json"), "w") as f:
            json.dump(index, f)
            f.flush()
            os.fsync(f.fileno())
        if rank == 0:
            while not all(os.path.exists(os.path.join(path, f"r{r}.json")) for r in range(world)):
                time.sleep(0.005)
            tmp = os.path.join(path, "manifest.tmp")
            with open(tmp, "w") as f:
                json.dump({"step": step, "world": world}, f)
                f.flush()
                os.fsync(f.fileno())
            os.rename(tmp, os.path.join(path, "manifest.json"))
            fsync_path(path)
            fsync_path(os.path.dirname(path))
        conn.send(step)
    del buf
    shm.close()


@register("floor")
class Floor(System):
    """The least that the two-stage design can cost: memcpy into a pre-faulted shared arena.

    A background process writes one file a rank, fsync, manifest last. No checksums, no resharding.
    Replicated state: every rank writes its 1/N of the bytes; on load reads them and broadcasts.
    """

    package = "none"
    bcast = True
    direct = False
    nice = 5

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        self.views, self.index, off = {}, {}, 0
        for k, t in state.local.items():
            flat = t.view(-1)
            if state.layout == "replicated":
                n = -(-flat.numel() // state.world)
                flat = flat[state.rank * n : (state.rank + 1) * n]
            self.views[k] = flat
            self.index[k] = [off, flat.numel() * 4]
            off += flat.numel() * 4
        self.nbytes = off
        self.proc = None

    def _start(self, state):
        from multiprocessing import shared_memory

        import numpy as np

        self.shm = shared_memory.SharedMemory(create=True, size=self.nbytes)
        np.frombuffer(self.shm.buf, dtype=np.uint8)[:] = 0  # touch every page now
        arena = torch.frombuffer(self.shm.buf, dtype=torch.float32)
        self.slots = {k: arena[o // 4 : (o + n) // 4] for k, (o, n) in self.index.items()}
        ctx = mp.get_context("spawn")
        self.conn, child = ctx.Pipe()
        self.proc = ctx.Process(
            target=_writer,
            daemon=True,
            args=(
                child,
                self.shm.name,
                self.nbytes,
                state.rank,
                state.world,
                self.direct,
                self.nice,
            ),
        )
        self.proc.start()
        self.busy = False

    def prepare(self, state):
        if self.proc is None:
            self._start(state)

    def save(self, state, path):
        self.prepare(state)
        for k, v in self.views.items():
            self.slots[k].copy_(v)
        self.conn.send((path, state.step, self.index))
        self.busy = True

    def done(self):
        if self.proc is not None and self.busy and self.conn.poll():
            self.conn.recv()
            self.busy = False
        return self.proc is None or not self.busy

    def load(self, state, path):

        if state.layout == "replicated" and not self.bcast:
            ranks = range(state.world)
        else:
            ranks = [state.rank]
        for r in ranks:
            with open(os.path.join(path, f"r{r}.json")) as f:
                index = json.load(f)
            with open(os.path.join(path, f"r{r}.bin"), "rb", buffering=0) as f:
                for k, t in state.local.items():
                    flat = t.view(-1)
                    if state.layout == "replicated":
                        n = -(-flat.numel() // state.world)
                        flat = flat[r * n : (r + 1) * n]
                    mv = memoryview(flat.numpy()).cast("B")
                    f.seek(index[k][0])
                    got = 0
                    while got < len(mv):
                        got += f.readinto(mv[got:])
        if state.layout == "replicated" and self.bcast and state.world > 1:
            for t in state.local.values():
                flat = t.view(-1)
                n = -(-flat.numel() // state.world)
                for r in range(state.world):
                    dist.broadcast(flat[r * n : (r + 1) * n], src=r)

    def close(self):
        if self.proc is not None:
            self.conn.send(None)
            self.proc.join(10)
            self.slots = None
            with contextlib.suppress(BufferError):
                self.shm.close()
            self.shm.unlink()


@register("floor_prefault")
class FloorPrefault(Floor):
    """floor, with the arena allocated at start-up instead of in the first save."""

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        self._start(state)

    def load(self, state, path):
        super().load(state, path)


@register("floor_direct")
class FloorDirect(FloorPrefault):
    """floor_prefault, written past the page cache (O_DIRECT)."""

    direct = True


@register("floor_readall")
class FloorReadAll(Floor):
    """floor, replicated load in which every rank reads everything from storage."""

    layouts = ("replicated",)
    bcast = False
