"""Nodes that meet at rank 0, or a single one, cannot be tested against each other."""

from types import SimpleNamespace

from engine.job.bisect import compare_nodes
from engine.job.nodes import Nodes


def test_without_a_redis_or_a_second_node_nothing_is_found():
    assert compare_nodes(SimpleNamespace(nodes=Nodes(), server=None)) == {}
    assert compare_nodes(SimpleNamespace(nodes=Nodes(), server=object())) == {}
