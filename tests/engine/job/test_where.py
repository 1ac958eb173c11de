"""Where nodes are: known places, what they need, what they would start."""

from pathlib import Path

import msgspec
import pytest

from engine.errors import RecipeError
from engine.job.place import LocalPlace
from engine.job.remote import RemotePlace
from engine.job.where import known, place_of, preview
from engine.spec.job import JobSpec
from engine.spec.layout import ParallelLayout
from engine.spec.places import KubernetesSpec
from engine.spec.presets import CLUSTERS
from engine.spec.recipe import Recipe
from tests.engine.train.single import recipe


def stored(store: str):
    one = recipe()
    return msgspec.structs.replace(one, train=msgspec.structs.replace(one.train, store=store))


def test_an_unknown_place_is_refused():
    assert known("slurm") == "slurm"
    with pytest.raises(RecipeError, match="no such place"):
        known("mesos")


def imaged(one: Recipe) -> Recipe:
    return msgspec.structs.replace(one, k8s=KubernetesSpec(image="registry.example/msctl:1"))


def test_places_elsewhere_need_a_redis():
    assert isinstance(place_of("local", stored("tcp")), LocalPlace)
    for where in ("slurm", "k8s", "join"):
        with pytest.raises(RecipeError, match=r"train\.store is tcp"):
            place_of(where, stored("tcp"))
        with pytest.raises(RecipeError, match=r"train\.store is tcp"):
            preview(where, stored("tcp"), Path("run"))
        assert isinstance(place_of(where, imaged(stored("redis"))), RemotePlace)


def test_pods_need_an_image():
    with pytest.raises(RecipeError, match=r"k8s\.image names no image"):
        place_of("k8s", stored("redis"))


def test_a_node_is_not_asked_for_more_devices_than_it_has(tmp_path: Path):
    wide = msgspec.structs.replace(
        stored("redis"), layout=ParallelLayout(dp=16), cluster=CLUSTERS["a100-nvl8"]
    )
    assert preview("slurm", wide, tmp_path), "ranks on CPUs may be as many as wanted"
    wide = msgspec.structs.replace(wide, train=msgspec.structs.replace(wide.train, device="cuda"))
    for start in (lambda: preview("slurm", wide, tmp_path), lambda: place_of("k8s", imaged(wide))):
        with pytest.raises(RecipeError, match=r"cluster\.gpus_per_node = 8") as caught:
            start()
        assert "--set job.nodes=2" in caught.value.remedy
    right = msgspec.structs.replace(wide, job=JobSpec(nodes=2))
    assert "--gres=gpu:8\n" in preview("slurm", right, tmp_path).text


def test_a_preview_starts_nothing(tmp_path: Path):
    one = stored("redis")
    assert "sbatch" not in preview("slurm", one, tmp_path).text.lower().split()[0]
    assert preview("slurm", one, tmp_path).text.startswith("#!/bin/sh\n")
    assert msgspec.json.decode(preview("k8s", imaged(one), tmp_path).text)["kind"] == "List"
    assert preview("join", one, tmp_path / "a b").text.endswith(f" '{tmp_path}/a b'\n")
    assert list(tmp_path.iterdir()) == []
