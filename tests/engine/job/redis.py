"""A real Redis for the tests of this folder; skipped where there is none."""

from collections.abc import Iterator

import pytest

from engine.comm.embedded_redis import EmbeddedRedis, find_server
from engine.comm.resp import Client, parse_url
from engine.errors import MissingError


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    try:
        find_server()
    except MissingError as error:
        pytest.skip(error.what)
    with EmbeddedRedis() as running:
        yield running


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[Client]:
    made = Client(parse_url(server.url), patience_s=5.0)
    yield made
    made.close()
