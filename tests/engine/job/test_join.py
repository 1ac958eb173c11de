"""A node's name, and its way into the job."""

from pathlib import Path

import pytest

from engine.errors import MissingError
from engine.job.join import executor_task, node_name, wait_for_join
from engine.job.keeper import Join, write_join
from engine.spec.load import dump_recipe
from tests.engine.train.single import recipe


@pytest.mark.parametrize(
    ("env", "name"),
    [({}, "box"), ({"SLURMD_NODENAME": "n7"}, "n7"), ({"NODE_NAME": "pod-3"}, "pod-3"),
     ({"GROUP_RANK": "1"}, "box-1")],
)  # fmt: skip
def test_a_node_has_the_name_its_scheduler_gave_it(env, name):
    assert node_name(env, "box.cluster.example") == name


def test_the_way_in_is_a_file_for_its_owner_alone(tmp_path: Path):
    join = Join(redis="redis://h:1/0?password_file=/x", job="msctl:r")
    path = write_join(tmp_path, join)
    assert path.stat().st_mode & 0o777 == 0o600
    assert wait_for_join(tmp_path, 0.0) == join
    (tmp_path / "recipe.toml").write_text(dump_recipe(recipe(job={"nodes": 1, "beat_s": 0.25})))
    task = executor_task(tmp_path, "n7", join)
    assert (task.node, task.slots, task.beat_s, task.redis) == ("n7", 1, 0.25, join.redis)


def test_a_job_that_has_no_driver_yet_is_an_error_in_the_end(tmp_path: Path):
    with pytest.raises(MissingError, match="how to join"):
        wait_for_join(tmp_path, 0.0)
    (tmp_path / "join.json").write_bytes(b'{"redis": 3}')
    with pytest.raises(MissingError, match="how to join"):
        wait_for_join(tmp_path, 0.0)
