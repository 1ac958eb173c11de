"""What `msctl ckpt` prints: one function per result."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from engine.ckpt.catalog import CheckpointInfo
from engine.ckpt.hf_export import ExportReport
from engine.ckpt.prune import Decision
from engine.ckpt.reshard import ReshardPlan
from engine.ckpt.show import CheckpointDetail, Difference, ShardRow
from engine.ckpt.verify import VerifyReport
from engine.spec.layout import ParallelLayout
from engine.units import show_bytes, show_count, show_seconds
from msctl.ui import Ui

if TYPE_CHECKING:
    from engine.ckpt.dcp import DcpReport


def show_list(ui: Ui, infos: Sequence[CheckpointInfo]) -> None:
    """One row a folder."""
    rows = [
        (i.name, i.step, _when(i.created_s), show_bytes(i.bytes), i.files, i.state,
         _layout(i.layout), i.val_loss, i.where, "; ".join(filter(None, (i.mark, i.why))))
        for i in infos
    ]  # fmt: skip
    columns = (
        "name",
        "step",
        "time",
        "size",
        "files",
        "state",
        "layout",
        "val loss",
        "where",
        "why",
    )
    ui.table("", columns, rows)


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
        ui.note("no difference: the same tensors with the same contents")


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


def show_export(ui: Ui, report: ExportReport) -> None:
    """What was written."""
    row = (report.where, report.family, report.tensors, report.files, show_bytes(report.bytes))
    ui.table("export", ("where", "family", "tensors", "files", "size"), [row])


def show_dcp(ui: Ui, report: DcpReport) -> None:
    """What was written."""
    row = (report.where, report.tensors, show_bytes(report.bytes))
    ui.table("export", ("where", "tensors", "size"), [row])


def show_decisions(ui: Ui, decisions: Sequence[Decision]) -> None:
    """What happens to each folder, and why."""
    rows = [(d.action, d.name, d.state, show_bytes(d.bytes), d.why) for d in decisions]
    ui.table("", ("action", "name", "state", "size", "why"), rows)


def _layout(layout: ParallelLayout | None) -> str | None:
    if layout is None:
        return None
    return f"tp={layout.tp} pp={layout.pp} vpp={layout.vpp} dp={layout.dp} zero={layout.zero}"


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 4:
        return f"{ranks[0]}..{ranks[-1]} ({len(ranks)})"
    return ",".join(map(str, ranks))


def _when(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):  # a manifest may claim any number
        return None
