"""A machine type from reports of a fleet: medians by hand, and reports that do not count."""

import pytest

from engine.errors import RecipeError
from engine.health.learn import learn_profile
from engine.health.profile import load_profiles
from engine.health.result import CheckResult, NodeReport


def report(node, rate=100.0, status="ok", **more):
    result = {
        "check": "gpu.gemm", "target": "gpu0 bf16", "message": "m", "measured": rate,
        "unit": "FLOP/s", "remedy": "r",
    }  # fmt: skip
    return NodeReport(
        node=node, machine="m", profile="p", level="full", time_s=0.0, seconds=0.0,
        results=(CheckResult(status=status, **result | more),),
    )  # fmt: skip


def learned(tmp_path, reports, **how):
    (tmp_path / "p.toml").write_text(learn_profile(reports, name="site", **how))
    (profile,) = load_profiles(tmp_path / "p.toml")
    return profile


def test_a_bar_is_a_tenth_below_the_median(tmp_path):
    profile = learned(tmp_path, [report("a", 98.0), report("b", 100.0), report("c", 101.0)])
    bar = profile.bar("gpu.gemm/bf16")
    assert bar.at_least == pytest.approx(90.0)
    assert (bar.unit, bar.source) == ("FLOP/s", "learned from 3 nodes")
    assert profile.name == "site"
    assert profile.match == ""


def test_a_wide_fleet_widens_the_bar(tmp_path):
    profile = learned(tmp_path, [report("a", 90.0), report("b", 100.0), report("c", 120.0)])
    assert profile.bar("gpu.gemm/bf16").at_least == pytest.approx(100 - 3 * 1.4826 * 10)


def test_a_known_type_is_the_base_and_its_match_is_kept_or_replaced(tmp_path):
    profile = learned(tmp_path, [report("a")], base="h100-nvl8")
    assert (profile.match, profile.gpus, profile.nvlinks) == ("H100 80GB HBM3", 8, 18)
    assert profile.bar("gpu.gemm/bf16").at_least == pytest.approx(90.0)
    assert profile.bar("gpu.h2d").at_least == 4.8e10
    assert learned(tmp_path, [report("a")], base="h100-nvl8", match="H100 X").match == "H100 X"
    assert learned(tmp_path, [report("a")], match="X").match == "X"


@pytest.mark.parametrize("status", ["fail", "error"])
def test_a_sick_node_sets_no_bar(status):
    reports = [report("n2", status=status), report("n1", status=status), report("n3")]
    with pytest.raises(RecipeError, match=r"2 of 3 reports are of unfit nodes, e\.g\. n1"):
        learn_profile(reports, name="site")


def test_warned_and_skipped_values_are_not_learned_from(tmp_path):
    profile = learned(tmp_path, [report("a"), report("b", 5.0, "warn"), report("c", 5.0, "skip")])
    assert profile.bar("gpu.gemm/bf16").at_least == pytest.approx(90.0)
    with pytest.raises(RecipeError, match="nothing to learn"):
        learn_profile([report("a", 5.0, "warn")], name="site")
    with pytest.raises(RecipeError, match="nothing to learn"):
        learn_profile([report("a", unit="GPUs")], name="site")
    with pytest.raises(RecipeError, match="nothing to learn"):
        learn_profile([], name="site")


def test_a_base_that_is_not_known_is_named():
    with pytest.raises(RecipeError, match="there is no machine profile 'abacus'"):
        learn_profile([report("a")], name="site", base="abacus")
