"""NVRx, ByteCheckpoint, DLRover and Megatron-Core as systems for ckpt_bench.py."""

import os
import threading

import torch
import torch.distributed as dist
from systems import Dcp, System, register


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
