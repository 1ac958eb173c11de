"""Step times that jump: found from numbers alone, in the units of any trainer."""

import pytest

from engine.diagnose.logs.series import find_jumps, find_shift


def lines(times, form="step {n} loss 2.1 time {t}", first=1):
    return [(first + n, form.format(n=n, t=t)) for n, t in enumerate(times)]


TURNS = [9.0, 1.0, 1.0, 6.0, 1.0, 1.0, 6.0, 1.0, 1.0, 6.0]
"""The first step is warm-up; of the nine that follow three are slow, six times as long."""


def test_quick_and_slow_steps_that_take_turns():
    jump = find_jumps(lines(TURNS, first=40))
    assert (jump.line, jump.factor, jump.share, jump.data) == (43, 6.0, pytest.approx(1 / 3), False)


@pytest.mark.parametrize(
    "form",
    [
        "iteration {n}/ 500 | elapsed time per iteration (ms): {t} | lm loss: 2.0",
        "step {n}: step_time={t}s", "iter_time: {t}", "[{n}] time/step: {t}", "batch_time | {t} ",
        "step took {t} s", "{n} sec/step = {t}", "Iteration {n} Time {t}", "{n} steptime:{t}",
    ],
)  # fmt: skip
def test_the_forms_in_which_trainers_print_a_time(form):
    assert find_jumps(lines(TURNS, form)).factor == 6.0


def test_lines_without_a_time_in_between_change_nothing():
    mixed = [row for n, t in enumerate(TURNS) for row in ((2 * n, f"time {t}"), (2 * n + 1, "ok"))]
    assert find_jumps(mixed).line == 6


def test_a_time_for_data_that_makes_up_the_slow_steps():
    rows = lines(TURNS, "time {t} ")
    data = [
        (n, f"{text} data_time 0.1" if "1.0" in text else f"{text} data_time 5.5")
        for n, text in rows
    ]
    assert find_jumps(data).data
    less = [(n, text.replace("5.5", "2.5")) for n, text in data]
    assert not find_jumps(less).data


@pytest.mark.parametrize(
    "times",
    [
        [], [1.0] * 5, [1.0] * 50, [1.0, 2.9] * 10, [1.0, 1, 1, 9, 9],  # too few, equal, too little
        [1.0] * 20 + [9.0], [1.0] * 40 + [9.0] * 3,  # one jump, or rarer than one in ten
        [9.0] * 20 + [1.0] * 5,  # the slow ones are the usual ones
        [0.0] * 9,
    ],
)  # fmt: skip
def test_what_is_no_alternation(times):
    assert find_jumps(lines(times)) is None


def test_six_times_are_the_fewest_and_one_in_ten_the_rarest():
    assert find_jumps(lines([1.0, 1, 9, 1, 9, 1])) is not None
    assert find_jumps(lines([1.0, 1, 9, 1, 9])) is None
    assert find_jumps(lines([1.0] * 19 + [9.0] * 2)) is not None


def test_zeros_do_not_divide():
    jump = find_jumps(lines([0, 0, 0, 0, 5.0, 0, 5.0, 0, 0]))
    assert jump.factor == pytest.approx(5.0 / 1e-9)


def test_the_first_slow_step_after_a_quick_one_shows_the_turns():
    assert find_jumps(lines([67.0, 48, 4, 44, 4, 43, 4, 45, 4])).line == 4


def test_a_first_step_that_waited_for_data_is_no_warm_up():
    forms = ["Time {t} (1) Data {t} (1)"] * 8
    times = [276.0, 0.3, 264.0, 0.3, 275.0, 0.3, 264.0, 0.3]
    rows = [(n + 1, f.format(t=t)) for n, (f, t) in enumerate(zip(forms, times, strict=True))]
    assert find_jumps(rows).line == 1


def test_a_step_time_that_doubles_and_stays():
    shift = find_shift(lines([50.0, 30, 31, 30, 32, 105, 100, 102, 101]))
    assert (shift.line, shift.factor) == (6, pytest.approx(101.5 / 30.5))


@pytest.mark.parametrize(
    "times",
    [
        [], [30.0] * 20, [50.0, 30, 31, 30, 32, 105, 100, 102],  # too few
        [50.0, 30, 31, 30, 32, 105, 100, 102, 101, 30],  # it recovered
        [50.0, 30, 31, 30, 32, 59, 58, 57, 59],  # not twice as long
        [50.0, 0, 0, 0, 0, 1, 1, 1, 1],
    ],
)  # fmt: skip
def test_what_is_no_shift(times):
    assert find_shift(lines(times)) is None
