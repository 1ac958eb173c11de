import gzip

import fsspec
import pytest
import zstandard

from engine.data import streams
from engine.data.source import resolve
from engine.data.streams import open_stream
from engine.errors import RecipeError
from tests.engine.data.files import spec

TEXT = b"".join(b"line %d\n" % i for i in range(5000))


def only(path):
    return resolve(spec(path))[0]


def read(path):
    with open_stream(only(path)) as stream:
        return stream.read()


def test_plain_and_compressed_files_give_the_same_bytes(tmp_path):
    for name, data in {
        "a.txt": TEXT,
        "a.txt.gz": gzip.compress(TEXT),
        "a.txt.zst": zstandard.compress(TEXT),
        "two.txt.gz": gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]),
        "two.txt.zst": zstandard.compress(TEXT[:100]) + zstandard.compress(TEXT[100:]),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert read(tmp_path / name) == TEXT


def test_remote_files_are_unpacked_on_the_way():
    fs = fsspec.filesystem("memory")
    fs.pipe("/remote.txt.gz", gzip.compress(TEXT))
    try:
        assert read("memory://remote.txt.gz") == TEXT
    finally:
        fs.rm("/remote.txt.gz")


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_damaged_files_are_named(tmp_path, name):
    packed = gzip.compress(TEXT) if name.endswith("gz") else zstandard.compress(TEXT)
    path = tmp_path / name
    for data in (b"no such format", packed[:20] + b"\xff\xff\xff" + packed[23:]):
        path.write_bytes(data)
        with pytest.raises(RecipeError, match=rf"{name}: damaged"):
            read(path)
    for cut in (5, 20, len(packed) // 2, len(packed) - 3):
        path.write_bytes(packed[:-cut])
        with pytest.raises(RecipeError, match=rf"{name}: damaged"):
            read(path)


@pytest.mark.parametrize("name", ["bomb.txt.gz", "bomb.txt.zst"])
def test_bombs_are_refused_while_small(tmp_path, monkeypatch, name):
    monkeypatch.setattr(streams, "_GROWTH_FROM", 1 << 20)
    monkeypatch.setattr(streams, "_GROWTH", 10)
    zeros = bytes(8 << 20)
    packed = gzip.compress(zeros) if name.endswith("gz") else zstandard.compress(zeros)
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(RecipeError, match="times its size when unpacked"):
        read(tmp_path / name)


def test_a_frame_that_asks_for_a_huge_window_is_refused(tmp_path):
    options = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=options)
    chunks = packer.compressobj()
    (tmp_path / "wide.txt.zst").write_bytes(chunks.compress(TEXT) + chunks.flush())
    with pytest.raises(RecipeError, match=r"wide\.txt\.zst: damaged"):
        read(tmp_path / "wide.txt.zst")


def test_a_file_that_vanished_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(TEXT)
    file = only(tmp_path / "a.txt")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(RecipeError, match=r"a\.txt: No such file"), open_stream(file) as stream:
        stream.read()
