"""What is kept of a start comes back as it was."""

from pathlib import Path

import msgspec
import pytest

from engine.job.driver import Driver, Watch
from engine.job.incident import Decision, Incident, Recovery, write_recovery
from engine.job.place import LocalPlace
from engine.job.start import StartRecord
from tests.engine.train.single import recipe


def test_it_comes_back_as_it_was():
    record = StartRecord(attempt=3, order=("a", "b"), until=40, skip=(7,))
    assert msgspec.json.decode(msgspec.json.encode(record), type=StartRecord) == record


class Remembering(LocalPlace):
    """A place that tells what an earlier driver left."""

    def __init__(self, record: StartRecord) -> None:
        super().__init__()
        self.record = record

    def recall(self) -> StartRecord | None:
        return self.record


@pytest.mark.parametrize("over", [False, True])
def test_incidents_count_for_the_next_driver_unless_the_invocation_was_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool
):
    monkeypatch.setattr(Driver, "pump", lambda *_: False)
    restart = Decision(kind="restart", why="a rank died")
    for number in (1, 2, 3, 4):
        incident = Incident(number=number, kind="crash", what=f"fault {number}")
        decision = None if number == 4 else restart  # the driver died while it dealt with this one
        write_recovery(tmp_path, Recovery(incident=incident, decision=decision))
    record = StartRecord(attempt=5, order=("node-0",), skip=(7,), incidents=1, over=over)
    driver = Driver(recipe(), tmp_path, Watch(), place=Remembering(record))
    assert not driver._adopts(), "node-0 does not come"
    assert (driver.attempt, driver.skip) == (5, (7,))
    known = [] if over else [2, 3, 4]
    assert [one.incident.number for one in driver.recoveries] == known
    assert [one.number for one in driver.recoverer.history] == known[:2]
