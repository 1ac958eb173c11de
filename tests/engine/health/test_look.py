import errno
import tempfile

import pytest

from engine.errors import MissingError
from engine.health.look import (
    Look,
    Memory,
    check_folder,
    check_state,
    next_memory,
    read_memory,
    write_memory,
)
from engine.health.profile import Profile
from engine.health.recording import RecordedProbe, Recording


def look(before=None, uptime_s=7200.0):
    return Look(
        probe=RecordedProbe(Recording()), profile=Profile(), before=before, uptime_s=uptime_s
    )


def test_growth_needs_a_base_and_a_counter_that_did_not_go_back():
    before = Memory(boot_id="b", uptime_s=3600.0, counters={"p/x": 10})
    assert look(before).since("p/x", 30) == (20, 1.0)
    assert look(before).since("p/x", 5) is None
    assert look(before).since("p/y", 5) is None
    assert look().since("p/x", 5) is None


def test_two_looks_within_a_minute_do_not_make_a_rate_of_it():
    before = Memory(boot_id="b", uptime_s=7199.0, counters={"p/x": 0})
    assert look(before).since("p/x", 1) == (1, 60 / 3600)


def test_memory_is_read_back_and_that_of_another_boot_is_not(tmp_path):
    memory = Memory(boot_id="b", uptime_s=1.0, counters={"a": 1}, flaps_s={"p": (1.0,)})
    assert write_memory(tmp_path / "deep" / "s.json", memory)
    assert read_memory(tmp_path / "deep" / "s.json", boot_id="b") == memory
    assert read_memory(tmp_path / "deep" / "s.json", boot_id="c") is None


def test_a_torn_or_foreign_state_file_is_no_base(tmp_path):
    for data in (b"", b'{"boot_id":"b"', b"\xff\xfe", b'{"boot_id":"b","counters":{"a":-1}}'):
        (tmp_path / "s.json").write_bytes(data)
        assert read_memory(tmp_path / "s.json", boot_id="b") is None


def test_a_folder_that_is_none_is_an_error_before_anything_is_looked_at(tmp_path):
    check_folder(tmp_path)
    check_state(tmp_path / "made" / "here")
    assert list((tmp_path / "made" / "here").iterdir()) == []
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(MissingError, match="cannot hold counters"):
            check_state(wrong)
        with pytest.raises(MissingError, match="no such folder"):
            check_folder(wrong)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_sick_disk_is_left_for_the_checks_to_find(tmp_path, monkeypatch, number):
    def sick(**how):
        raise OSError(number, "sick")

    monkeypatch.setattr(tempfile, "TemporaryFile", sick)
    check_state(tmp_path)


def test_flaps_of_the_last_hour_are_kept():
    before = Memory(
        boot_id="b",
        uptime_s=7000.0,
        counters={"m/1/link_downed": 1},
        flaps_s={"m/1": (3500.0, 6900.0)},
    )
    memory = next_memory(look(before), "b", {"m/1/link_downed": 2})
    assert memory.flaps_s == {"m/1": (6900.0, 7200.0)}


def test_a_place_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert write_memory(tmp_path / "file" / "s.json", Memory()) is False
