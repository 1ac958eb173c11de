"""Every sick machine gives exactly its finding; every healthy one gives none."""

import json
from pathlib import Path

import pytest

from engine.errors import RecipeError
from engine.health.node import Wish, revisit
from engine.health.result import bad
from engine.health.suite import CHECKS, LEVELS, select
from tests.engine.health.machines import KINDS, machine, sick

ENTRIES = sick()


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_healthy_machine_gives_no_finding(kind):
    recording, _ = machine(kind)
    report = revisit(recording, Wish(level="light"))
    assert [(r.check, r.target, r.message) for r in bad(report.results)] == []
    assert report.status == "ok"


def test_there_are_at_least_8_healthy_kinds_and_60_sick_machines():
    assert len(KINDS) >= 8
    assert len(ENTRIES) >= 60
    assert len({e["name"] for e in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=[e["name"] for e in ENTRIES])
def test_a_sick_machine_gives_exactly_its_finding(entry):
    recording, before = machine(entry["base"], entry["change"])
    report = revisit(recording, Wish(level="light"), before=before)
    found = [(r.check, r.target, r.status, r.action) for r in bad(report.results)]
    assert found == [(entry["check"], entry["target"], entry["status"], entry["action"])]
    assert all(r.remedy for r in bad(report.results))


def test_every_passive_check_has_a_sick_machine():
    passive = {c.name for c in CHECKS[1:] if c.level == "passive"}
    assert passive - {e["check"] for e in ENTRIES} == set()


def test_levels_contain_those_before_them():
    sizes = [len(select(CHECKS, level=level)) for level in LEVELS]
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(CHECKS)
    assert len({c.name for c in CHECKS}) == len(CHECKS)


def test_checks_are_selected_by_name_subject_or_last_word():
    assert [c.name for c in select(CHECKS, level="passive", only=("gpu.ecc",))] == ["gpu.ecc"]
    assert [c.name for c in select(CHECKS, level="light", only=("each_core",))] == [
        "host.each_core"
    ]
    assert {c.name.split(".")[0] for c in select(CHECKS, level="passive", only=("net",))} == {"net"}
    with pytest.raises(RecipeError, match="there is no check"):
        select(CHECKS, level="full", only=("gpu.ec",))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["host", "gpu", "net"])
def test_a_name_narrows_a_level_and_never_widens_it(level, name):
    found = select(CHECKS, level=level, only=(name,))
    assert found == [c for c in select(CHECKS, level=level) if c.name.startswith(f"{name}.")]
    assert "gpu.memory_test" not in {c.name for c in found} or level == "full"


@pytest.mark.parametrize(
    ("name", "level", "needed"),
    [("gpu.gemm", "passive", "light"), ("gemm", "passive", "light"), ("comm", "passive", "light"),
     ("gpu.memory_test", "light", "full")],
)  # fmt: skip
def test_a_level_that_leaves_out_all_that_is_named_is_an_error(name, level, needed):
    with pytest.raises(RecipeError, match=f"needs --level {needed}"):
        select(CHECKS, level=level, only=("host.shm", name))


def test_without_a_level_a_name_means_its_least_demanding_checks():
    passive = [c for c in select(CHECKS, level="passive") if c.name.startswith("gpu.")]
    assert select(CHECKS, only=("gpu",)) == passive
    named = select(CHECKS, only=("gpu.memory_test", "init", "host.shm"))
    assert [c.name for c in named] == ["host.shm", "gpu.memory_test", "comm.init"]
    assert select(CHECKS) == select(CHECKS, level="passive")


def test_what_is_not_there_is_skipped_with_its_reason_and_never_ok():
    recording, _ = machine("cpu")
    report = revisit(recording, Wish(only=("gpu", "net")))
    assert {r.status for r in report.results} == {"skip"}
    assert report.status == "skip"
    assert all(r.message for r in report.results)


def test_the_sick_list_is_one_line_an_entry():
    lines = Path(__file__).with_name("sick.json").read_text().splitlines()
    assert all(json.loads(line.rstrip(",")) for line in lines[1:-1])
