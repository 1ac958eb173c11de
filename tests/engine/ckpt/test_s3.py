"""Checkpoints on S3 as moto's server speaks it: the flusher, retention, orphans, double writers."""

import socket

import pytest
import torch

from engine.ckpt.catalog import catalog
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.prune import Retention, plan_prune, prune
from engine.ckpt.store import open_store
from engine.ckpt.two_stage import TwoStage
from engine.ckpt.verify import verify
from tests.engine.ckpt.faulty import judge
from tests.engine.ckpt.state import dense, pieces_of, save

pytestmark = [pytest.mark.multi, pytest.mark.slow]


@pytest.fixture(scope="module")
def endpoint():
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with socket.create_connection((host, port), timeout=20):
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def root(endpoint, monkeypatch, request):
    """A bucket of the test's own, and what clients need to reach it; child processes too."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"bucket-{abs(hash(request.node.name))}"
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
    s3fs.S3FileSystem.clear_instance_cache()
    return f"s3://{bucket}/runs/tiny/ckpt"


def test_the_flusher_writes_commits_and_prunes(root, tmp_path):
    pieces = pieces_of(0, 1, 1, torch.float32, dense(torch.float32, 1))
    two = TwoStage(
        root, pieces, rank=0, world=1, gather=lambda item: [item], spool=tmp_path / "spool", keep=2
    )
    for step in (1, 2, 3):
        now = pieces_of(0, 1, 1, torch.float32, dense(torch.float32, step))
        for piece, fresh in zip(pieces, now, strict=True):
            piece.tensor.copy_(fresh.tensor)
        assert two.save(pieces, CheckpointMeta(step=step)).folder == f"step-0000000{step}"
        assert two.wait(60), two.status()
    two.close()
    assert judge(root, {2, 3}, dp=1) == {2, 3}
    assert [info.step for info in catalog(root)] == [2, 3]


def test_two_writers_of_one_name_learn_who_was_first(root):
    one, other = open_store(root), open_store(root)
    assert one.create("step-00000001/COMMITTED", b"mine")
    assert not other.create("step-00000001/COMMITTED", b"yours")
    assert one.get("step-00000001/COMMITTED", 100) == b"mine"
    assert one.caution == ""


def test_orphans_of_dead_attempts_are_found_and_only_those(root):
    save(root, 1, 1, 1, dense(torch.float32, 1))
    store = open_store(root)
    bucket = root.split("/")[2]

    def begin(key):
        store._fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"runs/tiny/ckpt/{key}")

    begin("step-00000001/rank-00000.safetensors")
    begin("step-00000002/rank-00000.safetensors")
    begin("notes/somebody-else")
    store.put("step-00000002/ATTEMPT", [memoryview(b"{}")])
    store.put("step-00000002/part-00000.json", [memoryview(b"{}")])
    plan = plan_prune(root, Retention(grace_s=1e10))  # moto says that all uploads began in 2010
    assert {(d.name, d.action) for d in plan} == {
        ("step-00000001", "keep"), ("step-00000002", "keep"),
        ("step-00000001/rank-00000.safetensors", "remove"),
        ("step-00000002/rank-00000.safetensors", "keep"),
    }  # fmt: skip
    later = plan_prune(root, Retention(), now_s=catalog(root)[0].created_s + 1e6)
    prune(root, later)
    assert [info.name for info in catalog(root)] == ["step-00000001"]
    assert [upload.name for upload in store.uploads()] == ["notes/somebody-else"]
    assert verify(root).ok
