"""`msctl ckpt`: list, show, verify, reshard, export, import and prune checkpoints."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import typer

from engine.ckpt.catalog import CheckpointInfo
from engine.ckpt.prune import Decision
from engine.ckpt.reshard import ReshardPlan
from engine.ckpt.show import CheckpointDetail, Difference, ShardRow
from engine.ckpt.verify import VerifyReport
from engine.spec.layout import ParallelLayout
from engine.units import show_bytes, show_count, show_seconds
from msctl.flags import command_flags, command_group, complete_run
from msctl.ui import Ui

app = command_group("List, verify, reshard, convert and prune checkpoints.")

Where = Annotated[
    str,
    typer.Argument(
        help="Checkpoint, run or folder of checkpoints; a path or fsspec URL.",
        autocompletion=complete_run,
    ),
]
Out = Annotated[str, typer.Option(help="Folder or URL to write to.")]
Memory = Annotated[str, typer.Option(help="Largest buffers, in bytes, MiB or GiB.")]


@app.command("list")
@command_flags
def list_(ui: Ui, run: Where) -> None:
    """List the checkpoints of a run, whole or not.

    The state is decided by looking at marker, manifest, names and sizes; data are not read.

    *Examples*

    - `msctl ckpt list runs/tiny`
    - `msctl ckpt list s3://bucket/runs/tiny/ckpt --json`
    """
    from engine.ckpt.catalog import catalog

    infos = catalog(run)
    ui.result(infos, show_list)
    if not infos:
        ui.note(f"no checkpoint folders in {run}")


@app.command()
@command_flags
def show(
    ui: Ui,
    checkpoint: Where,
    tensor: Annotated[str, typer.Option(help="Show where this tensor's shards lie.")] = "",
    diff: Annotated[str, typer.Option(help="Compare with this other checkpoint.")] = "",
) -> None:
    """Show what a checkpoint holds: tensors, who holds them, recipe and versions.

    *Examples*

    - `msctl ckpt show runs/tiny/ckpt/step-00000100`
    - `msctl ckpt show runs/tiny --tensor layers.0.attn.q.weight`
    - `msctl ckpt show runs/tiny --diff runs/other`
    """
    from engine.ckpt.show import diff as compare
    from engine.ckpt.show import shards_of
    from engine.ckpt.show import show as detail

    if diff:
        ui.result(compare(checkpoint, diff), show_diff)
    elif tensor:
        ui.result(shards_of(checkpoint, tensor), show_shards)
    else:
        ui.result(detail(checkpoint), show_detail)


@app.command()
@command_flags
def verify(
    ui: Ui,
    checkpoint: Where,
    threads: Annotated[int, typer.Option(help="Concurrent readers.", min=1, max=256)] = 4,
) -> None:
    """Verify every byte of a checkpoint against its digests.

    Also checks sizes, headers, holes and overlaps. Ends with 4 if anything is damaged.

    *Examples*

    - `msctl ckpt verify runs/tiny`
    - `msctl ckpt verify runs/tiny/ckpt/step-00000100 --threads 8`
    """
    from engine.ckpt.verify import verify as check

    with ui.progress("verify", 1.0) as advance:
        report = check(checkpoint, threads=threads, progress=_shares(advance))
    ui.result(report, show_verify)
    ui.exit(verdict_bad=not report.ok)


@app.command()
@command_flags
def reshard(
    ui: Ui,
    checkpoint: Where,
    out: Out,
    layout: Annotated[list[str], typer.Option(metavar="AXIS=N", help="tp, pp, vpp, dp, zero.")],
    memory: Memory = "256MiB",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be.")] = False,
) -> None:
    """Rewrite a checkpoint for another layout, with bounded memory.

    Loading needs no reshard; rewriting makes repeated restarts under the new layout read less.

    *Examples*

    - `msctl ckpt reshard runs/tiny --layout tp=2 --layout dp=2 --out runs/resharded/ckpt`
    """
    from engine.ckpt.reshard import parse_layout, plan_reshard_of
    from engine.ckpt.reshard import reshard as rewrite
    from engine.units import parse_bytes

    wanted = parse_layout(layout)
    ui.result(plan_reshard_of(checkpoint, wanted), show_plan)
    if not dry_run:
        with ui.progress("reshard", 1.0) as advance:
            name = rewrite(
                checkpoint, out, wanted, memory_bytes=parse_bytes(memory), progress=_shares(advance)
            )
        ui.note(f"wrote {out.rstrip('/')}/{name}")


@app.command()
@command_flags
def prune(
    ui: Ui,
    run: Where,
    keep: Annotated[int, typer.Option(help="Newest checkpoints to keep.", min=1)] = 3,
    every_hours: Annotated[float, typer.Option(help="Also one per so many hours.", min=0)] = 0.0,
    every_steps: Annotated[int, typer.Option(help="Also steps divisible by this.", min=0)] = 0,
    grace_hours: Annotated[
        float, typer.Option(help="Silence after which an unfinished save is dead.", min=0)
    ] = 6.0,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it nothing is.")] = False,
) -> None:
    """Delete old checkpoints and leftovers of failed saves.

    Shows what would be done and why; `--yes` does it. The newest valid one is never deleted.

    *Examples*

    - `msctl ckpt prune runs/tiny --keep 3`
    - `msctl ckpt prune runs/tiny --keep 3 --every-steps 1000 --yes`
    """
    from engine.ckpt.prune import Retention, plan_prune
    from engine.ckpt.prune import prune as carry_out

    rules = Retention(
        last=keep, every_h=every_hours, every_steps=every_steps, grace_s=grace_hours * 3600
    )
    decisions = plan_prune(run, rules)
    ui.result(decisions, show_decisions)
    if yes:
        ui.note(f"deleted {len(carry_out(run, decisions))} folders under {run}")
    elif any(decision.action == "remove" for decision in decisions):
        ui.hint("add --yes to delete what is marked remove")


def show_list(ui: Ui, infos: Sequence[CheckpointInfo]) -> None:
    """One row a folder."""
    rows = [
        (i.name, i.step, _when(i.created_s), show_bytes(i.bytes), i.files, i.state,
         _layout(i.layout), i.why)
        for i in infos
    ]  # fmt: skip
    ui.table("", ("name", "step", "time", "size", "files", "state", "layout", "why"), rows)


def show_detail(ui: Ui, detail: CheckpointDetail) -> None:
    """Facts, then tensors, then the recipe."""
    facts = [
        ("where", detail.where), ("run", detail.run or None), ("step", detail.step),
        ("saved", _when(detail.created_s)), ("layout", _layout(detail.layout)),
        ("ranks", detail.world), ("parameters", show_count(detail.parameters)),
        ("size", show_bytes(detail.bytes)), ("files", detail.files),
        ("slots", ", ".join(detail.slots)),
        ("versions", ", ".join(f"{k} {v}" for k, v in detail.versions.items())),
        *((f"data.{k}", str(v)) for k, v in detail.data.items()),
        *((f"extra.{k}", str(v)) for k, v in detail.extra.items()),
    ]  # fmt: skip
    ui.table("checkpoint", ("fact", "value"), facts)
    rows = [
        (t.name, "x".join(map(str, t.shape)), t.dtype, len(t.slots), t.shards, _ranks(t.ranks),
         show_bytes(t.bytes))
        for t in detail.tensors
    ]  # fmt: skip
    ui.table("tensors", ("name", "shape", "dtype", "slots", "shards", "ranks", "size"), rows)
    if detail.recipe_toml and ui.verbose:
        ui.line("\n" + detail.recipe_toml)


def show_shards(ui: Ui, shards: Sequence[ShardRow]) -> None:
    """Where each range of a tensor lies."""
    rows = [
        (s.slot, s.box, f"{s.flat[0]}:{s.flat[1]}", s.file, s.offset, show_bytes(s.bytes))
        for s in shards
    ]
    ui.table("shards", ("slot", "box", "range", "file", "offset", "size"), rows)


def show_diff(ui: Ui, differences: Sequence[Difference]) -> None:
    """One row a difference."""
    rows = [(d.what, d.left, d.right) for d in differences]
    ui.table("differences", ("what", "left", "right"), rows)
    if not differences:
        ui.note("no difference")


def show_verify(ui: Ui, report: VerifyReport) -> None:
    """One line if whole, else one row a fault."""
    rate = report.bytes / report.seconds if report.seconds else 0.0
    ui.note(
        f"checked {report.chunks} chunks, {show_bytes(report.bytes)} in "
        f"{show_seconds(report.seconds)}, {show_bytes(rate)}/s"
    )
    if report.ok:
        ui.line(f"whole    {report.where}")
        return
    ui.line(f"damaged  {report.where}", style="bold red")
    rows = [
        (d.file, d.chunk if d.chunk >= 0 else None, d.what, ", ".join(d.tensors[:4]) or None)
        for d in report.damage
    ]
    ui.table("damage", ("file", "chunk", "what", "tensors"), rows)
    ui.hint("resume from an older checkpoint; `msctl ckpt list` shows which ones are committed")


def show_plan(ui: Ui, plan: ReshardPlan) -> None:
    """What will be written."""
    row = (
        plan.source, _layout(plan.layout), plan.files, plan.pieces, show_bytes(plan.bytes),
        show_bytes(plan.largest_file_bytes),
    )  # fmt: skip
    ui.table("reshard", ("source", "layout", "files", "pieces", "size", "largest file"), [row])


def show_decisions(ui: Ui, decisions: Sequence[Decision]) -> None:
    """What happens to each folder, and why."""
    rows = [(d.action, d.name, d.state, show_bytes(d.bytes), d.why) for d in decisions]
    ui.table("", ("action", "name", "state", "size", "why"), rows)


def _shares(advance: Callable[[float], None]) -> Callable[[int, int], None]:
    """Turn (done, total) reports into steps of a bar of length one."""
    seen = [0.0]

    def report(done: int, total: int) -> None:
        share = done / total if total else 1.0
        advance(share - seen[0])
        seen[0] = share

    return report


def _layout(layout: ParallelLayout | None) -> str | None:
    if layout is None:
        return None
    return f"tp={layout.tp} pp={layout.pp} vpp={layout.vpp} dp={layout.dp} zero={layout.zero}"


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 4:
        return f"{ranks[0]}..{ranks[-1]} ({len(ranks)})"
    return ",".join(map(str, ranks))


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
