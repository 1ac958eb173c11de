"""Options of `msctl plan` that go together, and those that would do nothing."""

import pytest
import typer

from msctl.commands.plan_options import ANSWERS, check_options


@pytest.mark.parametrize(
    "given",
    ["", "recipe gpus cluster top explain schedule trace plot tokens price sets",
     "model emit exhaustive tokens top precision", "model exhaustive top system",
     "goodput gpus", "goodput days price model", "calibrate out cluster", "validate", "ablate"],
)  # fmt: skip
def test_options_that_go_together(given):
    check_options(set(given.split()), ())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("recipe model", "RECIPE and --model both"),
        ("days", "--days does nothing without --goodput"),
        ("out", "--out does nothing without --calibrate"),
        ("price", "--price does nothing without --tokens or --days"),
        ("goodput explain", "--explain: not used by --goodput"),
        ("goodput exhaustive", "--goodput: not used by --exhaustive"),
        ("emit goodput", "--goodput: not used by --emit"),
        ("emit plot trace", "--plot, --trace: not used by --emit"),
        ("exhaustive tokens", "--tokens: not used by --exhaustive"),
        ("ablate sets gpus", "--gpus, --set: not used by --ablate"),
        ("validate calibrate", "--calibrate: not used by --validate"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(given, says):
    with pytest.raises(typer.BadParameter) as caught:
        check_options(set(given.split()), ())
    assert says in str(caught.value)


def test_times_of_failures_belong_to_the_formula():
    sets = ("goodput.node_mtbf_h=100",)
    check_options({"goodput", "sets"}, sets)
    for given in ({"sets"}, {"goodput", "days", "sets"}):
        with pytest.raises(typer.BadParameter, match="node_mtbf_h"):
            check_options(given, sets)


def test_every_answer_is_an_option_of_the_command():
    import inspect

    from msctl.commands.plan import plan

    known = set(inspect.signature(plan).parameters)
    assert {name for uses in ANSWERS.values() for name in uses} | set(ANSWERS) <= known
