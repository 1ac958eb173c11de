import shutil

import msgspec
import pytest

from engine.data import token_files
from engine.data.token_files import META, file_digest, open_token_files
from engine.data.tokens import prepare
from tests.engine.data.files import spec, write_jsonl


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    path = write_jsonl(folder / "a.jsonl", [f"text {i}" for i in range(50)])
    return prepare(spec(path, validation=0.3), vocab=256, cache=folder / "cache")


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made.folder, tmp_path / "copy")


def test_a_whole_folder_opens_wherever_it_lies(made, folder):
    found = open_token_files(folder)
    assert found == msgspec.structs.replace(made, folder=str(folder))


def test_an_absent_folder_is_none(tmp_path):
    assert open_token_files(tmp_path / "none") is None


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", META])
@pytest.mark.parametrize("harm", [cut, flip, lambda path: path.unlink()])
def test_a_torn_folder_is_none(folder, name, harm):
    harm(folder / name)
    assert open_token_files(folder) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":1', b'"version":2'),
        (b'"|u1"', b'"nonsense"'),
        (b'"train.bin"', b'"../../x"'),
        (b'"tokens"', b'"tokenz"'),
    ],
)
def test_a_description_that_was_tampered_with_is_none(folder, old, new):
    path = folder / META
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert open_token_files(folder) is None


def test_long_files_are_checked_at_both_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "_WHOLE", 100)
    monkeypatch.setattr(token_files, "_BLOCK", 10)
    path = tmp_path / "x"
    path.write_bytes(bytes(200))
    before = file_digest(path)
    for at, seen in ((5, True), (195, True), (100, False)):
        data = bytearray(200)
        data[at] = 1
        path.write_bytes(data)
        assert (file_digest(path) != before) is seen
    path.write_bytes(bytes(201))
    assert file_digest(path) != before
