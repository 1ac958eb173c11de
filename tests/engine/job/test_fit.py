"""What this machine can hold, before anything is started."""

import re
from pathlib import Path

import msgspec
import pytest
import torch

from engine.errors import CheckpointError, MissingError, RecipeError
from engine.job import fit
from engine.job.fit import check_machine, check_resume
from engine.spec.layout import ParallelLayout
from engine.spec.load import load_recipe
from engine.spec.presets import model_preset
from engine.spec.recipe import Recipe
from tests.engine.ckpt.state import dense, save
from tests.engine.train.single import recipe


def made(device: str = "cpu", **fields: object) -> Recipe:
    return msgspec.structs.replace(recipe(train={"device": device}), **fields)


def test_a_run_beyond_the_recipes_end_is_refused(tmp_path):
    one = recipe(checkpoint={"path": str(tmp_path / "kept")}, train={"steps": 6})
    check_resume(one, tmp_path, "auto", look=True)
    save(tmp_path / "kept", 7, 1, 1, dense(torch.float32))
    check_resume(one, tmp_path, "auto", look=True)  # no run of this folder
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(RecipeError, match=r"go on after step 7, but train\.steps = 6"):
        check_resume(one, tmp_path, "auto", look=False)
    check_resume(one, tmp_path, "never", look=False)
    check_resume(recipe(train={"steps": 7}), tmp_path, "auto", look=False)


def test_a_step_to_resume_is_looked_for_if_asked(tmp_path):
    one = recipe(checkpoint={"path": str(tmp_path / "kept")}, train={"steps": 6})
    save(tmp_path / "kept", 4, 1, 1, dense(torch.float32))
    check_resume(one, tmp_path, "4", look=True)
    check_resume(one, tmp_path, "5", look=False)
    with pytest.raises(CheckpointError, match="no committed checkpoint of step 5"):
        check_resume(one, tmp_path, "5", look=True)


def test_a_small_run_fits():
    check_machine(made())


@pytest.mark.parametrize(("gpus", "dp", "fits"), [(8, 8, True), (8, 9, False), (0, 1, False)])
def test_cuda_needs_a_device_per_rank(monkeypatch, gpus, dp, fits):
    monkeypatch.setattr(fit, "local_gpus", lambda: gpus)
    run = made("cuda", layout=ParallelLayout(dp=dp))
    if fits:
        check_machine(run)
        return
    with pytest.raises(
        MissingError, match=f"{dp} ranks? (is|are) needed, .* room for {gpus} CUDA"
    ) as e:
        check_machine(run)
    assert "--dry-run" in e.value.remedy


@pytest.mark.parametrize("gpus", [0, 2])
def test_auto_takes_gpus_where_there_are_some(monkeypatch, gpus):
    monkeypatch.setattr(fit, "local_gpus", lambda: gpus)
    monkeypatch.setattr(fit.os, "cpu_count", lambda: 1)
    run = made("auto", layout=ParallelLayout(dp=4))
    if gpus:
        with pytest.raises(MissingError, match="CUDA devices"):
            check_machine(run)
    else:
        check_machine(run)


@pytest.mark.parametrize("name", ["175b", "530b"])
def test_what_is_proposed_for_a_run_of_a_cluster_makes_a_run_of_one_rank(name):
    path = Path(fit.__file__).parents[2] / "recipes" / f"{name}.toml"
    with pytest.raises(MissingError) as caught:
        check_machine(load_recipe(path))
    sets = re.findall(r"--set (\S+)", caught.value.remedy)
    small = load_recipe(path, sets)
    assert (small.layout.world_size, small.job.nodes, small.job.spares) == (1, 1, 0)


def test_a_processor_holds_sixteen_ranks_a_core(monkeypatch):
    monkeypatch.setattr(fit.os, "cpu_count", lambda: 2)
    check_machine(made(layout=ParallelLayout(dp=32)))
    with pytest.raises(MissingError, match=r"33 ranks are .* for 32 ranks on its CPU"):
        check_machine(made(layout=ParallelLayout(dp=33)))


def test_a_model_larger_than_memory_is_refused_with_both_sizes():
    with pytest.raises(MissingError) as caught:
        check_machine(made(model=model_preset("175b")))
    assert "need about 2604 GiB" in caught.value.what  # 174.8e9 x 16 bytes
    assert "this machine has" in caught.value.what


def test_gpus_are_counted_by_their_device_files(monkeypatch, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia0a"):
        (tmp_path / name).touch()
    monkeypatch.setattr(fit, "Path", lambda _: tmp_path)
    assert fit.local_gpus() == 3
