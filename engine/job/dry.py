"""What a run would look like, without starting it: layout, memory per stage, schedule."""

from engine.schedule.build import build
from engine.schedule.grid import grid
from engine.schedule.simulate import simulate
from engine.schedule.verify import peak_activations
from engine.spec.base import Noun
from engine.spec.recipe import Recipe
from engine.spec.shape import resolve_kind

_GRID_COLUMNS = 120
_WIDTH = {"fp64": 8, "fp32": 4, "bf16": 2}


class DryStage(Noun, frozen=True, kw_only=True):
    """One pipeline stage, numbers of one of its ranks."""

    stage: int
    layers: int
    params: int
    """Held by a rank, before sharding over dp."""
    in_flight: int
    """Most (chunk, micro-batch) activations held at once."""
    memory_bytes: int
    """Weights, gradients, optimizer state and activations (without recomputation)."""


class DryRun(Noun, frozen=True, kw_only=True):
    """A run that was only looked at."""

    name: str
    layout: str
    world: int
    model_params: int
    microbatches: int
    schedule: str
    bubble: float
    stages: tuple[DryStage, ...]
    grid: str


def dry_run(recipe: Recipe) -> DryRun:
    """Describe a recipe's run; the schedule is built and simulated, nothing else is."""
    layout = recipe.layout
    order, count = recipe.schedule, recipe.batch.microbatches(layout)
    schedule = build(order.kind, layout.pp, layout.vpp, count, order.group, order.run_ahead)
    drawn = schedule if schedule.microbatches * layout.pp <= 1024 else None
    return DryRun(
        name=recipe.name,
        layout=f"tp {layout.tp} x pp {layout.pp} x vpp {layout.vpp} x dp {layout.dp}, "
        f"ZeRO-{layout.zero}",
        world=layout.world_size,
        model_params=recipe.model.params,
        microbatches=schedule.microbatches,
        schedule=resolve_kind(recipe.schedule.kind, layout.vpp),
        bubble=simulate(schedule, lambda action: 1.0).bubble(),
        stages=tuple(
            _stage(recipe, stage, peak_activations(schedule, stage)) for stage in range(layout.pp)
        ),
        grid=grid(drawn, width=_GRID_COLUMNS // 6) if drawn and layout.pp <= 16 else "",
    )


def _stage(recipe: Recipe, stage: int, in_flight: int) -> DryStage:
    """Memory, activations by arXiv:2205.05198 with fused attention: s b h (18 + 4 f/h)."""
    layout, model = recipe.layout, recipe.model
    layers = model.layers // layout.pp
    params = layers * model.layer_params
    if stage == 0:
        params += model.embedding_params
    if stage == layout.pp - 1:
        params += model.vocab * model.hidden if layout.pp > 1 or not model.tied else 0
    params //= layout.tp
    width = _WIDTH[recipe.train.precision]
    shards = layout.dp if layout.zero else 1
    full = max(width, 4)
    state = params * (width + full) + params * (2 * full + (full if width < 4 else 0)) // shards
    tokens = model.seq * recipe.batch.micro_batch
    per_layer = tokens * (9 * model.hidden + 2 * model.ffn) * width // layout.tp
    per_chunk = per_layer * (model.layers // layout.chunks)
    return DryStage(
        stage=stage, layers=layers, params=params, in_flight=in_flight,
        memory_bytes=state + in_flight * per_chunk,
    )  # fmt: skip
