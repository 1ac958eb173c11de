"""One small training problem, run by the plain model and by the engine under any layout."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.plain_lamb import PlainLamb
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.restore import load_checkpoint
from engine.ckpt.save import save_checkpoint
from engine.comm.collectives import barrier, gather_bytes
from engine.comm.mesh import Mesh, build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.device import DTYPES, CpuDevice
from engine.events.writer import EventWriter
from engine.model.transformer import MicroBatch, whole_model
from engine.optim.schedule import learning_rate
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, OptimSpec, OverlapSpec, Recipe, ScheduleSpec, TrainSpec
from engine.train.build import build_engine, seed_everything, step_program
from engine.train.state import loaded, pieces_to_load, pieces_to_save
from engine.train.trainer import Trainer

STEPS = 10
GLOBAL_BATCH = 8
LR = 2e-3
"""Low enough for a well-conditioned problem: at 5e-3 sixteen layers amplify rounding so much that
the plain model in fp32 differs by 1.4e-5 from itself with another micro-batch; at 2e-3 by 1e-7."""
SHAPES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "gpt-untied": {"tied": False},
    "gpt-rotary": {"position": "rotary"},
    "llama": {
        "norm": "rmsnorm", "activation": "swiglu", "position": "rotary", "bias": False,
        "tied": False, "kv_heads": 4, "heads": 8,
    },
    "window": {"window": (4, 0)},
    "dropout": {"dropout": 0.1},
}  # fmt: skip


def recipe_of(args: dict[str, Any]) -> Recipe:
    """A recipe whose sizes divide any layout of up to 8 ranks.

    args: layout, shape, block, layers, schedule, group, run_ahead, precision, micro_batch, overlap
    (all, none, or a list of dimensions), tp_pieces, tp_halves, recompute, optimizer, ops. Layers
    and micro-batches are as few as the layout allows, layers at least two.
    """
    layout = ParallelLayout(**args.get("layout", {}))
    model: dict[str, Any] = {"hidden": 32, "heads": 4, "vocab": 64, "seq": 16, "ffn": 64}
    model |= {"layers": args.get("layers", max(2, layout.chunks))}
    model |= SHAPES[args.get("shape", "gpt")]
    wish = args.get("overlap", True)
    overlap = {
        axis: axis in wish if isinstance(wish, list) else wish for axis in ("tp", "pp", "dp")
    }
    return Recipe(
        name="case", seed=7,
        model=ModelSpec(block=args.get("block", "serial"), **model),
        batch=BatchSpec(
            global_batch=GLOBAL_BATCH,
            micro_batch=args.get("micro_batch", 2 if layout.dp * layout.pp <= 4 else 1),
        ),
        layout=layout,
        schedule=ScheduleSpec(
            kind=args.get("schedule", "auto"), group=args.get("group", 0),
            run_ahead=args.get("run_ahead", 0),
        ),
        overlap=OverlapSpec(
            **overlap, tp_pieces=args.get("tp_pieces", 1), tp_halves=args.get("tp_halves", False)
        ),
        optimizer=OptimSpec(
            name=args.get("optimizer", "adamw"), lr=LR, min_lr=LR / 4, warmup_steps=3
        ),
        train=TrainSpec(
            steps=STEPS, precision=args.get("precision", "fp64"),
            recompute=args.get("recompute", "none"), ops=args.get("ops", "auto"),
        ),
    )  # fmt: skip


def sample(number: int, recipe: Recipe) -> torch.Tensor:
    """Tokens of a global sample: an arithmetic progression, so that there is something to learn."""
    generator = torch.Generator().manual_seed(number)
    start, stride = torch.randint(recipe.model.vocab, (2,), generator=generator)
    line = start + stride % 7 * torch.arange(recipe.model.seq + 1)
    return line % recipe.model.vocab


def micro_batches(recipe: Recipe, step: int, replica: int) -> list[MicroBatch]:
    """A replica's part of a step, the same samples under every layout."""
    count, size = recipe.batch.microbatches(recipe.layout), recipe.batch.micro_batch
    made = []
    for m in range(count):
        first = step * GLOBAL_BATCH + (replica * count + m) * size
        numbers = list(range(first, first + size))
        tokens = torch.stack([sample(n, recipe) for n in numbers], 1)
        made.append(
            MicroBatch(
                tokens[:-1].contiguous(), tokens[1:].contiguous(), torch.tensor(numbers), step
            )
        )
    return made


def reference(args: dict[str, Any]) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step, by the plain model, autograd and a plain optimizer."""
    layers = recipe_of(args).model.layers
    alone = {key: value for key, value in args.items() if key in _MATTERS} | {"layers": layers}
    return _reference(json.dumps(alone, sort_keys=True))


_MATTERS = ("shape", "block", "precision", "optimizer")
"""What the numbers of a case depend on; everything else must not matter."""


@functools.cache
def _reference(key: str) -> list[tuple[float, float]]:
    recipe = recipe_of(json.loads(key))
    spec = recipe.optimizer
    model = whole_model(recipe.model, seed=recipe.seed, dtype=DTYPES[recipe.train.precision])
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": spec.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    numbers: dict[str, Any] = {
        "lr": spec.lr, "betas": (spec.beta1, spec.beta2), "eps": spec.eps
    }  # fmt: skip
    optimizer: torch.optim.Optimizer
    if spec.name == "lamb":
        scaled = [group | {"scaled": group["weight_decay"] > 0} for group in groups]
        optimizer = PlainLamb(scaled, **numbers)
    else:
        optimizer = torch.optim.AdamW(groups, foreach=False, **numbers)
    results = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for micro in micro_batches(recipe, step, 0):
            loss = model(None, micro) / (GLOBAL_BATCH * recipe.model.seq)
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(matrices + vectors, spec.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec, step, total=STEPS)
        optimizer.step()
        results.append((total, float(norm)))
    return results


class Ranks:
    """One rank of a started world; makes the mesh of a layout once."""

    def __init__(self, rank: int, meet: Rendezvous, world: int) -> None:
        self.rank = rank
        self._meshes: dict[tuple[int, ...], Mesh] = {}
        torch.set_num_threads(1)
        start_world(rank, world, meet, backend="gloo", timeout_s=60)

    def trainer(self, args: dict[str, Any]) -> Trainer:
        """The trainer of a case on this rank."""
        recipe = recipe_of(args)
        seed_everything(recipe)
        program = step_program(recipe)
        last = program.stage_of(program.chunks - 1)
        layout = recipe.layout
        near = args.get("ranks_per_node", 0)
        key = (layout.tp, layout.dp, layout.pp, last, layout.vpp > 1, near)
        if key not in self._meshes:
            made = build_mesh(
                layout, self.rank, backend="gloo", timeout_s=60, last_stage=last,
                ranks_per_node=near,
            )  # fmt: skip
            self._meshes[key] = made
            # torch names a group by its ranks and the number of groups its members have: keep
            # that number the same on all ranks, or the groups of the next mesh never meet
            for _ in range(12 - len(made.groups())):
                dist.new_group([self.rank], backend="gloo", use_local_synchronization=True)
        mesh = self._meshes[key]._replace(layout=layout)
        events = EventWriter(None, self.rank)
        return Trainer(recipe, build_engine(recipe, mesh, CpuDevice(), events), events)


def run_steps(trainer: Trainer, first: int, stop: int) -> list[tuple[float, float]]:
    """Loss and gradient norm of some steps."""
    recipe, mesh = trainer.recipe, trainer.engine.mesh
    replica = recipe.layout.coord(mesh.rank).dp
    results = [
        trainer.step(step, lambda s: micro_batches(recipe, s, replica))
        for step in range(first, stop)
    ]
    return [(r.loss, r.grad_norm) for r in results]


def train(rank: int, meet: Rendezvous, args: dict[str, Any]) -> list[tuple[float, float]]:
    """The reference's steps by the engine, as one rank."""
    ranks = Ranks(rank, meet, recipe_of(args).layout.world_size)
    results = run_steps(ranks.trainer(args), 0, STEPS)
    end_world()
    return results


def train_all(
    rank: int, meet: Rendezvous, cases: list[dict[str, Any]]
) -> list[list[tuple[float, float]]]:
    """Several cases of one number of ranks, one after the other in one world.

    A case may ask for its first `steps` only.
    """
    ranks = Ranks(rank, meet, recipe_of(cases[0]).layout.world_size)
    results = [run_steps(ranks.trainer(args), 0, args.get("steps", STEPS)) for args in cases]
    end_world()
    return results


def train_and_resume(
    rank: int, meet: Rendezvous, cases: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """As `train_all`, and each case again from checkpoints; all of one number of ranks.

    args of a case, besides those of `recipe_of`: `save` [folder, step] is where and after how many
    steps to save; `load` [folder, step] is what another layout saved, to go on from, or null.
    """
    ranks = Ranks(rank, meet, recipe_of(cases[0]).layout.world_size)
    results = []
    for args in cases:
        folder, step = args["save"]
        whole = ranks.trainer(args)
        steps = run_steps(whole, 0, step)
        _save(whole, Path(folder), step)
        steps += run_steps(whole, step, STEPS)
        result: dict[str, Any] = {"steps": steps, "again": _go_on(ranks, args, args["save"])}
        result["moved"] = _go_on(ranks, args, args["load"]) if args["load"] else None
        results.append(result)
    end_world()
    return results


def _save(trainer: Trainer, folder: Path, step: int) -> None:
    mesh = trainer.engine.mesh
    save_checkpoint(
        folder, pieces_to_save(trainer.engine), meta=CheckpointMeta(step=step), rank=mesh.rank,
        world=mesh.world.size, gather=_gather(mesh), barrier=lambda: barrier(mesh.world),
    )  # fmt: skip


def _go_on(ranks: Ranks, args: dict[str, Any], saved: list[Any]) -> list[tuple[float, float]]:
    """The rest of the steps of a fresh trainer that loads a checkpoint."""
    folder, step = saved
    trainer = ranks.trainer(args)
    meta = load_checkpoint(
        folder, pieces_to_load(trainer.engine), gather=_gather(trainer.engine.mesh)
    )
    assert meta.step == step, f"{folder} holds step {meta.step}, not {step}"
    loaded(trainer.engine)
    return run_steps(trainer, step, STEPS)


def _gather(mesh: Mesh) -> Callable[[object], list[object]]:
    def gather(value: object) -> list[object]:
        assert isinstance(value, bytes), "checkpoint rooms exchange encoded bytes"
        return list(gather_bytes(value, mesh.world))

    return gather


def worst(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> float:
    """Largest relative difference of any loss or norm."""
    assert len(a) == len(b) > 0
    return max(
        abs(x - y) / abs(x) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )
