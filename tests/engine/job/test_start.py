"""What is kept of a start comes back as it was."""

import msgspec

from engine.job.start import StartRecord


def test_it_comes_back_as_it_was():
    record = StartRecord(attempt=3, order=("a", "b"), until=40, skip=(7,))
    assert msgspec.json.decode(msgspec.json.encode(record), type=StartRecord) == record
