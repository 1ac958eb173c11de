"""One rank from start to end: join, build, resume, train, save, leave.

The same entry serves ranks forked by the nursery and ranks started by torchrun
(`python -m engine.train.worker RUN_FOLDER`).
"""

import argparse
import gc
import importlib
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

import msgspec
import torch

from engine import log
from engine.comm.collectives import barrier
from engine.comm.mesh import Mesh, build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.device import Device, mend_forks, open_device
from engine.errors import LayoutError
from engine.events.writer import EventWriter
from engine.spec.load import load_recipe
from engine.spec.recipe import Recipe
from engine.train.beacon import Beacon
from engine.train.build import build_engine, seed_everything, step_program
from engine.train.failure import failure_of, write_failure
from engine.train.loop import Loop
from engine.train.rehearse import rehearse_start, trainer_of
from engine.train.task import RankTask

logger = logging.getLogger(__name__)


def warm_up() -> None:
    """Import and touch what every rank needs, in the nursery, without starting threads."""
    torch.set_num_threads(1)
    a = torch.ones(8, 8, requires_grad=True)
    out = torch.nn.functional.scaled_dot_product_attention(a[None], a[None], a[None])
    torch.autograd.backward(out, torch.ones_like(out))  # imports what a pipeline's backward needs
    importlib.import_module("tensorboardX")
    mend_forks()
    gc.freeze()  # shared pages stay shared: the collector does not touch them in children


def run_rank(rank: int, task: RankTask, listen_fd: int) -> int:
    """Train as one rank; returns the exit code. Failures are written down before they end it."""
    folder, task = Path(task.folder), _placed(task)
    log.configure(f"r{rank:05d}", level=logging.INFO if rank == 0 else logging.WARNING)
    meet = Rendezvous(
        task.host, task.port, listen_fd if rank == 0 else -1, task.store_url, task.store_prefix,
        task.nodes,
    )  # fmt: skip
    try:
        recipe = load_recipe(folder / "recipe.toml")
        return _train(rank, task, recipe, meet)
    except Exception as error:
        traceback.print_exc()
        write_failure(folder, failure_of(rank, error, attempt=task.attempt))
        return 1


def _placed(task: RankTask) -> RankTask:
    """The task with what only this process's environment knows: MSCTL_NODE and MSCTL_SPOOL."""
    return msgspec.structs.replace(
        task,
        node=task.node or os.environ.get("MSCTL_NODE", ""),
        memory=task.memory or os.environ.get("MSCTL_SPOOL", ""),
    )


def _train(rank: int, task: RankTask, recipe: Recipe, meet: Rendezvous) -> int:
    folder = Path(task.folder)
    layout = recipe.layout
    if task.world != layout.world_size:
        raise LayoutError(
            f"{task.world} ranks were started, [layout] needs {layout.world_size}",
            remedy=f"start {layout.world_size} ranks, or change layout.tp, pp or dp",
        )
    device = open_device(recipe.train.device, rank - task.local_offset)
    torch.set_num_threads(recipe.train.threads or max(1, (os.cpu_count() or 1) // task.world))
    # torch refuses products on CUDA in deterministic mode unless cuBLAS finds this
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    seed_everything(recipe)
    path = folder / "events" / f"rank-{rank:05d}.jsonl" if recipe.monitor.events else None
    watched = bool(task.beats)
    with (
        EventWriter(
            path,
            rank,
            watched=watched,
            every=recipe.monitor.events_every,
            most_bytes=recipe.monitor.events_mib << 20,
        ) as events,
        Beacon(events, task.beats, rank - task.local_offset),
    ):
        place = layout.coord(rank)
        events.clock(
            world=layout.world_size,
            degrees={"tp": layout.tp, "pp": layout.pp, "dp": layout.dp},
            index={"tp": place.tp, "pp": place.pp, "dp": place.dp},
        )
        timeout = recipe.monitor.timeout_s
        rehearse_start(rank, task)
        with events.span("start", phase="meet"):
            start_world(rank, layout.world_size, meet, backend=device.backend, timeout_s=timeout)
            program = step_program(recipe)
            mesh = build_mesh(
                layout, rank, backend=device.backend, timeout_s=timeout,
                last_stage=program.stage_of(program.chunks - 1),
                ranks_per_node=_two_level_nodes(recipe, task, device),
            )  # fmt: skip
        with events.span("start", phase="build"):
            loop = _loop(mesh, device, recipe, events, task)
        loop.run()
        with events.span("finish"):
            barrier(mesh.world)
            end_world()
    return 0


def _two_level_nodes(recipe: Recipe, task: RankTask, device: Device) -> int:
    """Ranks on a node where gathers and reductions are to go in two levels; 0 for one level."""
    wish = recipe.overlap.dp_levels
    if wish == "one" or (wish == "auto" and device.backend != "gloo") or len(task.nodes) < 2:
        return 0
    each, rest = divmod(task.world, len(task.nodes))
    return 0 if rest else each


def _loop(mesh: Mesh, device: Device, recipe: Recipe, events: EventWriter, task: RankTask) -> Loop:
    engine = build_engine(recipe, mesh, device, events)
    loop = Loop(trainer_of(recipe, engine, events, task), device, Path(task.folder), task)
    signal.signal(signal.SIGTERM, lambda *_: loop.ask_to_stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver speaks for the terminal
    return loop


def main() -> None:
    """Entry under torchrun, which sets RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR, _PORT."""
    parser = argparse.ArgumentParser(
        prog="engine.train.worker",
        usage="torchrun --nproc-per-node N -m engine.train.worker RUN_FOLDER",
    )
    parser.add_argument("folder", help="run folder with a recipe.toml")
    folder = parser.parse_args().folder
    need = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in need if name not in os.environ]
    if missing:
        parser.error(f"{', '.join(missing)} not set: start it by torchrun")
    rank = int(os.environ["RANK"])
    task = RankTask(
        folder=folder,
        world=int(os.environ["WORLD_SIZE"]),
        host=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]) + 1,  # torchrun's own store holds the port itself
        local_offset=rank - int(os.environ.get("LOCAL_RANK", rank)),
    )
    warm_up()
    code = run_rank(rank, task, -1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the interpreter's own end may abort in a thread that gloo left running


if __name__ == "__main__":
    main()
