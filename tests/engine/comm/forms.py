"""The forms of the store on Redis, by name, for tests that want them all."""

import pytest

from engine.comm.embedded_redis import _packaged, find_server
from engine.errors import MissingError


def program(kind):
    """The server to test against: Valkey's for `valkey`, else the first on this machine."""
    try:
        found = _packaged() if kind == "valkey" else find_server()
    except MissingError:
        found = None
    if not found:
        pytest.skip(f"no {kind} server on this machine")
    return found


def opened(request, form, url, **options):
    """A store in its Python form, or for `native` in the one in C++."""
    if form == "native":
        return request.getfixturevalue("native")(url, **options)
    from engine.comm.store import RedisStore

    return RedisStore(url, **options)
