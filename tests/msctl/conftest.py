import pytest


@pytest.fixture
def sample(monkeypatch):
    """Replace the commands by those of `sample.py`."""
    from tests.msctl.sample import ENTRIES

    monkeypatch.setattr("msctl.app.COMMANDS", ENTRIES)
