import math
import os

import pytest

from engine.health.node import Wish, facts, listed, machine, revisit, visit
from engine.health.probe import RealProbe
from engine.health.recording import RecordedProbe
from engine.health.suite import CHECKS
from tests.engine.health.machines import machine as recorded


def test_what_a_machine_is_and_its_versions():
    probe = RecordedProbe(recorded("h100")[0])
    assert machine(probe) == "8 x NVIDIA H100 80GB HBM3, 192 CPUs, 2.00 TiB"
    found = facts(probe)
    assert found["driver"] == "550.90.07"
    assert found["nic firmware"] == "28.39.2048"
    assert "" not in found.values()


def test_a_profile_is_chosen_by_the_gpu_and_overridden_by_name():
    recording, _ = recorded("a100")
    assert revisit(recording, Wish(only=("gpu.count",))).profile == "a100-nvl8"
    wrong = revisit(recording, Wish(only=("gpu.nvlink",), profile="h100-nvl8"))
    assert wrong.profile == "h100-nvl8"
    assert wrong.status == "fail"  # 12 links where the profile wants 18


def test_the_list_is_the_list():
    assert [row[0] for row in listed()] == [c.name for c in CHECKS]
    assert all(row[4] and not row[4].endswith(".") for row in listed())


@pytest.mark.parametrize(
    ("wish", "budget_s", "extent"),
    [(Wish(), math.inf, "passive"), (Wish(level="light"), 58, "light"),
     (Wish(level="light", only=("gpu",)), 58, "light, only gpu"),
     (Wish(only=("gpu.gemm", "init")), math.inf, "only gpu.gemm init")],
)  # fmt: skip
def test_a_level_that_is_given_holds_its_time_and_is_reported(wish, budget_s, extent):
    assert (wish.budget_s, wish.extent) == (budget_s, extent)
    recording, _ = recorded("h100")
    assert revisit(recording, wish).level == extent


@pytest.mark.multi
def test_this_machine_is_looked_at_in_two_seconds_and_remembered(tmp_path):
    probe = RealProbe(env=os.environ, node="me")
    found = visit(probe, Wish(state=tmp_path, record=True))
    assert found.report.node == "me"
    assert found.report.seconds < 2
    assert {r.check for r in found.report.results} == {
        c.name for c in CHECKS if c.level == "passive"
    }
    assert (tmp_path / "selfcheck.json").exists()
    again = revisit(found.recording, Wish())
    assert {(r.check, r.status) for r in again.results if r.check.startswith("gpu.")} == {
        (r.check, r.status) for r in found.report.results if r.check.startswith("gpu.")
    }
