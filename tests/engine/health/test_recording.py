import pytest

from engine.errors import MissingError, TraceError
from engine.health.node import Wish, revisit
from engine.health.recording import RecordedProbe, TeeProbe, read_recording
from engine.health.result import bad
from tests.engine.health.machines import machine


def test_folders_follow_from_files():
    recording, _ = machine("h100")
    probe = RecordedProbe(recording)
    assert probe.names("/sys/class/infiniband") == tuple(f"mlx5_{i}" for i in range(8))
    assert probe.names("/nowhere") == ()
    assert probe.read("/nowhere") is None


def test_what_was_asked_of_a_machine_gives_the_same_verdict_again():
    change = {"gpus": {"3": {"pcie_width": 8}}, "rnics": {"mlx5_1": {"state": "1: DOWN"}}}
    recording, _ = machine("h100", change)
    tee = TeeProbe(RecordedProbe(recording))
    from engine.health.look import Look
    from engine.health.profile import builtin_profiles, choose
    from engine.health.runner import run_here
    from engine.health.suite import CHECKS

    passive = [c for c in CHECKS if c.level == "passive"]
    look = Look(probe=tee, profile=choose(builtin_profiles(), recording.gpus), uptime_s=5e5)
    first = run_here(passive, look)
    again = revisit(tee.recording(), Wish())

    def facts(results):
        return [(r.check, r.target, r.status, r.message) for r in results]

    assert facts(bad(first)) == facts(bad(again.results))
    assert facts(first) == facts(again.results)


def test_absent_gpus_and_logs_are_missing_and_not_empty():
    probe = RecordedProbe(machine("cpu")[0])
    with pytest.raises(MissingError, match="NVML"):
        probe.gpus()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": 3}', '{"surprise": 1}', '{"files": {"/tmp/x": "y"}}']
)
def test_what_is_no_recording_is_refused(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(TraceError, match="not a recording"):
        read_recording(path)
