from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import RecipeError
from engine.plan.profiles import fitted
from engine.plan.rows import case_of, read_rows
from engine.plan.validate import predict

TABLE = Path(__file__).with_name("runs.csv")
ROWS = {row["id"]: row for row in read_rows(TABLE)}


def test_a_row_becomes_a_job_with_named_assumptions():
    case = case_of(ROWS["ms-mlm-12288"], fitted())
    assert case.layouts[0].world_size == 12288
    assert case.job.profile.name == "megatron-2023"
    assert case.job.cluster.inter.bytes_per_s == 25e9
    assert {"micro-batch of 1", "no recomputation"} <= set(case.assumptions)


def test_the_paper_s_model_is_recognised():
    case = case_of(ROWS["ms-ms-12288"], fitted())
    assert case.job.model.block == "parallel"
    assert case.job.model.window == 768
    assert case.job.profile.overlap_tp


def test_what_cannot_be_predicted_says_why():
    assert "not modelled" in case_of(ROWS["tpu"], fitted())
    assert "not scored" in case_of(ROWS["moe"], fitted())
    assert case_of(ROWS["kor-22b-full"] | {"layers": ""}, fitted()) == "shape of the model unknown"
    assert "chunks" in case_of(
        ROWS["kor-22b-full"] | {"gpus": "64", "pp": "8", "vpp": "16"}, fitted()
    )


@pytest.mark.parametrize("value", ["-4", "nan", "inf", "1e400", "many", "1e20"])
def test_hostile_numbers_cost_one_row(value):
    reason = case_of(ROWS["kor-22b-full"] | {"iter_time_s": value}, fitted())
    assert reason.startswith("iter_time_s = ")


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"gpus": ""}, "gpus is missing"),
        ({"seq": "0"}, "seq is missing"),
        ({"gpu_model": ""}, "gpu_model is empty"),
        ({"layers": "2.5"}, "not a whole number"),
        ({"precision": "fp7"}, "precision = 'fp7'"),
        ({"tp": "64"}, "exceeds 8 devices"),
        ({"hidden": "abc"}, "hidden = 'abc'"),
    ],
)
def test_odd_cells_are_named(cells, says):
    assert says in case_of(ROWS["kor-22b-full"] | cells, fitted())


def test_a_dp_that_does_not_multiply_out_is_named():
    case = case_of(ROWS["kor-22b-full"] | {"dp": "3"}, fitted())
    assert case.layouts[0].world_size == 8
    assert any(note.startswith("dp of 1") for note in case.assumptions)


def test_a_named_system_must_exist():
    row = ROWS["kor-22b-full"] | {"system": "fsdp"}
    assert case_of(row, fitted()).job.profile.name == "fsdp"
    assert "slurmatron" in case_of(row | {"system": "slurmatron"}, fitted())


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\xff\xfe\x00", b""])
def test_tables_without_the_columns_are_refused(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(RecipeError) as caught:
        read_rows(path)
    assert caught.value.remedy


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(RecipeError):
        read_rows(tmp_path / "absent.csv")


CELLS = [
    "",
    "0",
    "-1",
    "7",
    "1e9",
    "nan",
    "abc",
    "1.5",
    "999999",
    "  8 ",
    "\x00",
    "100000000000000",
]


@pytest.mark.slow
@given(st.sampled_from(sorted(ROWS)), st.dictionaries(
    st.sampled_from(sorted(next(iter(ROWS.values())))), st.sampled_from(CELLS), max_size=4
))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_cell_costs_more_than_its_row(name, cells):
    case = case_of(ROWS[name] | cells | {"id": name}, fitted())
    if not isinstance(case, str) and case.measured_s > 0:
        assert 0 < predict(case)[0] < 1e15
