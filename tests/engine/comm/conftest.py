"""A server for tests of one file, and the native store, built once."""

from functools import partial

import pytest

from engine.comm.embedded_redis import EmbeddedRedis
from engine.comm.resp import Client
from tests.engine.comm.forms import program


@pytest.fixture(scope="module", params=["redis", "valkey"])
def server(request):
    with EmbeddedRedis(program=program(request.param)) as running:
        yield running


@pytest.fixture
def redis(server):
    server.restart()
    Client(server.local).call(("FLUSHALL",))
    return server


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """Open a native store; about 20 s of a core, unless the library was built before."""
    from engine.comm.native_store import build, library_path, native_store

    known = library_path()
    library = known if known.is_file() else build(tmp_path_factory.mktemp("native"))
    return partial(native_store, library=library)
