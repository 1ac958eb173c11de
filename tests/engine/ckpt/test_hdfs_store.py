"""HDFS as its client shows it: synced blocks, one close, a rename that refuses a taken name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from engine.ckpt.hdfs_store import HdfsStore
from engine.ckpt.store import open_store
from engine.ckpt.url_store import BLOCK
from engine.errors import CheckpointError, MissingError


def keep(fs, path, data):
    with MemoryFileSystem._open(fs, path, "wb") as file:
        file.write(data)


class Writer:
    """hdfs-native's writer: nothing is in the file before `close`, which may be called once."""

    def __init__(self, fs, path):
        self.fs, self.path, self.data, self.closed = fs, path, b"", False
        keep(fs, path, b"")

    def write(self, data):
        self.data += data
        return len(data)

    def hsync(self):
        self.fs.synced.append((self.path, len(self.data)))

    def close(self):
        if self.closed:
            raise RuntimeError(r'RPCError("LeaseExpiredException", "No lease\n\tat java")')
        self.closed = True
        keep(self.fs, self.path, self.data)


class Hdfs(MemoryFileSystem):
    protocol, cachable, client, store, pseudo_dirs = "hdfs", False, object(), {}, [""]

    def __init__(self, *args, **options):
        super().__init__()
        self.synced = []

    def _open(self, path, mode="rb", **options):
        return Writer(self, path) if mode == "wb" else MemoryFileSystem._open(self, path, mode)

    def mv(self, source, target):
        if self.exists(target):
            raise FileExistsError(target)
        data = self.cat_file(source)
        keep(self, target, data)
        self.rm_file(source)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(Hdfs, "store", {})
    monkeypatch.setattr(Hdfs, "pseudo_dirs", [""])
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (Hdfs(), "/runs/ckpt"))
    return open_store("hdfs://namenode:9000/runs/ckpt")


def test_hdfs_urls_get_this_store(store):
    assert isinstance(store, HdfsStore)


def test_every_block_is_synced_before_it_is_left(store):
    store.put("s/f", [memoryview(bytes(BLOCK - 1)), memoryview(bytes(BLOCK + 3)), memoryview(b"")])
    assert [size for _, size in store._fs.synced] == [BLOCK, 2 * BLOCK, 2 * BLOCK + 2]
    store._fs.synced.clear()
    store.put("s/g", [memoryview(bytes(BLOCK))])
    store.put("s/empty", [])
    assert [size for _, size in store._fs.synced] == [BLOCK]
    assert [(f.name, f.bytes) for f in store.files("s")] == [
        ("empty", 0), ("f", 2 * BLOCK + 2), ("g", BLOCK)
    ]  # fmt: skip


def test_a_name_is_given_once_and_with_its_whole_content(store):
    assert store.create("s/f", b"first") is True
    assert store.create("s/f", b"second") is False
    assert store.get("s/f", 9) == b"first"
    assert [f.name for f in store.files("s")] == ["f"]


def test_a_rival_between_look_and_rename_is_noticed(store, monkeypatch):
    monkeypatch.setattr(store._fs, "exists", lambda path: False)
    monkeypatch.setattr(Hdfs, "mv", lambda *args: (_ for _ in ()).throw(FileExistsError))
    assert store.create("s/f", b"mine") is False
    assert store.files("s") == []


def test_a_create_that_fails_leaves_no_draft(store, monkeypatch):
    monkeypatch.setattr(Hdfs, "mv", lambda *args: (_ for _ in ()).throw(OSError("away")))
    with pytest.raises(CheckpointError, match="s/f: OSError: away"):
        store.create("s/f", b"mine")
    assert store.files("s") == []


def test_a_draft_whose_writer_died_is_listed_and_removed(store):
    name = "s/f.0123456789ab.draft"
    store.put(name, [memoryview(b"x")])
    (draft,) = store.uploads()
    assert draft.name == name
    store.abort(draft)
    store.abort(draft)
    assert store.files("s") == store.uploads() == []


def test_a_servers_stack_is_not_shown(store, monkeypatch):
    monkeypatch.setattr(Writer, "hsync", lambda self: [self.close(), self.close()])
    with pytest.raises(CheckpointError) as caught:
        store.put("s/f", [memoryview(b"x")])
    assert "LeaseExpiredException" in caught.value.what
    assert "java" not in caught.value.what


def test_a_client_that_cannot_create_safely_is_refused(monkeypatch):
    plain = type("Plain", (MemoryFileSystem,), {"protocol": "hdfs", "cachable": False})
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (plain(), "/x"))
    with pytest.raises(MissingError) as caught:
        open_store("hdfs://namenode/x")
    assert "msctl[hdfs]" in caught.value.remedy


@pytest.mark.multi
@pytest.mark.slow
def test_a_real_hdfs():
    """With hdfs-native, Java, and MSCTL_HADOOP naming a folder in which hdfs_local.py has run."""
    pytest.importorskip("hdfs_native")
    folder = os.environ.get("MSCTL_HADOOP", "")
    if not folder or not list(Path(folder, "jars").glob("hadoop-hdfs-*.jar")):
        pytest.skip("MSCTL_HADOOP names no folder with Hadoop's jars")
    script = Path(__file__).parents[3] / "bench" / "ckpt" / "real_stores.py"
    done = subprocess.run(
        [sys.executable, str(script), "--store", "hdfs", "--dir", folder, "--only", "commands"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line)["ok"] for line in done.stdout.splitlines()] == [True]
