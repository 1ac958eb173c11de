"""The systems that ckpt_bench.py can run.

A system is a class with

    layouts = ("sharded", "replicated")      which state layouts it can take
    version()                                a short string for the report
    __init__(state, workdir)                 start-up work that a job pays once
    save(state, path)                        returns as soon as the trainer may change the tensors
    done()                                   True once the system itself calls the save complete;
                                             called on all ranks in the same order, must not block
    load(state, path)                        fills state.local in place
    close()

`state.local` maps names to plain CPU tensors, `state.dtensors()` gives the same
memory as DTensors, `state.rank`, `state.world`, `state.step` are what they say.
"""

import contextlib
import importlib.metadata
import json
import multiprocessing as mp
import os
import threading
import time

import torch
import torch.distributed as dist

ALL = {}


def register(name):
    def deco(cls):
        cls.name = name
        ALL[name] = cls
        return cls

    return deco


class System:
    layouts = ("sharded", "replicated")
    package = "torch"

    @classmethod
    def version(cls):
        try:
            return f"{cls.package} {importlib.metadata.version(cls.package)}"
        except importlib.metadata.PackageNotFoundError:
            return "own code"

    def __init__(self, state, workdir):
        self.workdir = workdir

    def done(self):
        return True

    def close(self):
        pass


def fsync_path(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


# ------------------------------------------------------------- plain savers
@register("torch_save")
class TorchSave(System):
    """torch.save of the local tensors, one file a rank, fsync + rename (sync)."""

    def save(self, state, path):
        os.makedirs(path, exist_ok=True)
        if state.layout == "sharded" or state.rank == 0:
            tmp = os.path.join(path, f"r{state.rank}.tmp")
            torch.save({"state": state.local, "step": state.step}, tmp)
            fsync_path(tmp)
            os.rename(tmp, tmp[:-4] + ".pt")
            fsync_path(path)
        dist.barrier()

    def load(self, state, path):
        r = state.rank if state.layout == "sharded" else 0
        d = torch.load(os.path.join(path, f"r{r}.pt"), weights_only=True, mmap=True)
        for k, t in state.local.items():
            t.copy_(d["state"][k])


@register("safetensors")
class SafeTensors(System):
    """safetensors save_file of the local tensors, one file a rank, fsync + rename (sync)."""

    package = "safetensors"

    def save(self, state, path):
        from safetensors.torch import save_file

        os.makedirs(path, exist_ok=True)
        if state.layout == "sharded" or state.rank == 0:
            tmp = os.path.join(path, f"r{state.rank}.tmp")
            save_file(state.local, tmp, metadata={"step": str(state.step)})
            fsync_path(tmp)
            os.rename(tmp, tmp[:-4] + ".safetensors")
            fsync_path(path)
        dist.barrier()

    def load(self, state, path):
        from safetensors import safe_open

        r = state.rank if state.layout == "sharded" else 0
        with safe_open(os.path.join(path, f"r{r}.safetensors"), framework="pt") as f:
            for k, t in state.local.items():
                t.copy_(f.get_tensor(k))


# ----------------------------------------------------------------- torch DCP
class Dcp(System):
    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        import torch.distributed.checkpoint  # noqa: F401  a job pays this import once

        state.dtensors()

    def sd(self, state):
        return {"state": state.dtensors(), "step": state.step}

    def load(self, state, path):
        import torch.distributed.checkpoint as dcp

        dcp.load(self.sd(state), checkpoint_id=path)


@register("dcp_save")
class DcpSave(Dcp):
    """torch.distributed.checkpoint.save with its defaults (sync)."""

    def save(self, state, path):
        import torch.distributed.checkpoint as dcp

        dcp.save(self.sd(state), checkpoint_id=path)


class DcpAsync(Dcp):
    kind = "THREAD"
    keep_stager = False

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        self.fut = self.stager = None
        # Its own group: on the trainer's group the background collectives mix
        # with the trainer's and both sides hang.
        self.group = dist.new_group(backend="gloo")

    def save(self, state, path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        kw = {}
        if self.keep_stager:
            if self.stager is None:
                from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

                self.stager = DefaultStager(
                    StagingOptions(
                        use_pinned_memory=False,
                        use_shared_memory=True,
                        use_async_staging=False,
                        use_non_blocking_copy=False,
                    )
                )
            kw["async_stager"] = self.stager
        r = dcp.async_save(
            self.sd(state),
            checkpoint_id=path,
            process_group=self.group,
            async_checkpointer_type=AsyncCheckpointerType[self.kind],
            **kw,
        )
        if hasattr(r, "staging_completion"):
            r.staging_completion.result()
            r = r.upload_completion
        self.fut = r

    def done(self):
        if self.fut is None or self.fut.done():
            if self.fut is not None:
                self.fut.result()
                self.fut = None
            return True
        return False

    def close(self):
        if self.stager:
            self.stager.close()


@register("dcp_async_thread")
class DcpAsyncThread(DcpAsync):
    """DCP async_save, background thread, default staging."""


@register("dcp_async_process")
class DcpAsyncProcess(DcpAsync):
    """DCP async_save, background process, default staging."""

    kind = "PROCESS"


@register("dcp_async_process_shm")
class DcpAsyncProcessShm(DcpAsync):
    """DCP async_save, background process, one DefaultStager kept for all saves, shared memory."""

    kind = "PROCESS"
    keep_stager = True


# -------------------------------------------- the successor of DCP (alpha)
@register("torch_checkpointing")
class TorchCheckpointing(System):
    """torch_checkpointing CheckpointManager, async, CPU settings, one file a rank.

    No resharder is declared: 0.1.1 gathers its resharding metadata on a CUDA
    device and therefore cannot run on gloo with more than one rank. Direct I/O
    is off: with it, 0.1.1 fails on ext4 (EINVAL for the unaligned tail).
    """

    package = "torch_checkpointing"
    layouts = ("sharded",)

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        from torch_checkpointing.checkpoint_manager import CheckpointManager
        from torch_checkpointing.config import AsyncCheckpointSaverConfig
        from torch_checkpointing.schema import ItemSpec
        from torch_checkpointing.staging import CheckpointStagerConfig
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        cfg = CheckpointManager.Config(
            storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
            items={"state": ItemSpec()},
            save=AsyncCheckpointSaverConfig(
                staging_config=CheckpointStagerConfig(
                    use_pinned_memory=False,
                    use_shared_memory=True,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
            ),
        )
        self.m = CheckpointManager(cfg)
        self.fut = None

    def save(self, state, path):
        self.fut = self.m.save(path, {"state": state.local, "step": state.step})

    def done(self):
        if self.fut is None:
            return True
        if not self.fut.done():
            return False
        self.fut.result()
        self.fut = None
        return True

    def load(self, state, path):
        got = self.m.load(path, into={"state": state.local, "step": 0})
        for k, t in state.local.items():
            if got["state"][k].data_ptr() != t.data_ptr():
                t.copy_(got["state"][k])

    def close(self):
        self.m.close()


# ---------------------------------------------------------------- torchsnapshot
@register("torchsnapshot_async")
class TorchSnapshot(System):
    """torchsnapshot Snapshot.async_take."""

    package = "torchsnapshot-nightly"

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        import torchsnapshot  # noqa: F401

    def app(self, state):
        from torchsnapshot import StateDict

        return {"app": StateDict(state=dict(state.local), step=state.step)}

    def save(self, state, path):
        from torchsnapshot import Snapshot

        rep = ["**"] if state.layout == "replicated" else []
        self.p = Snapshot.async_take(path, self.app(state), replicated=rep)

    def done(self):
        if self.p is None:
            return True
        if not self.p.done():
            return False
        self.p.wait()
        self.p = None
        return True

    p = None

    def load(self, state, path):
        from torchsnapshot import Snapshot

        app = self.app(state)
        Snapshot(path).restore(app)
        for k, t in state.local.items():
            got = app["app"]["state"][k]
            if got.data_ptr() != t.data_ptr():
                t.copy_(got)


# ------------------------------------------------------ nvidia-resiliency-ext
@register("nvrx_async")
class Nvrx(Dcp):
    """nvidia-resiliency-ext FileSystemWriterAsync + AsyncCallsQueue; CUDA calls stubbed out.

    Staging is done by a clone here because the library does not copy CPU tensors.
    """

    package = "nvidia-resiliency-ext"

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        torch.cuda.synchronize = lambda *a, **k: None
        torch.cuda.current_device = lambda: torch.device("cpu")
        import nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver  # noqa: F401
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue

        self.q = AsyncCallsQueue(persistent=False)
        self.n = 0

    def save(self, state, path):
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest
        from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import (
            FileSystemWriterAsync,
        )
        from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
            save_state_dict_async_finalize,
            save_state_dict_async_plan,
        )
        from torch.distributed.checkpoint import DefaultSavePlanner

        sd = {"state": {k: t.clone() for k, t in state.dtensors().items()}, "step": state.step}
        os.makedirs(path, exist_ok=True)
        w = FileSystemWriterAsync(path, thread_count=2)
        ret = save_state_dict_async_plan(sd, w, None, 0, planner=DefaultSavePlanner())
        fn, preload, args = w.get_save_function_and_args()

        def finalize():
            save_state_dict_async_finalize(*ret)
            dist.barrier()

        self.q.schedule_async_request(AsyncRequest(fn, args, [finalize], preload_fn=preload))

    def done(self):
        self.q.maybe_finalize_async_calls(blocking=False, no_dist=False)
        return self.q.get_num_unfinalized_calls() == 0

    def close(self):
        self.q.close()


# ------------------------------------------------------------- ByteCheckpoint
class _Shell(torch.nn.Module):
    """A module whose parameters are the model part of the state."""

    def __init__(self, tensors):
        super().__init__()
        for k, t in tensors.items():
            self.register_parameter(k.replace(".", "__"), torch.nn.Parameter(t, requires_grad=True))


def module_and_adam(state):
    m = _Shell({k[6:]: t for k, t in state.local.items() if k.startswith("model.")})
    opt = torch.optim.Adam(m.parameters(), lr=0.0)
    for k, p in m.named_parameters():
        n = k.replace("__", ".")
        opt.state[p] = {
            "step": torch.tensor(1.0),
            "exp_avg": state.local["exp_avg." + n],
            "exp_avg_sq": state.local["exp_avg_sq." + n],
        }
    return m, opt


@register("bytecheckpoint_ddp")
class ByteCheckpoint(System):
    """ByteCheckpoint save/load, framework 'ddp', fast_saving (async) and fast_loading on."""

    package = "bytecheckpoint"
    layouts = ("replicated",)
    flag = None

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        # it calls torch.load with the default that torch 2.6 turned round
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
        import bytecheckpoint  # noqa: F401

        self.m, self.opt = module_and_adam(state)

    def obj(self, state):
        return {"model": self.m, "optimizer": self.opt, "extra_state": {"step": state.step}}

    def save(self, state, path):
        import bytecheckpoint as bcp

        self.flag = threading.Event() if state.rank == 0 else None
        os.makedirs(path, exist_ok=True)
        self.tracker = os.path.join(path, "latest_checkpointed_iteration.txt")
        bcp.save(
            path,
            self.obj(state),
            framework="ddp",
            fast_saving=True,
            global_steps=state.step,
            callback=self.flag.set if self.flag else None,
        )

    def done(self):
        return self.flag is None or self.flag.is_set()

    def load(self, state, path):
        import bytecheckpoint as bcp

        sub = [d for d in os.listdir(path) if os.path.isdir(os.path.join(path, d))]
        bcp.load(os.path.join(path, sub[0]), self.obj(state), framework="ddp", fast_loading=True)
        for k, p in self.m.named_parameters():
            n = k.replace("__", ".")
            for name, t in (
                ("model." + n, p.data),
                ("exp_avg." + n, self.opt.state[p]["exp_avg"]),
                ("exp_avg_sq." + n, self.opt.state[p]["exp_avg_sq"]),
            ):
                if t.data_ptr() != state.local[name].data_ptr():
                    state.local[name].copy_(t)


# ---------------------------------------------------------------------- DLRover
@register("dlrover_flash")
class Dlrover(System):
    """DLRover flash checkpoint, DdpCheckpointer with one shard a rank, storage type DISK.

    Without dlrover-run (its own saver process).
    """

    package = "dlrover"
    layouts = ("sharded",)

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        os.environ.setdefault("NODE_RANK", "0")
        os.environ.setdefault("NODE_NUM", "1")
        os.environ.setdefault("ELASTIC_JOB_NAME", f"bench{os.environ['MASTER_PORT']}")
        from dlrover.python.common.multi_process import clear_sock_dir
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        if state.rank == 0:
            clear_sock_dir()  # sockets of an earlier, killed job
        dist.barrier()
        self.c = DdpCheckpointer(workdir, local_shard_num=state.world, global_shard_num=state.world)
        self.want = None

    def save(self, state, path):
        from dlrover.trainer.torch.flash_checkpoint.ddp import StorageType

        os.makedirs(path, exist_ok=True)
        step = state.step + 1
        self.c.save_checkpoint(
            step,
            {"state": state.local, "step": state.step},
            os.path.join(path, f"rank_{state.rank}.pt"),
            storage_type=StorageType.DISK,
        )
        self.want = step
        self.tracker = os.path.join(self.workdir, "dlrover_latest.txt")

    def done(self):
        if self.want is None:
            return True
        try:
            with open(self.tracker) as f:
                ok = int(f.read().strip() or -1) >= self.want
        except (OSError, ValueError):
            return False
        if ok:
            self.want = None
        return ok

    def load(self, state, path):
        d = torch.load(os.path.join(path, f"rank_{state.rank}.pt"), weights_only=False, mmap=True)
        d = d.get("model_states", d)
        for k, t in state.local.items():
            t.copy_(d["state"][k])


# ---------------------------------------------- Megatron-Core dist_checkpointing
@register("megatron_torch_dist")
class Megatron(System):
    """Megatron-Core dist_checkpointing.save, torch_dist format (sync; CUDA calls stubbed out)."""

    package = "megatron-core"
    layouts = ("sharded",)

    def __init__(self, state, workdir):
        super().__init__(state, workdir)
        torch.cuda.synchronize = lambda *a, **k: None
        torch.cuda.current_device = lambda: torch.device("cpu")
        import megatron.core.dist_checkpointing  # noqa: F401

    def sharded(self, state):
        from megatron.core.dist_checkpointing import ShardedTensor

        return {
            "state": {
                k: ShardedTensor.from_rank_offsets(k, t, (0, state.rank, state.world))
                for k, t in state.local.items()
            }
        }

    def save(self, state, path):
        from megatron.core import dist_checkpointing

        os.makedirs(path, exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(self.sharded(state), path, validate_access_integrity=False)

    def load(self, state, path):
        from megatron.core import dist_checkpointing

        got = dist_checkpointing.load(self.sharded(state), path, validate_access_integrity=False)
        for k, t in state.local.items():
            if got["state"][k].data_ptr() != t.data_ptr():
                t.copy_(got["state"][k])


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
