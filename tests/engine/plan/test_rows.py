from pathlib import Path

import pytest

from engine.errors import RecipeError
from engine.plan.profiles import fitted
from engine.plan.rows import case_of, read_rows, system_of

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
    assert "chunks" in case_of(ROWS["kor-22b-full"] | {"pp": "8", "vpp": "16"}, fitted())


@pytest.mark.parametrize("value", ["-4", "nan", "inf", "1e400", "many", "1e20"])
def test_hostile_numbers_are_refused(value):
    with pytest.raises(RecipeError) as caught:
        case_of(ROWS["kor-22b-full"] | {"iter_time_s": value}, fitted())
    assert "kor-22b-full: iter_time_s" in caught.value.what


def test_a_named_system_must_exist():
    row = ROWS["kor-22b-full"] | {"system": "fsdp"}
    assert case_of(row, fitted()).job.profile.name == "fsdp"
    with pytest.raises(RecipeError, match="slurmatron"):
        case_of(row | {"system": "slurmatron"}, fitted())


@pytest.mark.parametrize(
    ("row", "system"),
    [
        ({"zero_stage_or_dist_opt": "FSDP2 (ZeRO-3)", "tp": "1"}, "fsdp"),
        ({"attention": "TE/cuDNN fused", "tp": "1"}, "nemo"),
        ({"zero_stage_or_dist_opt": "ZeRO-3", "year": "2021", "tp": "1"}, "deepspeed-2021"),
        ({"overlap": "none (launch blocking)", "tp": "1"}, "megatron-deepspeed"),
        ({"attention": "flash", "tp": "1"}, "megatron-flash"),
        ({"attention": "full (unfused)", "tp": "1"}, "megatron-2021"),
    ],
)
def test_systems_are_recognised_by_what_rows_say(row, system):
    assert system_of(row) == system


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\xff\xfe\x00", b"id,gpus\n1,2\n"])
def test_tables_without_the_columns_are_refused(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(RecipeError) as caught:
        read_rows(path)
    assert caught.value.remedy


def test_a_missing_table_is_refused(tmp_path):
    with pytest.raises(RecipeError):
        read_rows(tmp_path / "absent.csv")
