from collections.abc import Iterator

import pytest

from bench.ranks import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()
