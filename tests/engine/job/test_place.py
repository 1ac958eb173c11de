"""Executors on this machine: they come, are vouched for while they run, and end with the place."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.health.heartbeat import decode_beat
from engine.job.place import LocalPlace
from engine.spec.job import JobSpec
from engine.spec.load import dump_recipe
from tests.engine.train.single import recipe

pytestmark = pytest.mark.multi


def wait_until(what: Callable[[], object], *, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_nodes_come_are_vouched_for_and_end(tmp_path: Path):
    made = msgspec.structs.replace(recipe(), job=JobSpec(nodes=1, spares=1))
    (tmp_path / "recipe.toml").write_text(dump_recipe(made))
    place = LocalPlace()
    with place.store(made, tmp_path):
        nodes = place.open(made, tmp_path)
        assert [node.name for node in nodes] == ["node-0", "node-1"]
        for node in nodes:
            place.wait([node.link], 60.0)
            assert decode_beat(node.link.messages()[0]).node == node.name
        first, second = (place.pid(node.name) for node in nodes)
        assert place.vouches(nodes[0])
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: not place.vouches(nodes[0]))
        place.evict(nodes[0], "it is stopped")
        assert place.pid("node-0") == 0
        assert place.start_node().name == "node-2"
        nodes[1].link.close()
        wait_until(lambda: not Path(f"/proc/{second}").exists() or not place.vouches(nodes[1]))
        place.close()
    assert place.recall() is None
