"""Read files that others may have written: whole, but never more than is sensible."""

from pathlib import Path


class TooLarge(OSError):
    """A file that is larger than what is read of its kind."""


def read_bounded(path: Path, most: int) -> bytes:
    """A file's bytes. TooLarge beyond `most`, also for what has no size, such as a device."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TooLarge(f"larger than {most} bytes")
    return data
