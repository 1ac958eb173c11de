import json

import pytest

from engine.diagnose.foreign import Inputs, diagnose_foreign
from engine.diagnose.readers.files import FileFault
from engine.diagnose.readers.ras import read_ras

TEXT = """
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Warnings
========

  #0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  {first}

INCOMPLETE
  Process 3487984 on node 10.0.0.13 managing GPU 5
"""
RANK = "  Rank {r} -- GPU {r} managed by process 48{r} on node 10.0.0.10"


def report(tmp_path, first):
    path = tmp_path / "ras.txt"
    path.write_text(TEXT.replace("{first}", first))
    return path


def test_the_minority_that_is_behind_is_named(tmp_path):
    first = (
        "30 ranks have launched up to operation 66\n  2 ranks have launched up to operation 65\n"
    )
    first += "\n".join(RANK.format(r=r) for r in (3, 9))
    ras = read_ras(report(tmp_path, first))
    assert ras.lags[0].behind == (3, 9)
    assert ras.dead == (("10.0.0.13", "5", ras.dead[0][2]),)


def test_a_minority_that_is_ahead_is_not_blamed(tmp_path):
    """RAS lists the smaller side, here the one that went on: the others hold it up."""
    first = (
        "31 ranks have launched up to operation 70\n  1 ranks have launched up to operation 71\n"
    )
    ras = read_ras(report(tmp_path, first + RANK.format(r=7)))
    assert 7 not in ras.lags[0].behind
    assert ras.lags[0].ahead == (7,)


def test_the_json_form(tmp_path):
    ranks = [{"rank": r, "collective_counts": {"AllReduce": 9 if r == 4 else 12}} for r in range(8)]
    path = tmp_path / "ras.json"
    path.write_text(json.dumps({"communicators": [{"hash": "ab", "ranks": ranks}]}))
    verdict = diagnose_foreign(Inputs(ras=path)).verdict
    assert (verdict.category, verdict.ranks) == ("rank_blocked", (4,))


def test_all_that_are_not_listed_as_ahead_are_behind_in_a_world_that_can_be(tmp_path):
    first = "3 ranks have launched up to operation 70\n  1 ranks have launched up to operation 71\n"
    path = report(tmp_path, first + RANK.format(r=7))
    text = path.read_text()
    assert len(read_ras(path).lags[0].behind) == 31
    path.write_text(text.replace("  32        32 ", " 9999999   32 "))
    assert read_ras(path).lags[0].behind == ()
    path.write_text(text.replace("operation 71", "operation " + "7" * 5000))
    assert read_ras(path).lags == ()


@pytest.mark.parametrize(
    "text",
    [
        "", "nothing of the kind", "{", "[1", '{"ranks": [{"rank": 1, "op_count": "many"}]}',
        '{"ranks": [{}, 3]}', '{"ranks": [{}, null]}', '{"missing": 5}',
        '{"ranks": [{"rank": []}, 1]}',
        '{"ranks": [{"rank": {}, "op_count": 1}]}', '{"a":' * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_report_is_a_fault(tmp_path, text):
    path = tmp_path / "ras.json"
    path.write_text(text)
    with pytest.raises(FileFault):
        read_ras(path)
