"""Process groups of a layout: who is in them, and that nobody makes more."""

import pytest
import torch.distributed as dist

from bench.ranks import World
from engine.comm.collectives import all_reduce
from engine.comm.mesh import build_mesh, two_levels
from engine.comm.world import Rendezvous, end_world, start_world
from engine.spec.layout import ParallelLayout

pytestmark = pytest.mark.multi
KINDS = ("world", "tp", "pp_forward", "pp_backward", "dp_gather", "dp_reduce", "tied")
WRAPS = ("pp_forward_wrap", "pp_backward_wrap")


def build(rank: int, meet: Rendezvous, args: dict) -> dict:
    """Build a mesh, add up rank numbers in each group, and say what was created."""
    import torch

    layout = ParallelLayout(**args["layout"])
    start_world(rank, layout.world_size, meet, backend="gloo", timeout_s=60)
    mesh = build_mesh(layout, rank, backend="gloo", timeout_s=60, last_stage=args.get("last_stage"))
    sums = {}
    for kind in KINDS:
        token = torch.tensor([float(rank)])
        all_reduce(token, getattr(mesh, kind)).wait()
        sums[kind] = float(token)
    created = len(dist.distributed_c10d._world.pg_map)
    end_world()
    ranks = {kind: getattr(mesh, kind).ranks for kind in KINDS}
    index = {kind: getattr(mesh, kind).index for kind in KINDS}
    return {"ranks": ranks, "index": index, "sums": sums, "created": created}


@pytest.mark.parametrize(
    "layout", [{"tp": 2, "pp": 2, "dp": 2}, {"pp": 4}, {"tp": 2, "dp": 2}, {"dp": 3}], ids=str
)
def test_each_rank_creates_its_own_groups_and_no_other(world: World, layout):
    spec = ParallelLayout(**layout)
    for rank, found in enumerate(
        world.run(f"{__name__}:build", spec.world_size, {"layout": layout})
    ):
        expected = {
            "world": list(range(spec.world_size)),
            "tp": list(spec.group("tp", rank)),
            "pp_forward": list(spec.group("pp", rank)),
            "pp_backward": list(spec.group("pp", rank)),
            "dp_gather": list(spec.group("dp", rank)),
            "dp_reduce": list(spec.group("dp", rank)),
        }
        pipeline = spec.group("pp", rank)
        ends = [pipeline[0], pipeline[-1]]
        expected["tied"] = ends if spec.pp > 1 and rank in ends else [rank]
        assert found["ranks"] == expected
        assert found["sums"] == {kind: float(sum(ranks)) for kind, ranks in expected.items()}
        for kind, ranks in expected.items():
            assert ranks[found["index"][kind]] == rank
        assert found["created"] == sum(len(ranks) > 1 for ranks in expected.values())


def wraps(rank: int, meet: Rendezvous, args: dict) -> list[bool]:
    """Whether messages that go round the pipeline have communicators of their own."""
    layout = ParallelLayout(**args["layout"])
    start_world(rank, layout.world_size, meet, backend="gloo", timeout_s=60)
    mesh = build_mesh(layout, rank, backend="gloo", timeout_s=60)
    end_world()
    pairs = zip(WRAPS, ("pp_forward", "pp_backward"), strict=True)
    return [getattr(mesh, wrap).handle is not getattr(mesh, plain).handle for wrap, plain in pairs]


def test_messages_round_an_interleaved_pipeline_have_communicators_of_their_own(world: World):
    assert world.run(f"{__name__}:wraps", 2, {"layout": {"pp": 2}}) == [[False, False]] * 2
    assert world.run(f"{__name__}:wraps", 2, {"layout": {"pp": 2, "vpp": 2}}) == [[True, True]] * 2


def test_the_v_placement_ties_a_stage_to_itself(world: World):
    args = {"layout": {"pp": 2}, "last_stage": 0}
    found = world.run(f"{__name__}:build", 2, args)
    assert [f["ranks"]["tied"] for f in found] == [[0], [1]]


def meet_alone(rank: int, meet: Rendezvous, args: dict) -> str:
    """Rank 1 joins the world but not the mesh."""
    import os

    from engine.comm.lost import PeerLost

    start_world(rank, 2, meet, backend="gloo", timeout_s=60)
    if rank == 1:
        os._exit(0)
    try:
        build_mesh(ParallelLayout(tp=2), rank, backend="gloo", timeout_s=3)
    except PeerLost as error:
        return error.what
    return "nothing happened"


def test_a_peer_that_is_gone_is_named_by_its_group(world: World):
    what, none = world.run(f"{__name__}:meet_alone", 2)
    assert none is None
    assert "start of group tp of ranks [0, 1] failed" in what


def test_replicas_of_a_node_form_a_level_where_there_is_something_to_gain():
    """dp 4 x tp 2: ranks 0, 2, 4, 6 are the replicas of part 0."""
    layout = ParallelLayout(tp=2, dp=4)
    assert two_levels(layout, 0, 4) == ((0, 2), (0, 4))
    assert two_levels(layout, 7, 4) == ((5, 7), (3, 7))
    assert two_levels(layout, 0, 0) is None  # nobody said what a node is
    assert two_levels(layout, 0, 8) is None  # one node
    assert two_levels(layout, 0, 2) is None  # one replica a node
    assert two_levels(layout, 0, 6) is None  # three replicas on one node, one on the other
    assert two_levels(ParallelLayout(dp=4, zero=0), 0, 2) is None  # everything is reduced anyway
