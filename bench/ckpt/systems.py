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

import importlib.metadata
import os

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


import systems_floor  # noqa: E402, F401 # they register themselves, with what is defined above
import systems_foreign  # noqa: E402, F401
