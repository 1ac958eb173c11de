"""Options of `msctl selfcheck` that have no effect together are refused."""

import pytest

from engine.errors import RecipeError
from msctl.commands.selfcheck_options import refuse_fleet_options, refuse_node_options


def test_one_node_takes_the_node_suite_only():
    refuse_fleet_options(set(), False)
    refuse_fleet_options({"node"}, False)
    for suites, has_others in (({"pair"}, False), ({"node", "group"}, False), (set(), True)):
        with pytest.raises(RecipeError, match="are for many nodes"):
            refuse_fleet_options(suites, has_others)


def test_many_nodes_take_no_option_that_their_agents_are_not_told_of():
    refuse_node_options(False)
    with pytest.raises(RecipeError, match="are for one node"):
        refuse_node_options(True)
