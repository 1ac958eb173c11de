"""The options of `msctl selfcheck`, and which of them do not go together."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer

from engine.errors import RecipeError
from engine.health.result import Convention

Where = Literal["local", "hosts", "slurm", "k8s"]
Level = Literal["passive", "light", "full"]


class Suite(str, Enum):
    """What is tested of many nodes. An enumeration, since typer takes no list of literals."""

    node = "node"
    pair = "pair"
    group = "group"


Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="CHECK",
        help="Of the level's checks only this, or those of `gpu`, `host`, `net`, `comm`.",
    ),
]
Suites = Annotated[
    list[Suite] | None,
    typer.Option(
        "--suite", help="With --on: nodes alone, neighbours in pairs, or all as a group, halved."
    ),
]


Many = Annotated[
    Where | None,
    typer.Option("--on", help="Check many nodes: local agents, ssh hosts, Slurm, Kubernetes."),
]
Profiles = Annotated[
    Path | None, typer.Option(help="TOML file of more machine types.", dir_okay=False)
]
Since = Annotated[
    float, typer.Option(help="Kernel log of the last so many seconds; 0: since boot.", min=0)
]
Folder = Annotated[Path | None, typer.Option(help="Where disk checks write (default /tmp).")]
State = Annotated[
    Path | None, typer.Option(help="Folder for counters between looks (default: the user's).")
]
Exit = Annotated[
    Convention, typer.Option("--exit", help="Exit codes: of msctl, of Nagios, or of NPD.")
]
Prometheus = Annotated[
    Path | None, typer.Option(help="Also write a textfile for node_exporter.", dir_okay=False)
]
Record = Annotated[Path | None, typer.Option(help="Also write all that was read from the machine.")]
Recorded = Annotated[
    Path | None, typer.Option(help="Check a recorded machine instead of this one.")
]
Hosts = Annotated[
    Path | None, typer.Option(help="For --on hosts: one node a line, with its switch.")
]
Redis = Annotated[
    str,
    typer.Option(
        help="Redis to use, redis://HOST:6379/0?password_file=PATH (default: a private one)."
    ),
]
Selector = Annotated[str, typer.Option(help="For --on k8s: labels of the pods, as app=train.")]
Node = Annotated[str, typer.Option(help="With --on: also all results of this node.")]
Matrix = Annotated[
    bool, typer.Option("--all-pairs", help="With --on: test every pair, for the heat map.")
]
Together = Annotated[
    bool, typer.Option("--bisect", help="With --on: also test all together, halve what fails.")
]
Exclude = Annotated[Path | None, typer.Option(help="With --on: write unfit nodes, one a line.")]
Depth = Annotated[
    Level | None,
    typer.Option(
        help="passive: 2 s, safe beside a job; light: a minute; full: all "
        "(default: passive, or what a check named by --only needs)."
    ),
]


def refuse_fleet_options(suites: set[str], has_others: bool) -> None:
    """Options that need many nodes are wrong on one, rather than without effect."""
    if suites - {"node"} or has_others:
        raise RecipeError(
            "--suite pair and group, --all-pairs, --bisect, --hosts, --node and --exclude-file "
            "are for many nodes",
            remedy="say which with --on local, hosts, slurm or k8s",
        )


def refuse_node_options(has_any: bool) -> None:
    """Options that agents are not told of are wrong with many nodes."""
    if has_any:
        raise RecipeError(
            "--folder, --since, --record, --recording and --prometheus are for one node",
            remedy="leave them out, or leave out --on",
        )
