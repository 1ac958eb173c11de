"""Names of places, and what every kind of store must do alike: local files and fsspec."""

import mmap
import os
import uuid
from pathlib import Path

import pytest

from engine.ckpt.local_store import LocalStore
from engine.ckpt.store import absolute, open_store, short_read, split
from engine.ckpt.url_store import UrlStore
from engine.errors import CheckpointError, MissingError


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    where = tmp_path / "root" if request.param == "local" else f"memory://{uuid.uuid4().hex}/root"
    return open_store(where)


def views(*parts):
    return [memoryview(part) for part in parts]


def test_what_is_put_is_listed_and_read_back(store):
    assert (store.folders(), store.files("a")) == ([], [])
    store.put("b/two", views(b"0123", b"", b"456"))
    store.put("a/one", views())
    store.settle("b")
    assert store.folders() == ["a", "b"]
    assert [(f.name, f.bytes) for f in store.files("b")] == [("two", 7)]
    assert [(f.name, f.bytes) for f in store.files("a")] == [("one", 0)]
    assert store.files("b")[0].changed_s > 1.6e9
    into = [bytearray(2), bytearray(0), bytearray(3)]
    seen = bytearray()
    store.read("b/two", 1, [memoryview(part) for part in into], seen.extend)
    assert into == [b"12", b"", b"345"]
    assert seen == b"12345", "whoever looks on sees the bytes in their order"


def test_a_file_that_ends_too_early_is_truncated_not_padded(store):
    store.put("a/f", views(b"abcdef"))
    into = bytearray(4)
    with pytest.raises(CheckpointError, match=r"a/f: 3 of 4 bytes at offset 3; the file is trunc"):
        store.read("a/f", 3, [memoryview(into)])
    with pytest.raises(CheckpointError, match="a/absent"):
        store.read("a/absent", 0, [memoryview(into)])


def test_small_files_are_bounded(store):
    store.put("a/f", views(b"abcd"))
    assert store.get("a/f", 4) == b"abcd"
    with pytest.raises(CheckpointError, match="longer than 3 bytes"):
        store.get("a/f", 3)
    assert store.get("a/absent", 9) is None
    assert store.get("absent/f", 9) is None


def test_putting_again_replaces_and_creating_again_does_not(store):
    store.put("a/f", views(b"a long one"))
    store.put("a/f", views(b"short"))
    assert store.get("a/f", 99) == b"short"
    assert store.create("a/new", b"first") is True
    assert store.create("a/new", b"second") is False
    assert store.get("a/new", 99) == b"first"
    assert [f.name for f in store.files("a")] == ["f", "new"]  # no draft is left


def test_removing_what_is_gone_is_no_error(store):
    store.put("a/f", views(b"x"))
    store.put("a/g", views(b"y"))
    store.remove(["a/f", "a/absent"])
    store.remove([])
    assert [f.name for f in store.files("a")] == ["g"]
    store.remove_folder("a")
    store.remove_folder("a")
    assert store.files("a") == []


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 10_000])
def test_an_image_is_cut_to_its_size_and_passes_once(store, size):
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    memory[:] = os.urandom(len(memory))
    passed = []
    store.put_image("a/i", memoryview(memory), size, lambda view: passed.append(bytes(view)))
    assert b"".join(passed) == memory[:size]
    assert store.get("a/i", 1 << 20) == memory[:size]


def test_a_finished_write_is_no_upload(store):
    store.put("a/f", views(b"abc"))
    store.create("a/g", b"abc")
    assert store.uploads() == []


@pytest.mark.parametrize(
    ("where", "kind", "url"),
    [
        ("a/b", LocalStore, "a/b"),
        ("file:///a/b", LocalStore, "/a/b"),
        ("local:///a", LocalStore, "/a"),
        (Path("/a"), LocalStore, "/a"),
        ("memory://a/", UrlStore, "memory://a"),
    ],
)
def test_a_place_names_its_kind_of_store(where, kind, url):
    store = open_store(where)
    assert (type(store), store.url) == (kind, url)


def test_an_unknown_kind_of_store_says_what_to_install():
    with pytest.raises(MissingError, match="nosuch://a") as caught:
        open_store("nosuch://a")
    assert "pip install" in caught.value.remedy


@pytest.mark.parametrize(
    ("where", "parts"),
    [
        ("a/b/step-1", ("a/b", "step-1")),
        ("a/step-1//", ("a", "step-1")),
        ("step-1", (".", "step-1")),
        ("/step-1", ("/", "step-1")),
        ("s3://bucket/run/step-1/", ("s3://bucket/run", "step-1")),
        (Path("a") / "b", ("a", "b")),
    ],
)
def test_a_checkpoint_is_a_root_and_a_folder(where, parts):
    assert split(where) == parts


def test_absolute_places_mean_the_same_everywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert absolute("a") == f"{tmp_path}/a"
    assert absolute(Path("/a")) == "/a"
    assert absolute("s3://a/b") == "s3://a/b"


def test_a_short_read_says_how_short():
    error = short_read("u", "n", 8, 4, 1)
    assert error.what == "u/n: 1 of 4 bytes at offset 8; the file is truncated"
