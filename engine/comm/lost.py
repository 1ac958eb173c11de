"""The loss of a peer as an error of its own; torch-free, so that the driver can know it too."""

from engine.errors import RunFailed


class PeerLost(RunFailed):
    """Another rank is gone or silent: who raises this is a victim, not the cause."""


def lost(what: str, error: Exception) -> PeerLost:
    """A failed communication as an error that names who talked to whom."""
    return PeerLost(
        f"{what} failed: {first_line(error)}",
        remedy="look at the ranks it names; `msctl diagnose --job last` says which stopped first",
    )


def first_line(error: Exception) -> str:
    """The first line of a backend's message, which may run to pages, or the error's class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
