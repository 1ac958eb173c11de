import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.stream import TokenStream
from engine.data.token_files import Split, TokenFile


def test_one_file_is_read_at_any_places(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "t.bin")
    file = TokenFile(path="t.bin", dtype="<u2", tokens=100)
    stream = TokenStream(Split(tokens=100, text_bytes=0, documents=1, files=(file,)), tmp_path)
    found = stream.read(np.array([0, 96, 50]), 4)
    assert found.tolist() == [[0, 1, 2, 3], [96, 97, 98, 99], [50, 51, 52, 53]]
    assert found.dtype == np.int64
    assert stream.bytes_read == 24
    assert stream.files_of(np.array([0, 9]), 4) == [str(tmp_path / "t.bin")] * 2


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_runs_over_files_of_different_types_are_joined(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("runs")
    sizes = [40, 30]
    arrays = [np.arange(40), 1000 + np.arange(30)]
    files = []
    for number, dtype in enumerate(("<u2", "<i4")):
        arrays[number].astype(dtype).tofile(folder / f"{number}.bin")
        files.append(TokenFile(path=f"{number}.bin", dtype=dtype, tokens=sizes[number]))
    rows, whole = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        number = data.draw(st.integers(0, 1))
        begin = data.draw(st.integers(0, sizes[number] - 1))
        length = data.draw(st.integers(1, sizes[number] - begin))
        rows.append((len(whole), number, begin))
        whole += arrays[number][begin : begin + length].tolist()
    np.array(rows, dtype="<i8").tofile(folder / "runs")
    split = Split(tokens=len(whole), text_bytes=0, documents=1, files=tuple(files), runs="runs")
    stream = TokenStream(split, folder)
    length = data.draw(st.integers(1, len(whole)))
    begins = list(range(len(whole) - length + 1))
    found = stream.read(np.array(begins), length)
    assert found.tolist() == [whole[b : b + length] for b in begins]
    for begin, names in zip(begins, stream.files_of(np.array(begins), length), strict=True):
        files = dict.fromkeys(t // 1000 for t in whole[begin : begin + length])
        assert names == ", ".join(f"{folder}/{f}.bin" for f in files)


def test_negative_tokens_show_as_huge_ones(tmp_path):
    np.array([-1, 5], dtype="<i4").tofile(tmp_path / "t.bin")
    file = TokenFile(path="t.bin", dtype="<i4", tokens=2)
    stream = TokenStream(Split(tokens=2, text_bytes=0, documents=1, files=(file,)), tmp_path)
    assert stream.read(np.array([0]), 2).tolist() == [[2**32 - 1, 5]]
