import os
import time

import pytest

from engine.errors import LayoutError, MissingError
from engine.health.look import Look
from engine.health.profile import Profile
from engine.health.recording import RecordedProbe, Recording
from engine.health.result import CheckResult
from engine.health.runner import run_check, run_here, run_isolated
from engine.health.suite import Check

LOOK = Look(probe=RecordedProbe(Recording()), profile=Profile(ignore=("x.ignored",)))


def look_of(hung):
    return LOOK


def check(name, function, *needs, deadline_s=5.0):
    return Check(name, "node", "passive", function, needs, deadline_s, "")


def well(look):
    return [CheckResult(status="ok", message="well", measured=1.5)]


def absent(look):
    raise MissingError("no such card", remedy="buy one")


def refused(look):
    raise LayoutError("bad shape", remedy="change it")


def buggy(look):
    raise ZeroDivisionError("oops")


def hang(look):
    time.sleep(600)


def die(look):
    os._exit(9)


@pytest.mark.slow
def test_what_finds_no_time_left_is_skipped_and_not_blamed():
    checks = [check("x.well", well), check("x.hang", hang, "load"), check("x.late", well, "load")]
    start = time.monotonic()
    ran = run_isolated(checks, look_of, budget_s=2.5)
    assert time.monotonic() - start < 20
    assert [(r.check, r.status) for r in ran.results] == [
        ("x.well", "ok"), ("x.hang", "skip"), ("x.late", "skip"),
    ]  # fmt: skip
    assert "no time left of the level's 2.5 s" in ran.results[2].message
    assert "--only x.late" in ran.results[2].remedy


def test_what_is_missing_is_skip_and_what_breaks_is_error():
    results = run_here(
        [
            check("x.well", well),
            check("x.absent", absent),
            check("x.refused", refused),
            check("x.bug", buggy),
        ],
        LOOK,
    )
    assert [(r.check, r.status) for r in results] == [
        ("x.well", "ok"),
        ("x.absent", "skip"),
        ("x.refused", "error"),
        ("x.bug", "error"),
    ]
    assert results[1].message == "no such card"
    assert "ZeroDivisionError" in results[3].message


def test_a_check_that_the_profile_ignores_is_not_run():
    (result,) = run_check(check("x.ignored", die), LOOK)
    assert (result.status, result.message) == ("skip", "left out by the profile")


@pytest.mark.multi
def test_isolated_checks_give_the_same_results_and_the_childs_state():
    checks = [check("x.well", well), check("x.absent", absent)]
    seen = []
    ran = run_isolated(checks, look_of, on_results=seen.extend, state=lambda look: b"counters")
    assert [r.status for r in ran.results] == ["ok", "skip"]
    assert ran.results[0].measured == 1.5
    assert ran.state == b"counters"
    assert tuple(seen) == ran.results


@pytest.mark.multi
def test_a_hung_check_is_error_at_its_deadline_and_spares_only_unrelated_ones():
    checks = [
        check("x.first", well, "nvml"),
        check("x.hung", hang, "nvml", deadline_s=0.3),
        check("x.same", well, "nvml"),
        check("x.other", well, "rdma"),
        check("x.free", well),
    ]
    start = time.monotonic()
    ran = run_isolated(checks, look_of)
    assert time.monotonic() - start < 3
    assert [(r.check, r.status) for r in ran.results] == [
        ("x.first", "ok"),
        ("x.hung", "error"),
        ("x.same", "error"),
        ("x.other", "ok"),
        ("x.free", "ok"),
    ]
    assert "0.3 s" in ran.results[1].message
    assert "nvml did not answer" in ran.results[2].message


@pytest.mark.multi
def test_a_check_that_kills_its_process_is_error_and_the_rest_go_on():
    ran = run_isolated([check("x.die", die), check("x.well", well)], look_of)
    assert [r.status for r in ran.results] == ["error", "ok"]


@pytest.mark.multi
def test_a_state_that_cannot_be_made_is_an_error_and_not_silence():
    def broken(look):
        raise TypeError("no")

    ran = run_isolated([check("x.well", well)], look_of, state=broken)
    assert [r.status for r in ran.results] == ["ok", "error"]
