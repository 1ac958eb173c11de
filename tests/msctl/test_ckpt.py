import json
import subprocess
import sys

import pytest
import torch

from tests.engine.ckpt.state import dense, save
from tests.engine.ckpt.test_hf_export import LLAMA, checkpoint, weights


@pytest.fixture
def run(tmp_path):
    for step in (10, 20):
        save(tmp_path / "ckpt", step, 2, 1, dense(torch.float32, step))
    return tmp_path


def test_list_in_a_pipe_is_tsv_and_json_is_the_noun(msctl, run):
    ended = msctl("ckpt", "list", str(run))
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert ended.code == 0
    assert rows[0][:2] == ["name", "step"]
    assert [row[5] for row in rows[1:]] == ["committed", "committed"]
    infos = json.loads(msctl("--json", "ckpt", "list", str(run)).out)
    assert [info["step"] for info in infos] == [10, 20]
    assert infos[0]["layout"]["tp"] == 1


def test_show_lists_tensors_shards_and_differences(msctl, run):
    out = msctl("ckpt", "show", str(run)).out
    assert "layers.0.o.weight\t8x16\tF32\t3\t6\t0,1" in out
    shards = msctl("ckpt", "show", str(run), "--tensor", "embed.weight").out.splitlines()
    assert shards[1].split("\t")[:3] == ["param", "[0:6, 0:8]", "0:48"]
    a, b = (f"{run}/ckpt/step-000000{step}" for step in (10, 20))
    differences = json.loads(msctl("ckpt", "show", a, "--diff", b, "--json").out)
    assert [d["what"] for d in differences[:2]] == ["step", "embed.weight (param)"]
    assert json.loads(msctl("ckpt", "show", a, "--diff", a, "--json").out) == []


def test_verify_ends_with_4_on_damage_and_names_it(msctl, run):
    assert msctl("ckpt", "verify", str(run)).code == 0
    path = run / "ckpt/step-00000020/rank-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 16
    path.write_bytes(data)
    ended = msctl("ckpt", "verify", str(run))
    assert ended.code == 4
    assert "rank-00001.safetensors\t0\tdigest differs" in ended.out
    assert "embed.weight (param)" in ended.out
    assert "hint: resume from an older checkpoint" in ended.err


def test_reshard_writes_a_loadable_copy(msctl, run, tmp_path):
    out = str(tmp_path / "new")
    ended = msctl("ckpt", "reshard", str(run), "--layout", "tp=4", "--out", out, "--memory", "8MiB")
    assert ended.code == 0
    assert f"wrote {out}/step-00000020" in ended.err
    assert "tp=4 pp=1" in msctl("ckpt", "list", out).out
    assert msctl("ckpt", "verify", out).code == 0
    same = json.loads(msctl("ckpt", "show", str(run), "--diff", out, "--json").out)
    assert [d["what"] for d in same] == ["layout.tp"]
    wrong = msctl("ckpt", "reshard", str(run), "--layout", "tp=five", "--out", out)
    assert (wrong.code, "AXIS=N" in wrong.err) == (3, True)


@pytest.mark.parametrize("command", [["list"], ["prune", "--yes"]])
def test_a_place_that_does_not_exist_is_no_empty_one(msctl, run, tmp_path, command):
    name, *options = command
    (tmp_path / "a.toml").touch()
    (tmp_path / "empty").mkdir()
    for where, said in (
        (str(tmp_path / "nope"), "nope: no such folder"),
        (str(tmp_path / "a.toml"), "a.toml is a file"),
        ("", "no place is named"),
        ("memory://test_ckpt/nope", "memory://test_ckpt/nope: nothing lies there"),
    ):
        ended = msctl("ckpt", name, where, *options)
        assert (ended.code, ended.out) == (3, ""), ended.err
        assert said in ended.err
    assert msctl("ckpt", name, str(tmp_path / "empty"), *options).code == 0
    assert msctl("ckpt", name, str(run), *options).code == 0


def test_a_tensor_that_is_not_there_is_an_error_with_names_like_it(msctl, run):
    ended = msctl("ckpt", "show", str(run), "--tensor", "layer.0.o.weight")
    assert (ended.code, ended.out) == (3, "")
    assert "no tensor is called 'layer.0.o.weight'" in ended.err
    assert "did you mean layers.0.o.weight" in ended.err
    other = msctl("ckpt", "show", str(run), "--tensor", "zzz")
    assert "choose one of `msctl ckpt show" in other.err


def test_an_option_that_dcp_does_not_have_is_refused(msctl, run, tmp_path):
    for dtype in ("BF16", "ZZZ"):
        out = str(tmp_path / "dcp")
        ended = msctl("ckpt", "export", str(run), "--out", out, "--to", "dcp", "--dtype", dtype)
        assert (ended.code, f"--dtype {dtype}: an export to DCP" in ended.err) == (3, True)
    assert not (tmp_path / "dcp").exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--memory", "foo"], "memory 'foo' is no amount of bytes"),
        (["--memory", "nan"], "memory 'nan' is no amount of bytes"),
        (["--memory=-1"], "memory '-1' is no amount of bytes"),
        (["--memory", "1k"], "memory = 1000 bytes is too little"),
        (["--layout", "tp=0"], "layout.tp = 0 is not at least 1"),
        (["--layout", "zero=7"], "layout.zero = 7 is not 0, 1 or 2"),
    ],
)
def test_what_reshard_cannot_use_is_said_first(msctl, run, tmp_path, option, said, more):
    out = tmp_path / "new"
    ended = msctl(
        "ckpt", "reshard", str(run), "--layout", "dp=2", "--out", str(out), *option, *more
    )
    assert (ended.code, ended.out) == (3, "")
    assert said in ended.err
    assert not out.exists()


def test_prune_is_a_dry_run_without_yes(msctl, run):
    ended = msctl("ckpt", "prune", str(run), "--keep", "1")
    assert ended.out.splitlines()[1].startswith("remove\tstep-00000010\tcommitted")
    assert "--yes" in ended.err
    assert len(list((run / "ckpt").iterdir())) == 2
    assert msctl("ckpt", "prune", str(run), "--keep", "1", "--yes").code == 0
    assert [p.name for p in (run / "ckpt").iterdir()] == ["step-00000020"]


def test_export_and_import_round_trip(msctl, tmp_path):
    a, hf, b = (str(tmp_path / name) for name in ("a", "hf", "b"))
    checkpoint(tmp_path / "a", LLAMA, weights(LLAMA))
    ended = msctl("ckpt", "export", a, "--out", hf, "--dtype", "BF16")
    assert ended.out.splitlines()[1].split("\t")[1:4] == ["llama", "21", "1"]
    assert msctl("ckpt", "import", hf, "--out", b, "--json").code == 0
    assert "step-00000000\t0" in msctl("ckpt", "list", b).out
    again = msctl("ckpt", "export", a, "--out", hf)
    assert (again.code, "already holds a model" in again.err) == (3, True)


def test_an_absent_checkpoint_is_an_input_error(msctl, tmp_path):
    ended = msctl("ckpt", "verify", str(tmp_path / "none"), "--json")
    assert ended.code == 3
    assert "no committed checkpoint" in json.loads(ended.out)["error"]["what"]


@pytest.mark.multi
def test_the_commands_leave_torch_unimported(run):
    code = (
        "import sys; from msctl.app import main; "
        f"run = {str(run)!r}; names = 'list', 'show', 'verify', 'prune'; "
        "codes = [main(['ckpt', name, run, '-q']) for name in names]; "
        "assert codes == [0, 0, 0, 0], codes; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
