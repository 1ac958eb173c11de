"""A log that no rule knows is not healthy if it ends with a complaint."""

import pytest

from engine.diagnose.logs.claims import source_of
from engine.diagnose.logs.ends import last_words
from engine.diagnose.logs.scan import Scanner

STEP = "iteration 7/ 50 | lm loss: 2.1\n"


def words(root, **logs):
    for name, text in logs.items():
        (root / f"{name}.log").write_text(text)
    return last_words([source_of(Scanner().scan(p), root) for p in sorted(root.glob("*.log"))])


@pytest.mark.parametrize(
    "line",
    ["12:00:01 ERROR quux: the frob has gone away", "[rank5]: FATAL quux",
     "F1130 11:02:03.4 quux.cc:7] frob", "quux: worker died", "the actor crashed unexpectedly"],
)  # fmt: skip
def test_a_complaint_at_the_end_is_shown_and_not_trusted(tmp_path, line):
    (finding,) = words(tmp_path, job=f"{STEP}{line}\nbye\n")
    assert (finding.category, finding.confidence) == ("crash", 0.35)
    assert (finding.evidence[0].line, finding.evidence[0].text) == (2, line)


@pytest.mark.parametrize(
    "line",
    ["0 ERROR lines", "no ERROR", "ERROR: None", "if ERROR appears see the documentation",
     "an error of the mean", "12:00:01 INFO done"],
)  # fmt: skip
def test_what_only_sounds_so_is_none(tmp_path, line):
    assert words(tmp_path, job=f"{STEP}{line}\n") == []


def test_steps_after_a_complaint_make_it_past(tmp_path):
    assert words(tmp_path, job=f"ERROR quux\n{STEP}") == []


def test_the_first_of_several_and_whose_it_is(tmp_path):
    (finding,) = words(tmp_path, rank_1=STEP, rank_2=f"{STEP}ERROR quux\nERROR late\n", rank_3=STEP)
    assert (finding.ranks, finding.evidence[0].line) == ((2,), 2)


def test_what_all_end_with_names_nobody(tmp_path):
    (finding,) = words(tmp_path, **{f"rank_{r}": "ERROR quux\n" for r in range(17)})
    assert finding.ranks == ()


def test_a_kernel_log_is_no_log_of_a_job(tmp_path):
    assert words(tmp_path, dmesg="quux died\n") == []
