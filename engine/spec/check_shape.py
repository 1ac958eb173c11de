"""How model, layout, batch and schedule must fit together; each rule yields what breaks it."""

from collections.abc import Iterator
from math import gcd

from engine.spec.keys import Keys, closest, divisors, problem
from engine.spec.problem import Problem
from engine.spec.shape import MOST_PIECES, RUNS_AHEAD, cuts, legal, resolve_kind

_MOST_MICROBATCHES = 1 << 20
_LIMITS = {
    "model.layers": 10_000,
    "model.hidden": 1 << 28,
    "model.heads": 1 << 20,
    "model.kv_heads": 1 << 20,
    "model.head_dim": 1 << 20,
    "model.ffn": 1 << 28,
    "model.vocab": 1 << 28,
    "model.seq": 1 << 28,
    "layout.tp": 1 << 22,
    "layout.pp": 1 << 22,
    "layout.dp": 1 << 22,
    "layout.vpp": 10_000,
    "batch.micro_batch": 1 << 22,
    "batch.global_batch": 1 << 28,
    "train.steps": 1 << 40,
    "seed": (1 << 63) - 1,
}
"""Far above anything trained; beyond it, laying out a run would exhaust this machine."""


def sizes(keys: Keys) -> Iterator[Problem]:
    """No number is absurd."""
    for key, limit in _LIMITS.items():
        if keys.number(key) > limit:
            yield problem(
                key,
                what=f"{keys.show(key)} is beyond the limit of {limit}",
                remedy=f"set {key} to at most {limit}",
            )


def heads(keys: Keys) -> Iterator[Problem]:
    """Heads share the hidden size, key/value heads the query heads; rotary turns pairs."""
    model = keys.recipe.model
    if not keys.given("model.head_dim") and model.hidden % model.heads:
        yield problem(
            "model.heads",
            "model.hidden",
            what=f"{keys.show('model.heads')} does not divide {keys.show('model.hidden')}",
            remedy=f"set model.heads to {divisors(model.hidden, near=model.heads)}, "
            "or give model.head_dim",
        )
    if model.heads % model.kv_heads:
        yield problem(
            "model.kv_heads",
            "model.heads",
            what=f"{keys.show('model.kv_heads')} does not divide {keys.show('model.heads')}",
            remedy=f"set model.kv_heads to {divisors(model.heads, near=model.kv_heads)}",
        )
    if model.position == "rotary" and model.head_dim % 2:
        yield problem(
            "model.head_dim",
            "model.position",
            "model.heads",
            "model.hidden",
            what=f"model.head_dim = {model.head_dim} is odd, "
            "but rotary positions turn pairs of features",
            remedy=f"set model.head_dim to {model.head_dim + 1}, or model.position to learned",
        )
    if model.dropout >= 1:
        yield problem(
            "model.dropout",
            what=f"{keys.show('model.dropout')} drops everything",
            remedy="set model.dropout below 1, e.g. 0.1",
        )


def window(keys: Keys) -> Iterator[Problem]:
    """A window lies within the sequence, and a list of windows within the layers."""
    model = keys.recipe.model
    windows = (model.window,) if isinstance(model.window, int) else model.window
    outside = [w for w in windows if not 0 <= w <= model.seq]
    if outside:
        yield problem(
            "model.window",
            "model.seq",
            what=f"model.window = {outside[0]} is not from 0 to {keys.show('model.seq')}",
            remedy=f"set model.window to 0 (full attention) or up to {model.seq}",
        )
    if not 1 <= len(windows) <= model.layers:
        yield problem(
            "model.window",
            "model.layers",
            what=f"model.window lists {len(windows)} values for {keys.show('model.layers')}",
            remedy=f"list 1 to {model.layers} windows; the list is repeated over the layers",
        )


def width(keys: Keys) -> Iterator[Problem]:
    """Tensor parallelism divides heads, MLP and vocabulary, and the sequence where it is split."""
    layout, model = keys.recipe.layout, keys.recipe.model
    names = ["model.heads", "model.ffn", "model.vocab"]
    if model.kv_heads != model.heads:
        names.append("model.kv_heads")
    if layout.sequence_parallel:
        names.append("model.seq")
    names = [name for name in names if not keys.is_wrong(name)]
    broken = [name for name in names if keys.number(name) % layout.tp]
    if broken:
        common = gcd(*(keys.number(name) for name in names))
        split = " (split by layout.sequence_parallel)" if broken[-1] == "model.seq" else ""
        yield problem(
            "layout.tp",
            *broken,
            what=f"{keys.show('layout.tp')} does not divide "
            f"{' nor '.join(keys.show(name) for name in broken)}{split}",
            remedy=f"set layout.tp to {divisors(common, near=layout.tp)}, "
            f"e.g. --set layout.tp={closest(common, layout.tp)}",
        )


def depth(keys: Keys) -> Iterator[Problem]:
    """Equal chunks of layers, for stages to interleave or for replicas to gather one by one."""
    layout, model = keys.recipe.layout, keys.recipe.model
    if layout.pp == 1 and layout.dp == 1 and layout.vpp > 1:
        yield problem(
            "layout.vpp",
            "layout.pp",
            what=f"{keys.show('layout.vpp')} cuts the model into chunks, but layout.pp = 1 and "
            "layout.dp = 1 leave nothing to interleave or to gather chunk by chunk",
            remedy="set layout.vpp to 1, or layout.pp or layout.dp to at least 2",
        )
    elif model.layers % layout.chunks:
        yield problem(
            "layout.vpp" if layout.vpp > 1 else "layout.pp",
            "layout.pp",
            "model.layers",
            what=f"layout.pp * layout.vpp = {layout.pp} * {layout.vpp} = {layout.chunks} does not "
            f"divide {keys.show('model.layers')}",
            remedy="choose pp and vpp whose product is "
            f"{divisors(model.layers, near=layout.chunks)}, or change model.layers",
        )


def batch(keys: Keys) -> Iterator[Problem]:
    """Every replica runs the same whole number of micro-batches."""
    sizes, layout = keys.recipe.batch, keys.recipe.layout
    each = sizes.micro_batch * layout.dp
    count, rest = divmod(sizes.global_batch, each)
    involved = ("batch.global_batch", "batch.micro_batch", "layout.dp")
    if rest:
        near = f"{count * each} or {(count + 1) * each}" if count else f"{each}"
        yield problem(
            *involved,
            what=f"{keys.show('batch.global_batch')} is not a multiple of batch.micro_batch * "
            f"layout.dp = {sizes.micro_batch} * {layout.dp} = {each}",
            remedy=f"set batch.global_batch to {near}, or change batch.micro_batch or layout.dp",
        )
    elif count > _MOST_MICROBATCHES:
        yield problem(
            *involved,
            what=f"{keys.show('batch.global_batch')} gives each replica {count} micro-batches, "
            f"the limit is {_MOST_MICROBATCHES}",
            remedy="raise batch.micro_batch or layout.dp",
        )


def schedule(keys: Keys) -> Iterator[Problem]:
    """A pipeline order exists for this many stages, chunks and micro-batches."""
    recipe = keys.recipe
    pp, vpp = recipe.layout.pp, recipe.layout.vpp
    each = recipe.batch.micro_batch * recipe.layout.dp
    microbatches, rest = divmod(recipe.batch.global_batch, each)
    kind = resolve_kind(recipe.schedule.kind, vpp)
    group, run_ahead = recipe.schedule.group, recipe.schedule.run_ahead
    reason = None if rest else legal(kind, pp, vpp, microbatches, group, run_ahead)
    if not reason:
        return
    if run_ahead and "schedule.run_ahead" in reason:
        yield problem(
            "schedule.run_ahead",
            "schedule.kind",
            what=f"{keys.show('schedule.run_ahead')}: {reason}",
            remedy="set schedule.run_ahead to 0"
            + (" or 2" if kind in RUNS_AHEAD else ", or schedule.kind to 1f1b or zero-bubble"),
        )
        return
    if group and "schedule.group" in reason:
        yield problem(
            "schedule.group",
            "schedule.kind",
            "batch.global_batch",
            "layout.pp",
            what=f"{keys.show('schedule.group')}: {reason}",
            remedy="set schedule.group to 0, or to a multiple of layout.pp that divides the "
            f"{microbatches} micro-batches of a replica, with an interleaved schedule",
        )
        return
    chunks = {"gpipe": "one", "1f1b": "one", "zb-v": "two"}.get(kind)
    if chunks:
        yield problem(
            "schedule.kind",
            "layout.vpp",
            what=f"{keys.show('schedule.kind')} holds {chunks} chunk{'s' * (chunks != 'one')} per "
            f"stage, but {keys.show('layout.vpp')}",
            remedy=f"set schedule.kind to auto, or layout.vpp to {1 if chunks == 'one' else 2}",
        )
        return
    fitting = max(1, round(microbatches / pp)) * pp * each
    yield problem(
        "batch.global_batch",
        "batch.micro_batch",
        "layout.dp",
        "layout.pp",
        "layout.vpp",
        what=f"{keys.show('batch.global_batch')} gives {microbatches} micro-batches, which do not "
        f"fall into equal rounds of at least layout.pp = {pp}",
        remedy=f"set batch.global_batch to {fitting}, or layout.vpp to 1",
    )


def _halves(keys: Keys) -> Iterator[Problem]:
    """A micro-batch that is computed in halves has two, and its blocks are not run again."""
    recipe = keys.recipe
    if recipe.batch.micro_batch % 2:
        yield problem(
            "overlap.tp_halves",
            "batch.micro_batch",
            what=f"overlap.tp_halves = true, but {keys.show('batch.micro_batch')} has no halves",
            remedy="set batch.micro_batch to an even number, or overlap.tp_halves to false",
        )
    if recipe.train.recompute == "full":
        yield problem(
            "overlap.tp_halves",
            "train.recompute",
            what="overlap.tp_halves = true goes through a layer part by part, but "
            f"{keys.show('train.recompute')} runs whole layers again",
            remedy="set train.recompute to selective or none, or overlap.tp_halves to false",
        )


def overlap(keys: Keys) -> Iterator[Problem]:
    """A switch that is on hides something: silence would be a slow run that nobody notices."""
    layout, wish = keys.recipe.layout, keys.recipe.overlap
    if layout.tp == 1:
        return
    if wish.tp_halves:
        yield from _halves(keys)
    elif wish.tp and not layout.sequence_parallel:
        yield problem(
            "overlap.tp",
            "layout.sequence_parallel",
            what="overlap.tp = true hides nothing: without sequence parallelism a GEMM is followed "
            "by a whole all-reduce",
            remedy="set overlap.tp_halves or layout.sequence_parallel to true, or overlap.tp to "
            "false",
        )
        return
    if wish.tp and wish.tp_pieces == 1 and not wish.tp_halves:
        yield problem(
            "overlap.tp_pieces",
            "overlap.tp",
            what="overlap.tp = true hides nothing: with overlap.tp_pieces = 1 a GEMM waits for all "
            "of its communication",
            remedy="set overlap.tp_pieces to 0 (auto) or to 2 or more, or overlap.tp to false",
        )
    part = keys.recipe.model.seq // layout.tp
    if wish.tp and wish.tp_pieces == 0 and cuts(part) == () and not wish.tp_halves:
        yield problem(
            "overlap.tp",
            "model.seq",
            "layout.tp",
            what=f"overlap.tp = true hides nothing: the {part} tokens of a rank (model.seq / "
            f"layout.tp) do not fall into 2 to {MOST_PIECES} equal pieces",
            remedy="change model.seq, set overlap.tp_pieces yourself, or overlap.tp to false",
        )
    if wish.tp_pieces > 1 and part % wish.tp_pieces:
        yield problem(
            "overlap.tp_pieces",
            "model.seq",
            "layout.tp",
            what=f"{keys.show('overlap.tp_pieces')} does not divide the {part} tokens of a rank "
            "(model.seq / layout.tp)",
            remedy=f"set overlap.tp_pieces to {divisors(part, near=wish.tp_pieces)}, or to 0",
        )
