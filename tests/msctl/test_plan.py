import json
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[1] / "engine" / "plan" / "runs.csv"
HEAD = ("--model", "13b", "--gpus", "64", "--top", "3")


def test_the_table_has_a_row_a_candidate_and_names_its_convention(msctl):
    ended = msctl("plan", *HEAD)
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert ended.code == 0
    assert rows[0][:5] == ["rank", "tp", "pp", "vpp", "dp"]
    assert len(rows) == 4
    assert "MFU counts model FLOPs" in ended.err
    assert "assumed: cluster a100-nvl8" in ended.err


def test_json_has_the_promised_names(msctl):
    document = json.loads(msctl("plan", *HEAD, "--json").out)
    best = document["candidates"][0]
    assert {"tp", "pp", "vpp", "dp"} <= set(best["layout"])
    assert {"step_s", "mfu", "bubble", "memory_bytes"} <= set(best)
    assert set(best["exposed"]) == {"tp", "pp", "dp"}


def test_no_layout_is_a_verdict_with_reasons(msctl):
    ended = msctl("plan", "--model", "175b", "--gpus", "8")
    assert ended.code == 4
    assert "memory" in ended.out


def test_explanation_budget_and_files(msctl, tmp_path):
    trace, plot = tmp_path / "t.json", tmp_path / "p.svg"
    ended = msctl("plan", *HEAD, "--explain", "--tokens", "1e12", "--schedule",
                  "--trace", str(trace), "--plot", str(plot))  # fmt: skip
    assert "# from the peak to the MFU of rank 1" in ended.out
    assert "GPU-hours" in ended.out
    assert "stage 0" in ended.out
    assert json.loads(trace.read_text())["traceEvents"]
    assert plot.read_text().startswith("<svg")


@pytest.mark.slow
def test_validation_scores_by_group_and_names_assumptions(msctl):
    ended = msctl("plan", "--validate", str(TABLE))
    assert "korthikanti\t6\t" in ended.out
    document = json.loads(msctl("plan", "--validate", str(TABLE), "--json").out)
    assert set(document["summary"]) >= {"mape", "rows"}
    row = document["rows"][0]
    assert {"id", "predicted_s", "measured_s", "assumptions"} <= set(row)


def test_the_paper_s_ladder(msctl):
    out = msctl("plan", "--ablate").out
    assert out.splitlines()[-1].startswith("LAMB, batch x3\t65.3 %")


@pytest.mark.slow
def test_goodput_exhaustive_and_emit(msctl):
    assert "effective training time" in msctl("plan", "--goodput", "--gpus", "12288").out
    assert "combinations" in msctl("plan", *HEAD, "--exhaustive").err
    text = msctl("plan", "--model", "175b", "--gpus", "1024", "--emit", "megatron").out
    assert "--tensor-model-parallel-size" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "gpt-5"), "neither a preset nor a file"),
        (("--set", "layout.tp=x"), "layout.tp=x"),
        (("--cluster", "abacus"), "abacus"),
        (("--emit", "pdf"), "pdf"),
        (("--emit", "recipe", "--precision", "fp16"), "fp16"),
    ],
)
def test_wrong_input_ends_with_3_and_a_hint(msctl, words, says):
    ended = msctl("plan", "--gpus", "64", *words)
    assert ended.code == 3
    assert says in ended.err
    assert "hint: " in ended.err


def test_a_table_that_is_not_there_ends_with_3(msctl):
    ended = msctl("plan", "--validate", "absent.csv")
    assert ended.code == 3
    assert "absent.csv" in ended.err


@pytest.mark.parametrize("option", ["--tokens", "--price", "--days"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
def test_a_number_that_is_none_is_a_wrong_command_line(msctl, option, value):
    ended = msctl("plan", "--model", "13b", f"{option}={value}")
    assert ended.code == 2
    assert option in ended.err


def test_more_devices_than_a_recipe_may_have_are_refused(msctl):
    ended = msctl("plan", "--model", "13b", "--gpus", "4194305")
    assert ended.code == 3
    assert "--gpus 4194305 is beyond the limit of 4194304 devices" in ended.err


@pytest.mark.multi
def test_the_whole_process_imports_no_torch():
    code = (
        "import sys; from msctl.app import main; "
        "code = main(['plan', '--model', '175b', '--gpus', '12288', '-q']); "
        "sys.exit(code or 10 * ('torch' in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode == 0


@pytest.mark.parametrize(
    "words",
    [("base.toml", "--model", "175b"), ("--days", "3"), ("--goodput", "--explain"),
     ("--out", "foo.toml"), ("--validate", "x.csv", "--gpus", "4")],
)  # fmt: skip
def test_an_option_that_would_be_ignored_is_a_wrong_command_line(msctl, words):
    ended = msctl("plan", *words)
    assert ended.code == 2
    assert "hint: see what is accepted with `msctl plan --help`" in ended.err


def test_what_is_emitted_can_be_started_on_slurm(msctl, tmp_path):
    path = tmp_path / "planned.toml"
    path.write_text(msctl("plan", *HEAD, "--emit", "recipe").out)
    shown = msctl("train", str(path), "--on", "slurm", "--dry-run", "--runs", str(tmp_path)).out
    assert "#SBATCH --array=0-7\n" in shown
    assert "#SBATCH --gres=gpu:8\n" in shown
    assert msctl("train", str(path), "--dry-run", "--runs", str(tmp_path)).code == 0


def test_goodput_of_simulated_days_is_the_drivers_own_policy(msctl):
    ended = msctl(
        "plan", "--model", "175b", "--gpus", "12288", "--goodput", "--days", "5", "--json"
    )
    found = json.loads(ended.out)
    assert ended.code == 0
    assert found["days"] >= 5
    assert 0.9 < found["effective"] < 1
