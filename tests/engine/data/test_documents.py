import gzip

import fsspec
import pytest

from engine.data import documents
from engine.data.documents import DocumentReader, piece_bytes
from engine.data.source import resolve
from engine.errors import RecipeError
from tests.engine.data.files import spec, write_jsonl, write_parquet

TEXTS = ["first", "zweiter äöü", "third\nwith lines", "", "日本語 " * 50]


def read(*sources, **keys):
    asked = spec(*sources, **keys)
    return list(DocumentReader(resolve(asked), asked))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.ndjson"])
def test_jsonl_gives_one_document_a_line(tmp_path, name):
    path = write_jsonl(tmp_path / name, TEXTS)
    assert read(path) == [t for t in TEXTS if t]


def test_parquet_gives_one_document_a_row_in_order(tmp_path):
    many = [f"row {i}" for i in range(300)]
    path = write_parquet(tmp_path / "a.parquet", [*TEXTS, None, *many])
    assert read(path) == [*(t for t in TEXTS if t), *many]


def test_parquet_is_read_through_fsspec(tmp_path):
    fs = fsspec.filesystem("memory")
    fs.pipe("/pq/a.parquet", write_parquet(tmp_path / "a.parquet", ["far", "away"]).read_bytes())
    try:
        assert read("memory://pq") == ["far", "away"]
    finally:
        fs.rm("/pq", recursive=True)


def test_the_field_is_chosen_by_the_recipe(tmp_path):
    key = 'odd "name'
    assert read(write_jsonl(tmp_path / "a.jsonl", ["x"], key=key), field=key) == ["x"]
    path = write_parquet(tmp_path / "b.parquet", ["y"], column="body")
    assert read(path, field="body") == ["y"]


def test_text_files_are_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfbom and\r\nlines\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("gepackt ü".encode()))
    assert read(tmp_path) == ["bom and\r\nlines\n", "gepackt ü"]


def test_long_text_files_are_cut_at_ends_of_lines_and_nothing_is_lost(tmp_path):
    text = "".join(f"line {i} " + "x" * (i % 90) + "\n" for i in range(2000))
    (tmp_path / "a.txt").write_text(text)
    found = read(tmp_path)
    assert "".join(found) == text
    assert len(found) > 20
    assert all(piece.endswith("\n") and len(piece) <= 4096 for piece in found)


def test_text_without_lines_is_cut_between_characters(tmp_path):
    text = "日本語テキスト" * 3000
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    found = read(tmp_path)
    assert "".join(found) == text
    assert len(found) > 10


def test_pieces_are_finer_for_few_files_and_bounded(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 10_000_000)
    file = resolve(spec(tmp_path))[0]
    assert piece_bytes([file]) == 10_000_000 // 256
    assert piece_bytes([file] * 256) == 1 << 20
    assert piece_bytes([file] * 255) == 1 << 20
    assert piece_bytes([file], limit_bytes=2 << 20) == 8192
    assert piece_bytes([file], limit_bytes=1) == 4096


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    asked = spec(tmp_path)
    reader = DocumentReader(resolve(asked), asked)
    assert list(reader) == ["caf\ufffd\n"]
    assert reader.num_replaced == 1


def test_binary_files_are_left_out_of_folders_and_refused_by_name(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.png").write_bytes(b"\x89PNG\0\0\0")
    asked = spec(tmp_path)
    reader = DocumentReader(resolve(asked), asked)
    assert list(reader) == ["text"]
    assert reader.num_binary == 1
    with pytest.raises(RecipeError, match=r"b\.png: not a text file"):
        read(tmp_path / "b.png")


def test_the_limit_is_in_bytes_of_text(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["abc", "äöü", "rest"])
    assert read(path, limit_bytes=3) == ["abc"]
    assert read(path, limit_bytes=6) == ["abc", "ä"]
    assert read(path, limit_bytes=9) == ["abc", "äöü"]
    assert read(path, limit_bytes=100) == ["abc", "äöü", "rest"]


@pytest.mark.parametrize(
    "line",
    ["not json", '{"id": 2}', '{"text": 5}', '{"text": null}', "[1]", '{"text": "a"', "\xff\xfe"],
)
def test_a_bad_line_is_named_with_its_place(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(RecipeError, match=r"a\.jsonl:3: not a JSON object with a text") as info:
        read(path)
    assert "data.field" in info.value.remedy


def test_lines_and_rows_have_a_longest(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_DOCUMENT_BYTES", 1000)
    path = write_jsonl(tmp_path / "a.jsonl", ["ok", "x" * 2000])
    with pytest.raises(RecipeError, match=r"a\.jsonl:2: document longer than 1000 B"):
        read(path)
    path = write_parquet(tmp_path / "a.parquet", ["ok", "x" * 2000])
    with pytest.raises(RecipeError, match=r"a\.parquet: row 2: document longer"):
        read(path)


def test_a_line_of_nested_brackets_does_not_exhaust_the_stack(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ' + "[" * 200_000)
    with pytest.raises(RecipeError, match=r"a\.jsonl:1"):
        read(tmp_path / "a.jsonl")


def test_parquet_columns_are_checked(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", ["x"])
    with pytest.raises(RecipeError, match="column 'body' does not exist") as info:
        read(path, field="body")
    assert info.value.remedy.endswith("text")
    with pytest.raises(RecipeError, match="column 'id' is INTEGER, not text"):
        read(path, field="id")
    (tmp_path / "torn.parquet").write_bytes(path.read_bytes()[:-30])
    with pytest.raises(RecipeError, match=r"torn\.parquet: not a readable parquet file"):
        read(tmp_path / "torn.parquet")
