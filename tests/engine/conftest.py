from collections.abc import Iterator

import pytest

from tests.world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()
