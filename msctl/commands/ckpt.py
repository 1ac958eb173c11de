"""`msctl ckpt`: list, show, verify, reshard, export, import and prune checkpoints."""

from collections.abc import Callable
from typing import Annotated

import typer

from engine.errors import CheckpointError
from msctl.commands.ckpt_show import (
    show_dcp,
    show_decisions,
    show_detail,
    show_diff,
    show_export,
    show_list,
    show_plan,
    show_shards,
    show_verify,
)
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

    The state is decided by looking at marker, manifest, names and sizes; data are not read. A
    folder without checkpoints is an empty list; one that does not exist is an error, and so is a
    prefix of an object store under which nothing lies.

    *Examples*

    - `msctl ckpt list runs/tiny`
    - `msctl ckpt list s3://bucket/runs/tiny/ckpt --json`
    """
    from engine.ckpt.catalog import catalog, require_place

    require_place(run)
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

    `--diff` compares two by tensor, whatever their layouts: shapes, types and every element.

    *Examples*

    - `msctl ckpt show runs/tiny/ckpt/step-00000100`
    - `msctl ckpt show runs/tiny --tensor layers.0.attn.q.weight`
    - `msctl ckpt show runs/tiny --diff runs/other`
    """
    from engine.ckpt.show import diff as compare
    from engine.ckpt.show import shards_of
    from engine.ckpt.show import show as detail

    if diff and tensor:
        raise CheckpointError("--tensor and --diff at once", remedy="give one of them")
    if diff:
        with ui.progress("compare", 1.0) as advance:
            differences = compare(checkpoint, diff, progress=_shares(advance))
        ui.result(differences, show_diff)
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
    from engine.ckpt.reshard import parse_layout, parse_memory, plan_reshard_of
    from engine.ckpt.reshard import reshard as rewrite

    wanted, bound = parse_layout(layout), parse_memory(memory)
    ui.result(plan_reshard_of(checkpoint, wanted), show_plan)
    if not dry_run:
        with ui.progress("reshard", 1.0) as advance:
            name = rewrite(checkpoint, out, wanted, memory_bytes=bound, progress=_shares(advance))
        ui.note(f"wrote {out.rstrip('/')}/{name}")


@app.command()
@command_flags
def export(
    ui: Ui,
    checkpoint: Where,
    out: Out,
    dtype: Annotated[str, typer.Option(help="keep, F64, F32, BF16 or F16; hf only.")] = "keep",
    to: Annotated[str, typer.Option(help="hf, or dcp: torch.distributed.checkpoint.")] = "hf",
) -> None:
    """Export as a Hugging Face folder, or for torch.distributed.checkpoint.

    `transformers` loads the first: as Llama, GPT-2 or GPT-NeoX, whichever holds the model exactly.
    The second holds weights and moments.

    *Examples*

    - `msctl ckpt export runs/tiny --out exported/tiny`
    - `msctl ckpt export runs/tiny/ckpt/step-00000100 --out exported/tiny --dtype BF16`
    - `msctl ckpt export runs/tiny --out exported/tiny-dcp --to dcp`
    """
    from engine.ckpt.hf_export import export_hf

    if to == "dcp":
        from engine.ckpt.dcp import export_dcp

        if dtype != "keep":
            raise CheckpointError(
                f"--dtype {dtype}: an export to DCP keeps its types",
                remedy="leave out --dtype, or export --to hf",
            )
        ui.result(export_dcp(checkpoint, out), show_dcp)
        return
    if to != "hf":
        raise CheckpointError(f"--to {to} is not known", remedy="choose hf or dcp")
    report = export_hf(checkpoint, out, dtype=dtype)
    ui.result(report, show_export)
    ui.note(f"wrote {report.where}")


@app.command("import")
@command_flags
def import_(
    ui: Ui,
    folder: Annotated[
        str, typer.Argument(help="Hugging Face folder (safetensors) or DCP's; path or URL.")
    ],
    out: Out,
) -> None:
    """Import a Hugging Face folder as a checkpoint of step 0, or one of DCP.

    A folder with a `.metadata` file is one of torch.distributed.checkpoint; its moments come too.

    *Examples*

    - `msctl ckpt import exported/tiny --out runs/imported/ckpt`
    - `msctl ckpt import exported/tiny-dcp --out runs/imported/ckpt`
    """
    from engine.ckpt.catalog import describe
    from engine.ckpt.hf_import import import_hf
    from engine.ckpt.store import holds, open_store

    if holds(folder, ".metadata"):
        from engine.ckpt.dcp import import_dcp

        name = import_dcp(folder, out)
    else:
        name = import_hf(folder, out)
    ui.result([describe(open_store(out), name)], show_list)
    ui.note(f"wrote {out.rstrip('/')}/{name}")


@app.command()
@command_flags
def prune(
    ui: Ui,
    run: Where,
    keep: Annotated[int, typer.Option(help="Newest checkpoints to keep.", min=1)] = 3,
    every_hours: Annotated[float, typer.Option(help="Also one per so many hours.", min=0)] = 0.0,
    every_steps: Annotated[int, typer.Option(help="Also steps divisible by this.", min=0)] = 0,
    best: Annotated[int, typer.Option(help="Also those of lowest held-out loss.", min=0)] = 0,
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
    from engine.ckpt.catalog import require_place
    from engine.ckpt.prune import Retention, plan_prune
    from engine.ckpt.prune import prune as carry_out

    require_place(run)
    rules = Retention(
        last=keep, every_h=every_hours, every_steps=every_steps, best=best,
        grace_s=grace_hours * 3600,
    )  # fmt: skip
    decisions = plan_prune(run, rules)
    ui.result(decisions, show_decisions)
    if yes:
        ui.note(
            f"deleted {len(carry_out(run, decisions))} folders and unfinished writes under {run}"
        )
    elif any(decision.action == "remove" for decision in decisions):
        ui.hint("add --yes to delete what is marked remove")


def _shares(advance: Callable[[float], None]) -> Callable[[int, int], None]:
    """Turn (done, total) reports into steps of a bar of length one."""
    seen = [0.0]

    def report(done: int, total: int) -> None:
        share = done / total if total else 1.0
        advance(share - seen[0])
        seen[0] = share

    return report
