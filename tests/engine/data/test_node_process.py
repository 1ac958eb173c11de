import os
import signal
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.data.loader import open_loaders
from engine.data.node_loader import open_node_loaders
from engine.data.node_process import NodeProcess, NodeTask
from engine.data.samples import open_samples
from engine.errors import RecipeError, RunFailed
from engine.spec.load import dump_recipe
from tests.engine.data.files import recipe, spec, write_jsonl

pytestmark = pytest.mark.multi

STEPS = "tests.engine.data.node_case:steps_of_rank"


@pytest.fixture
def asked(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [f"text number {i} " * 9 for i in range(300)])
    data = spec(path, validation=0.2, cache=str(tmp_path / "cache"))
    return recipe(data, seq=32, global_batch=8, dp=4, eval_batches=2)


def started(asked, folder, ranks, **keys):
    path = folder / f"recipe-{asked.layout.dp}.toml"
    path.write_text(dump_recipe(asked))
    task = NodeTask(recipe=str(path), replicas=tuple(range(asked.layout.dp)), ranks=ranks, **keys)
    return path, NodeProcess(task, log_file=folder / "log" / "data.log")


def ended(process, deadline_s=20):
    end = time.monotonic() + deadline_s
    while process.code is None and time.monotonic() < end:
        time.sleep(0.01)
    return process.code


def test_eight_ranks_read_everything_once_and_go_on_with_another_layout(world, asked, tmp_path):
    """Two ranks share each of four replicas; then four ranks go on with two replicas."""
    open_samples(asked)
    found: dict[int, tuple[list[int], int]] = {}
    results = []
    for dp, ranks, first, last in ((4, 8, 0, 5), (2, 4, 5, 8)):
        layout = msgspec.structs.replace(asked.layout, dp=dp)
        now = msgspec.structs.replace(asked, layout=layout)
        path, process = started(now, tmp_path, ranks)
        with process:
            args = {"recipe": str(path), "address": process.address, "first": first, "last": last}
            results.append(world.run(STEPS, ranks, args))
            assert ended(process) == 0
    for rank_results, dp in zip(results, (4, 2), strict=True):
        for replica in range(dp):
            same = [r["found"] for r in rank_results if r["replica"] == replica]
            assert all(s == same[0] for s in same)
            for key, tokens, last_target in same[0]:
                assert key not in found
                found[key] = tokens, last_target
    assert sorted(found) == list(range(8 * 8))
    own, held_out = open_loaders(
        msgspec.structs.replace(asked, layout=msgspec.structs.replace(asked.layout, dp=1)),
        replica=0,
    )
    for step in range(8):
        for tokens, targets, ids in own.microbatches(step):
            assert found[ids.item()] == (tokens[:, 0].tolist(), targets[-1, 0].item())
    first_run = results[0]
    assert next(r["evaluated"] for r in first_run if r["replica"] == 3) == [
        micro[0].tolist()
        for step in range(2)
        for micro in open_loaders(asked, replica=3)[1].microbatches(step)
    ]
    assert held_out.steps_per_epoch == 2
    assert not any(r["maps_tokens"] for r in first_run)
    steps = max(r["steps"] for r in first_run)
    assert 5 <= steps <= 5 + 3
    assert max(r["bytes_read"] for r in first_run) <= (5 + 3) * 8 * (32 + 1)
    assert all(r["bytes_read"] % (8 * 33) == 0 for r in first_run)


def only(asked, folder):
    alone = msgspec.structs.replace(
        asked,
        layout=msgspec.structs.replace(asked.layout, dp=1),
        monitor=msgspec.structs.replace(asked.monitor, timeout_s=30.0),
    )
    files = open_samples(alone)[0]
    _, process = started(alone, folder, 1)
    (token_file,) = set(files.files_of(np.array([0])))
    return alone, process, Path(token_file)


def train_on(loader, steps):
    for step in range(1, steps):
        loader.microbatches(step)


def test_a_killed_loader_is_an_error_that_names_the_file(asked, tmp_path):
    alone, process, token_file = only(asked, tmp_path)
    with process:
        train, _ = open_node_loaders(alone, process.address, replica=0)
        train.microbatches(0)
        os.kill(process.pid, signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL
        with pytest.raises(RunFailed, match="has died while reading") as info:
            train_on(train, 10)
        assert str(token_file) in info.value.what


def test_a_token_file_that_is_cut_under_the_loader_is_named(asked, tmp_path):
    """Reading a mapped file beyond its new end kills the reader; the ranks learn which file."""
    alone, process, token_file = only(asked, tmp_path)
    with process:
        train, _ = open_node_loaders(alone, process.address, replica=0)
        train.microbatches(0)
        os.truncate(token_file, 0)
        with pytest.raises(RunFailed, match="has died while reading") as info:
            train_on(train, 200)
        assert str(token_file) in info.value.what
        assert ended(process) == -signal.SIGBUS


def test_an_error_before_the_first_step_reaches_the_ranks(asked, tmp_path):
    gone = msgspec.structs.replace(asked.data, source=(str(tmp_path / "gone.txt"),))
    wrong = msgspec.structs.replace(asked, data=gone)
    _, process = started(wrong, tmp_path, 2)
    with process:
        for _ in range(2):
            with pytest.raises(RecipeError, match=r"gone\.txt does not exist"):
                open_node_loaders(wrong, process.address, replica=0)
        assert ended(process) == 1
    assert "gone.txt does not exist" in (tmp_path / "log" / "data.log").read_text()


def test_it_ends_with_its_ranks_and_with_its_parent(asked, tmp_path):
    alone, process, _ = only(asked, tmp_path)
    with process:
        loaders = open_node_loaders(alone, process.address, replica=0)
        for loader in loaders:
            loader.close()
        assert ended(process) == 0
        assert not Path(process.address).parent.exists(), "though its parent has not cleaned up"
    _, process = started(alone, tmp_path, 1)
    assert process.code is None
    assert process.stop() == 0
    assert not Path(process.address).exists()
