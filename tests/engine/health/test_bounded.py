from pathlib import Path

import pytest

from engine.health.bounded import TooLarge, read_bounded


def test_a_file_up_to_the_limit_is_read_whole(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(TooLarge, match="larger than 4 bytes"):
        read_bounded(path, 4)


def test_an_endless_device_ends():
    with pytest.raises(TooLarge):
        read_bounded(Path("/dev/zero"), 1000)
