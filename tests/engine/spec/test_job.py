"""The [job] section: its bounds."""

import msgspec
import pytest

from engine.spec.job import JobSpec


def test_a_node_is_lost_only_after_several_beats_were_missed():
    job = JobSpec()
    assert job.lost_s >= 3 * job.beat_s
    assert job.grace_s > job.lost_s


@pytest.mark.parametrize(
    "wrong", [{"nodes": 0}, {"spares": -1}, {"without_spare": "pray"}, {"beat_s": 0.0},
              {"metrics_port": 70000}, {"bad_numbers": "ignore"}],
)  # fmt: skip
def test_nonsense_is_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, JobSpec)
