import pytest

from bench.ranks import World

SIZES = 3


def exchange(rank, meet, args):
    import torch

    from engine.comm.scratch import ScratchGroup, file_store

    group = ScratchGroup(file_store(args, SIZES), rank, SIZES, backend="gloo", timeout_s=20)
    data = torch.full((4,), float(rank))
    group.all_reduce(data)
    out = torch.empty(SIZES)
    group.all_to_all(out, torch.arange(SIZES).float() + 10 * rank)
    group.barrier()
    return [data.tolist(), out.tolist()]


@pytest.mark.multi
def test_ranks_outside_a_world_sum_and_exchange(world: World, tmp_path):
    rows = world.run("tests.engine.comm.test_scratch:exchange", SIZES, str(tmp_path / "store"))
    assert [row[0] for row in rows] == [[3.0] * 4] * SIZES
    assert [row[1] for row in rows] == [[r, 10 + r, 20 + r] for r in range(SIZES)]
