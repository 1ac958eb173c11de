import os
import socket
import sysconfig

import fsspec
import pytest

from engine.data.source import STDLIB, resolve
from engine.errors import MissingError, RecipeError
from tests.engine.data.files import spec, write_jsonl


def names(files):
    return [os.path.basename(f.path) for f in files]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b/two.txt", "a.txt", "c.py", ".hidden", ".git/config", "empty.txt"):
        (tmp_path / name).write_text("" if name == "empty.txt" else name)
    write_jsonl(tmp_path / "d.jsonl.gz", ["x"])
    return tmp_path


def test_a_folder_gives_its_files_sorted_without_hidden_and_empty_ones(folder):
    assert names(resolve(spec(folder))) == ["a.txt", "c.py", "d.jsonl.gz", "two.txt"]


def test_kinds_come_from_names_unless_the_recipe_tells(folder):
    assert [f.kind for f in resolve(spec(folder))] == ["text", "text", "jsonl", "text"]
    assert names(resolve(spec(folder, format="jsonl"))) == ["d.jsonl.gz"]
    assert resolve(spec(folder / "a.txt", format="jsonl"))[0].kind == "jsonl"


def test_globs_are_recursive_and_sources_keep_their_order(folder):
    found = resolve(spec(folder / "c.py", folder / "**/*.txt", folder / "a.txt"))
    assert names(found) == ["c.py", "a.txt", "two.txt"]
    assert [f.named for f in found] == [True, False, False]


def test_a_name_with_glob_characters_is_taken_literally_if_it_exists(tmp_path):
    (tmp_path / "a[1].txt").write_text("x")
    (tmp_path / "a1.txt").write_text("y")
    assert names(resolve(spec(tmp_path / "a[1].txt"))) == ["a[1].txt"]


def test_file_urls_and_home_are_local(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert names(resolve(spec("~/a.txt"))) == ["a.txt"]
    assert resolve(spec(f"file://{folder}/a.txt")) == resolve(spec(folder / "a.txt"))


def test_links_to_folders_are_not_followed_so_that_loops_end(folder):
    (folder / "b" / "loop").symlink_to(folder)
    (folder / "b" / "link.txt").symlink_to(folder / "a.txt")
    assert names(resolve(spec(folder / "b"))) == ["link.txt", "two.txt"]


def test_the_standard_library_is_python_source_without_packages_and_tests():
    found = resolve(spec(STDLIB))
    root = sysconfig.get_paths()["stdlib"]
    inside = [os.path.relpath(f.path, root) for f in found]
    assert inside == [f for f in inside if f.endswith(".py") and not f.startswith("..")]
    assert {"argparse.py", "json/decoder.py"} <= set(inside)
    assert not any({"site-packages", "test", "tests"} & set(f.split("/")) for f in inside)
    assert found == resolve(spec(STDLIB))
    assert sum(f.size for f in found) > 5_000_000


def test_the_stamp_changes_with_the_file(folder):
    before = resolve(spec(folder / "a.txt"))
    os.utime(folder / "a.txt", (1, 1))
    assert resolve(spec(folder / "a.txt")) != before


def test_urls_go_through_fsspec():
    fs = fsspec.filesystem("memory")
    fs.pipe({"/src/b.txt": b"b", "/src/sub/a.jsonl": b"{}", "/src/.no": b"x", "/src/e.txt": b""})
    try:
        found = resolve(spec("memory://src"))
        assert [f.path for f in found] == ["/src/b.txt", "/src/sub/a.jsonl"]
        assert [f.kind for f in found] == ["text", "jsonl"]
        assert found[0].shown == "memory://src/b.txt"
        assert [f.path for f in resolve(spec("memory://src/*.txt"))] == ["/src/b.txt"]
        assert resolve(spec("memory://src/b.txt"))[0].named
        with pytest.raises(RecipeError, match=r"memory://nowhere holds no non-empty file"):
            resolve(spec("memory://nowhere"))
    finally:
        fs.rm("/src", recursive=True)


def test_a_server_that_is_not_there_is_no_empty_folder():
    pytest.importorskip("aiohttp")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RecipeError, match=r"Cannot connect|Connect call failed") as caught:
        resolve(spec(f"http://127.0.0.1:{port}/x"))
    assert "check the URL, the network" in caught.value.remedy


def test_an_unknown_kind_of_url_names_it():
    with pytest.raises(MissingError, match="nosuch"):
        resolve(spec("nosuch://bucket/x"))


def test_what_matches_nothing_is_named(folder):
    with pytest.raises(RecipeError, match=r"glob .*\*\.rst holds no non-empty file"):
        resolve(spec(folder / "*.rst"))
    with pytest.raises(RecipeError, match=r"gone\.txt does not exist"):
        resolve(spec(folder / "gone.txt"))
    (folder / "hollow").mkdir()
    with pytest.raises(RecipeError, match="hollow holds no non-empty file of format text") as info:
        resolve(spec(folder / "hollow", format="text"))
    assert "data.format" in info.value.remedy
    with pytest.raises(RecipeError, match="names no file"):
        resolve(spec())


def test_a_pipe_is_no_source(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecipeError, match="neither a file nor a folder"):
        resolve(spec(tmp_path / "pipe"))


def test_pairs_of_token_files_are_one_source_by_any_of_their_names(tmp_path):
    for name in ("x.bin", "x.idx", "lone.bin"):
        (tmp_path / name).write_bytes(b"12")
    pair = resolve(spec(tmp_path / "x.bin"))
    assert pair[0].kind == "megatron"
    assert pair == resolve(spec(tmp_path / "x.idx"))
    assert pair == resolve(spec(tmp_path / "x", format="megatron"))
    assert names(resolve(spec(tmp_path, format="text"))) == ["lone.bin", "x.idx"]
    with pytest.raises(RecipeError, match=r"lone\.idx does not exist"):
        resolve(spec(tmp_path / "lone.bin", format="megatron"))
    with pytest.raises(RecipeError, match=r"mixes token files .* with text .*lone\.bin"):
        resolve(spec(tmp_path))
