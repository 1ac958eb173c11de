import statistics

import pytest

from engine.errors import RecipeError
from engine.health.learn import learn_profile
from engine.health.nvml import Gpu, GpuState
from engine.health.profile import (
    Bar,
    Profile,
    builtin_profiles,
    choose,
    dump_profile,
    learn,
    load_profiles,
    of_cluster,
    quantity,
)
from engine.health.result import CheckResult, NodeReport
from engine.spec.presets import CLUSTERS


def report(node, rate, status="ok"):
    result = CheckResult(
        check="gpu.gemm",
        target="gpu0 bf16",
        status=status,
        measured=rate,
        unit="FLOP/s",
        message="",
    )
    return NodeReport(
        node=node, machine="", profile="", level="full", time_s=0, seconds=1, results=(result,)
    )


def test_a_gpus_name_chooses_the_most_specific_type():
    def chosen(name):
        return choose(
            builtin_profiles(), GpuState(driver="1", gpus=(Gpu(index=0, name=name),))
        ).name

    assert chosen("NVIDIA H100 80GB HBM3") == "h100-nvl8"
    assert chosen("NVIDIA H100 PCIe") == "h100-pcie"
    assert chosen("NVIDIA A100-SXM4-80GB") == "a100-nvl8"
    assert chosen("NVIDIA Unheard-of") == "unknown"
    assert choose(builtin_profiles(), None).name == "unknown"


def test_a_wrong_name_says_which_there_are():
    with pytest.raises(RecipeError) as caught:
        choose(builtin_profiles(), None, name="h100")
    assert "h100-nvl8" in caught.value.remedy


def test_a_profile_written_is_the_profile_read(tmp_path):
    for profile in builtin_profiles():
        path = tmp_path / "p.toml"
        path.write_text(dump_profile(profile))
        assert load_profiles(path) == (profile,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\ngpu = 8\n", "gpu is not a key"),
        ("[a]\ngpus = -1\n", "gpus"),
        ("[a]\n[a.bars]\nx = { at_leest = 1.0 }\n", "at_leest"),
        ("a = 3\n", "not a section"),
        ("[a\n", "bad.toml"),
    ],
)
def test_a_wrong_file_names_the_key(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_profiles(path)
    assert message in caught.value.what


def test_learned_bars_pass_the_fleet_and_catch_a_slow_node():
    rates = [700e12, 705e12, 695e12, 690e12, 702e12, 699e12, 701e12, 500e12]
    made = learn(
        [report(f"n{i}", rate) for i, rate in enumerate(rates)], name="site", base=Profile()
    )
    bar = made.bars["gpu.gemm/bf16"]
    assert bar.source == "learned from 8 nodes"
    assert all(bar.holds(rate) for rate in rates[:-1])
    assert not bar.holds(500e12)  # the sick node in the sample does not widen the bar
    assert bar.at_least < statistics.median(rates)


def test_learning_refuses_unfit_nodes_and_empty_measurements():
    with pytest.raises(RecipeError, match="unfit"):
        learn_profile([report("n1", 1e12), report("n2", 1e12, status="fail")], name="x")
    with pytest.raises(RecipeError, match="no measured rates"):
        learn([], name="x", base=Profile())


def test_what_was_learned_loads_again(tmp_path):
    text = learn_profile([report("n1", 7e14)], name="site-h100", base="h100-nvl8")
    path = tmp_path / "site.toml"
    path.write_text(text)
    (profile,) = load_profiles(path)
    assert profile.match == "H100 80GB HBM3"
    assert profile.bars["gpu.gemm/bf16"].at_least == pytest.approx(7e14 * 0.9)


def test_a_cluster_file_gives_bars_for_compute_and_links():
    cluster = CLUSTERS["h100-nvl8"]
    profile = of_cluster(cluster, Profile())
    peak = cluster.device.peak_flops_per_s["bf16"]
    assert profile.bars["gpu.gemm/bf16"].at_least == pytest.approx(
        peak * cluster.device.sustained * 0.9
    )
    assert profile.gpus == 8


def test_a_bar_may_be_low_high_or_both():
    assert Bar(at_least=1.0).holds(1.0)
    assert not Bar(at_least=1.0).holds(0.9)
    assert not Bar(at_most=1.0).holds(1.1)
    assert Bar().holds(-5.0)
    assert quantity("gpu.gemm", "gpu3 bf16") == "gpu.gemm/bf16"
    assert quantity("host.gemm", "node") == "host.gemm"
