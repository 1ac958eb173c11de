"""Records of incidents come back as they were; what cannot be read is left out."""

from pathlib import Path

import msgspec

from engine.job.incident import (
    Decision,
    Incident,
    Recovery,
    incident_folder,
    read_recoveries,
    write_recovery,
)


def test_records_come_back_oldest_first_and_are_renewed(tmp_path: Path):
    one, two = (
        Recovery(incident=Incident(number=n, kind="crash", what=f"fault {n}")) for n in (1, 2)
    )
    write_recovery(tmp_path, two)
    write_recovery(tmp_path, one)
    done = msgspec.structs.replace(
        one, decision=Decision(kind="restart", why="x"), stepped_s=3.5, steps_lost=2
    )
    write_recovery(tmp_path, done)
    assert read_recoveries(tmp_path) == [done, two]


def test_a_record_that_is_none_is_left_out(tmp_path: Path):
    folder = incident_folder(tmp_path, 1)
    folder.mkdir(parents=True)
    for data in (b"", b"{", b"[" * 5000, b"\xff"):
        (folder / "recovery.json").write_bytes(data)
        assert read_recoveries(tmp_path) == []
