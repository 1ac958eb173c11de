"""Local files: order of durability, many views, full disks, and things that are no files."""

import errno
import itertools
import mmap
import os
from pathlib import Path

import pytest

from engine.ckpt import local_store
from engine.ckpt.local_store import LocalStore, write_all
from engine.errors import CheckpointError, MissingError


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "run" / "ckpt")


@pytest.fixture
def synced(monkeypatch):
    """Every fsync in order: the path, and what the folder held by then."""
    seen, real = [], os.fsync

    def fsync(fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        seen.append((path, sorted(os.listdir(path)) if os.path.isdir(path) else None))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


def pages(count):
    """Random page-aligned memory."""
    memory = mmap.mmap(-1, 4096 * count)
    memory[:] = os.urandom(4096 * count)
    return memoryview(memory)


def test_new_folders_are_forced_to_the_disk_from_above_then_the_data(store, synced, tmp_path):
    store.put("s/f", [memoryview(b"x")])
    assert synced == [
        (str(tmp_path), ["run"]), (f"{tmp_path}/run", ["ckpt"]), (f"{tmp_path}/run/ckpt", ["s"]),
        (f"{tmp_path}/run/ckpt/s/f", None),
    ]  # fmt: skip
    synced.clear()
    store.settle("s")
    assert synced == [(f"{store.url}/s", ["f"]), (store.url, ["s"])]


def test_a_created_name_is_durable_after_its_content(store, synced):
    store.create("s/COMMITTED", b"{}")
    draft, last = synced[-2:]
    assert draft[0].endswith(".draft")
    assert last == (f"{store.url}/s", ["COMMITTED"])


def test_removed_names_stay_removed_after_a_power_cut(store, synced):
    store.put("s/f", [])
    store.put("s/g", [])
    synced.clear()
    store.remove(["s/f"])
    assert synced == [(f"{store.url}/s", ["g"])]
    store.remove(["gone/f"])
    store.remove_folder("s")
    assert synced[1:] == [(store.url, [])]


def test_images_are_forced_to_the_disk(store, synced):
    store.put_image("s/f", pages(1), 10, lambda view: None)
    assert synced[-1] == (f"{store.url}/s/f", None)


def test_more_views_than_one_call_takes(store):
    data = os.urandom(3000)
    store.put("s/f", [memoryview(data)])
    into = bytearray(3000)
    whole = memoryview(into)
    parts = [whole[i : i + 1] for i in range(1500)] + [whole[1500:1500], whole[1500:]]
    store.read("s/f", 0, parts)
    assert into == data


@pytest.mark.parametrize("cuts", [(), (1,), (700_000, 700_001), (512 << 10, 1 << 20)])
def test_somebody_who_looks_on_sees_every_byte_once_and_soon(store, cuts):
    data = os.urandom(1_500_000)
    store.put("s/f", [memoryview(data)])
    into, seen = bytearray(len(data)), []
    ends = [0, *cuts, len(data)]
    parts = [memoryview(into)[a:b] for a, b in itertools.pairwise(ends)]
    store.read("s/f", 0, parts, lambda view: seen.append(bytes(view)))
    assert into == data == b"".join(seen)
    assert max(map(len, seen)) <= 512 << 10, "small enough to be still in a core's cache"


def test_short_reads_go_on_where_they_stopped(store, monkeypatch):
    store.put("s/f", [memoryview(b"0123456789")])
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: real(fd, [views[0][:2]], at))
    into = [bytearray(3), bytearray(1), bytearray(5)]
    seen = []
    store.read("s/f", 1, [memoryview(part) for part in into], lambda view: seen.append(bytes(view)))
    assert into == [b"123", b"4", b"56789"]
    assert seen == [b"12", b"3", b"4", b"56", b"78", b"9"]


def test_short_writes_go_on_where_they_stopped(store, monkeypatch, tmp_path):
    write, pwrite = os.write, os.pwrite
    monkeypatch.setattr(os, "write", lambda fd, view: write(fd, view[:3]))
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: pwrite(fd, view[:4096], at))
    store.put("s/f", [memoryview(b"0123456789")])
    assert store.get("s/f", 99) == b"0123456789"
    page = pages(3)
    store.put_image("s/i", page, 3 * 4096, lambda view: None)
    assert store.get("s/i", 1 << 20) == page
    with open(tmp_path / "w", "wb") as file:
        write_all(file.fileno(), memoryview(b"12345678").cast("I"))
    assert (tmp_path / "w").read_bytes() == b"12345678"


def test_images_larger_than_a_block(store, monkeypatch):
    monkeypatch.setattr(local_store, "BLOCK", 8192)
    page = pages(5)
    passed = []
    store.put_image("s/i", page, 4 * 4096 + 1, lambda view: passed.append(len(view)))
    assert passed == [8192, 8192, 1]
    assert store.get("s/i", 1 << 20) == page[: 4 * 4096 + 1]


def test_a_file_system_without_direct_writes_gets_plain_ones(store, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest):
        if flags & os.O_DIRECT == os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    store.put_image("s/i", memoryview(b"abc"), 2, lambda view: None)
    assert store.get("s/i", 9) == b"ab"


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (errno.ENOSPC, MissingError, "msctl ckpt prune"),
        (errno.EDQUOT, MissingError, "msctl ckpt prune"),
        (errno.EIO, CheckpointError, "check the disk"),
    ],
)
def test_a_disk_that_refuses_is_named_and_no_half_image_stays(store, monkeypatch, code, kind, says):
    def fail(fd, view, at):
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(kind, match=os.strerror(code)) as caught:
        store.put_image("s/i", pages(1), 9, lambda view: None)
    assert says in caught.value.remedy
    assert store.files("s") == []


def test_absent_places_ask_for_another_name(store):
    with pytest.raises(CheckpointError) as caught:
        store.read("s/f", 0, [])
    assert "msctl ckpt list" in caught.value.remedy
    with pytest.raises(CheckpointError):
        store.settle("s")


def test_links_folders_and_pipes_are_no_files(store, tmp_path):
    store.put("s/f", [memoryview(b"secret")])
    folder = store.root / "s"
    (folder / "link").symlink_to(folder / "f")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe")
    (store.root / "other").symlink_to(folder)
    assert [f.name for f in store.files("s")] == ["f"]
    assert store.folders() == ["s"]
    for name in ("link", "sub", "pipe"):
        with pytest.raises(CheckpointError):
            store.read(f"s/{name}", 0, [memoryview(bytearray(1))])
    for name in ("sub", "pipe"):
        with pytest.raises(CheckpointError):
            store.get(f"s/{name}", 9)
    with pytest.raises(CheckpointError):
        store.put("s/link", [memoryview(b"x")])
    assert store.get("s/f", 9) == b"secret"


def test_a_file_where_a_folder_should_be(store, tmp_path):
    store.put("s/f", [memoryview(b"x")])
    below = LocalStore(store.root / "s" / "f")
    assert (below.folders(), below.files("a"), below.get("a/b", 1)) == ([], [], None)
    with pytest.raises(CheckpointError):
        below.put("a/b", [])


def test_what_stands_in_the_way_of_a_new_file_is_named(tmp_path):
    file = tmp_path / "a.toml"
    file.touch()
    for root in (file, file / "sub"):
        for write in (lambda s: s.put("x/y", [memoryview(b"1")]), lambda s: s.create("x/y", b"1")):
            with pytest.raises(CheckpointError) as caught:
                write(LocalStore(root))
            assert caught.value.what.endswith(
                f"{file} is a file, so nothing can be written below it"
            )
    with pytest.raises(CheckpointError, match=r"^/proc/x: no folder can be made here") as caught:
        LocalStore(Path("/proc/x")).create("y/z", b"1")
    assert "ckpt list" not in caught.value.remedy
