import itertools

import pytest

from engine.health.result import (
    CheckResult,
    NodeReport,
    bad,
    count,
    exit_code,
    npd_line,
    severest,
    skipped,
    worst,
)


def r(status, **more):
    return CheckResult(status=status, message=more.pop("message", status), check="a.b", **more)


def test_the_worst_never_turns_error_or_skip_into_ok():
    statuses = ("ok", "warn", "fail", "error", "skip")
    for pair in itertools.product(statuses, repeat=2):
        results = [r(s) for s in pair]
        if "fail" in pair:
            assert worst(results) == "fail"
        elif "error" in pair:
            assert worst(results) == "error"
        elif "warn" in pair:
            assert worst(results) == "warn"
    assert worst([r("skip"), r("skip")]) == "skip"
    assert worst([]) == "skip"


@pytest.mark.parametrize(
    ("statuses", "house", "nagios", "npd"),
    [
        (("ok", "skip"), 0, 0, 0),
        (("ok", "warn"), 0, 1, 0),
        (("warn", "fail", "error"), 4, 2, 1),
        (("ok", "error"), 4, 3, 2),
        (("skip",), 5, 3, 2),
        ((), 5, 3, 2),
    ],
)
def test_exit_codes_of_the_three_conventions(statuses, house, nagios, npd):
    results = [r(s) for s in statuses]
    assert [exit_code(results, c) for c in ("house", "nagios", "npd")] == [house, nagios, npd]


def test_the_line_for_schedulers_has_the_worst_first_and_fits():
    results = [r("warn", target="gpu1"), r("fail", target="gpu3", message="x" * 200), r("ok")]
    line = npd_line(results)
    assert line.startswith("a.b gpu3: xxx")
    assert line.endswith("(+1)")
    assert len(line) <= 80
    assert npd_line([r("ok"), r("skip")]) == "ok: 1 checks, 1 skipped"


def test_what_was_not_looked_at_is_grouped_by_reason():
    results = [
        r("skip", message="no GPU"),
        r("skip", message="no GPU"),
        r("skip", message="no card"),
    ]
    assert skipped(results) == [("no GPU", ["a.b", "a.b"]), ("no card", ["a.b"])]


def test_counts_and_severity():
    results = [r("fail", action="reset"), r("warn", action="watch"), r("fail", action="rma")]
    assert count(results)["fail"] == 2
    assert severest(results) == "rma"
    assert severest([]) == "none"
    assert [x.status for x in bad(results)] == ["fail", "fail", "warn"]
    report = NodeReport(
        node="n", machine="", profile="", level="", time_s=0, seconds=0, results=tuple(results)
    )
    assert report.status == "fail"
