import threading
from pathlib import Path

import pytest

from engine.data.local import is_remote, local_path, locked, user_cache, write_whole


@pytest.mark.parametrize(
    ("source", "remote"),
    [("a/b", False), ("/a", False), ("file:///a", False), ("s3://b/a", True), ("c:x", False)],
)
def test_urls_are_remote_unless_they_name_local_files(source, remote):
    assert is_remote(source) is remote


def test_local_paths(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    assert local_path("~/a") == "/home/x/a"
    assert local_path("file:///a/b") == "/a/b"
    assert user_cache() == Path("/home/x/.cache/msctl/tokens")


def test_one_holder_at_a_time(tmp_path):
    inside = []
    most = []

    def work():
        with locked(tmp_path / "sub" / "lock"):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_a_lock_is_free_after_an_exception(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / "lock"):
        raise KeyError
    with locked(tmp_path / "lock"):
        pass


def test_files_are_written_whole(tmp_path):
    write_whole(tmp_path / "new" / "a", b"1")
    write_whole(tmp_path / "new" / "a", b"2")
    assert (tmp_path / "new" / "a").read_bytes() == b"2"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a"]
