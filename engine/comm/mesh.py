"""The live process groups of a layout: on each rank only its own, one per kind of traffic.

Traffic of different kinds never shares a communicator, so an urgent message cannot queue behind a
bulky one and no environment variable has to order them. Between two stages each direction of each
kind has its own, so that a receive posted early holds up nothing but what comes after it. All ranks
create their groups in the same order of kinds; groups of one kind are disjoint, so nobody waits for
the whole world (paper 3.5).
"""

from collections import Counter
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from engine.comm.collectives import Group
from engine.comm.lost import lost
from engine.spec.layout import ParallelLayout


class Levels(NamedTuple):
    """The replicas of a data-parallel group in two levels: on one node, and across nodes."""

    near: Group
    """Replicas on this node."""
    far: Group
    """One replica of every node, at the same place in it."""


class Mesh(NamedTuple):
    """Groups of one rank, by kind of traffic."""

    rank: int
    layout: ParallelLayout
    world: Group
    tp: Group
    pp_forward: Group
    pp_backward: Group
    pp_forward_wrap: Group
    """Activations to a lower stage: with these apart, what two ranks share goes one way only."""
    pp_backward_wrap: Group
    dp_gather: Group
    dp_reduce: Group
    tied: Group
    """First and last stage, which hold copies of a tied embedding; alone elsewhere."""
    gather_levels: Levels | None = None
    reduce_levels: Levels | None = None
    """Where data-parallel traffic goes in two steps, so that a node's link carries less of it."""

    def groups(self) -> list[Group]:
        """All groups but the world's that communicate, each once."""
        levels = [pair for pair in (self.gather_levels, self.reduce_levels) if pair is not None]
        named = (
            self.tp, self.pp_forward, self.pp_backward, self.pp_forward_wrap,
            self.pp_backward_wrap, self.dp_gather, self.dp_reduce, self.tied,
        )  # fmt: skip
        all_ = [*named, *(group for pair in levels for group in pair)]
        return list({id(group): group for group in all_ if group.size > 1}.values())


def build_mesh(
    layout: ParallelLayout,
    rank: int,
    *,
    backend: str,
    timeout_s: float,
    last_stage: int | None = None,
    ranks_per_node: int = 0,
) -> Mesh:
    """Create this rank's groups; `torch.distributed` must be initialised with the whole world.

    last_stage holds the model's last chunk: pp - 1 unless the schedule places chunks otherwise.
    With ranks_per_node, gathers and reductions of replicas that share nodes go in two levels.
    Cost: one rendezvous per group among its members only.
    """

    def group(name: str, ranks: tuple[int, ...]) -> Group:
        handle = None
        if len(ranks) > 1:
            try:
                handle = dist.new_group(
                    list(ranks), timeout=timedelta(seconds=timeout_s), backend=backend,
                    use_local_synchronization=True, group_desc=name,
                )  # fmt: skip
            except RuntimeError as error:
                raise lost(f"start of group {name} of ranks {list(ranks)}", error) from error
        return Group(name, ranks, ranks.index(rank), handle)

    everyone = tuple(range(layout.world_size))
    pp = layout.group("pp", rank)
    dp = layout.group("dp", rank)
    forward, backward = group("pp_forward", pp), group("pp_backward", pp)
    wraps = layout.vpp > 1
    other = pp[layout.pp - 1 if last_stage is None else last_stage]
    ends = (pp[0], other) if other != pp[0] and rank in (pp[0], other) else (rank,)
    handle = dist.group.WORLD if layout.world_size > 1 else None
    # Names of groups hang on how many there are: all ranks of a pipeline make the same ones.
    levels = two_levels(layout, rank, ranks_per_node)

    def both(name: str) -> Levels | None:
        if levels is None:
            return None
        return Levels(group(f"{name}_near", levels[0]), group(f"{name}_far", levels[1]))

    return Mesh(
        rank=rank,
        layout=layout,
        world=Group("world", everyone, rank, handle),
        tp=group("tp", layout.group("tp", rank)),
        pp_forward=forward,
        pp_backward=backward,
        pp_forward_wrap=group("pp_forward_wrap", pp) if wraps else forward,
        pp_backward_wrap=group("pp_backward_wrap", pp) if wraps else backward,
        dp_gather=group("dp_gather", dp),
        dp_reduce=group("dp_reduce", dp),
        tied=group("tied", ends),
        gather_levels=both("dp_gather"),
        reduce_levels=both("dp_reduce"),
    )


def two_levels(
    layout: ParallelLayout, rank: int, ranks_per_node: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """A rank's replicas on its node, and those at its place on other nodes.

    None where there is nothing to gain: one node, one replica a node, or unequal nodes (for any
    rank: all decide alike).
    """
    if not ranks_per_node or layout.zero == 0:
        return None
    sizes = set()
    for first in range(layout.world_size):
        if layout.coord(first).dp:
            continue  # its group was counted at its first member
        nodes = Counter(member // ranks_per_node for member in layout.group("dp", first))
        sizes |= {(count, len(nodes)) for count in nodes.values()}
    if len(sizes) != 1:
        return None
    each, nodes_of_group = sizes.pop()
    if each == 1 or nodes_of_group == 1:
        return None
    members = layout.group("dp", rank)
    near = tuple(m for m in members if m // ranks_per_node == rank // ranks_per_node)
    return near, members[near.index(rank) :: each]
