import msgspec

from engine.spec.presets import CLUSTERS


def test_ranks_fill_nodes_in_order():
    cluster = msgspec.structs.replace(CLUSTERS["a100-nvl8"], nodes=3)
    assert cluster.world_size == 24
    assert [cluster.node_of(r) for r in (0, 7, 8, 23)] == [0, 0, 1, 2]


def test_links_depend_on_the_node():
    cluster = msgspec.structs.replace(CLUSTERS["a100-nvl8"], nodes=2)
    assert cluster.link(0, 7) is cluster.intra
    assert cluster.link(7, 8) is cluster.inter
