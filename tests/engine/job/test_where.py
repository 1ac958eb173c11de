"""Where nodes are: known places, what they need, what they would start."""

from pathlib import Path

import msgspec
import pytest

from engine.errors import RecipeError
from engine.job.place import LocalPlace
from engine.job.remote import RemotePlace
from engine.job.where import known, place_of, preview
from tests.engine.train.single import recipe


def stored(store: str):
    one = recipe()
    return msgspec.structs.replace(one, train=msgspec.structs.replace(one.train, store=store))


def test_an_unknown_place_is_refused():
    assert known("slurm") == "slurm"
    with pytest.raises(RecipeError, match="no such place"):
        known("mesos")


def test_places_elsewhere_need_a_redis():
    assert isinstance(place_of("local", stored("tcp")), LocalPlace)
    for where in ("slurm", "k8s", "join"):
        with pytest.raises(RecipeError, match=r"train\.store is tcp"):
            place_of(where, stored("tcp"))
        assert isinstance(place_of(where, stored("redis")), RemotePlace)


def test_a_preview_starts_nothing(tmp_path: Path):
    assert "sbatch" not in preview("slurm", recipe(), tmp_path).text.lower().split()[0]
    assert preview("slurm", recipe(), tmp_path).text.startswith("#!/bin/sh\n")
    assert msgspec.json.decode(preview("k8s", recipe(), tmp_path).text)["kind"] == "List"
    assert list(tmp_path.iterdir()) == []
