import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from engine.data import tokenizer as module
from engine.data.bpe import train_bpe
from engine.data.tokenizer import END_OF_TEXT, ByteTokenizer, JsonTokenizer, read_tokenizer
from engine.errors import RecipeError

CORPUS = ["the cat sat on the mat and the dog sat on the log\n" * 20, "def f(x):\n    return x\n"]


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(CORPUS, vocab=300)


def word_level(*words, **options):
    lib = Library(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    lib.pre_tokenizer = pre_tokenizers.Whitespace()
    if options.get("truncate"):
        lib.enable_truncation(2)
        lib.enable_padding(length=8)
    return lib.to_str().encode()


@given(st.text())
@settings(max_examples=40, deadline=None)
def test_bytes_never_produce_the_end_of_a_document(text):
    tokens = ByteTokenizer()
    (found,) = tokens.encode_batch([text])
    assert tokens.eod not in found
    assert bytes(found) == text.encode(errors="replace")
    assert tokens.decode([*found.tolist(), tokens.eod]) == text.encode(errors="replace").decode()


@given(st.lists(st.text(), max_size=4))
@settings(max_examples=30, deadline=None)
def test_bpe_gives_back_every_text(bpe, texts):
    tokens = JsonTokenizer(bpe, name="bpe")
    for text, found in zip(texts, tokens.encode_batch(texts), strict=True):
        assert tokens.decode(found.tolist()) == text.encode(errors="replace").decode()
        assert tokens.eod not in found
        assert all(0 <= t < tokens.vocab for t in found)


def test_encoding_is_that_of_the_library(bpe):
    ids = Library.from_str(bpe.decode()).encode(CORPUS[0]).ids
    assert JsonTokenizer(bpe, name="bpe").encode_batch([CORPUS[0]])[0].tolist() == ids


def test_text_that_spells_a_special_token_stays_text(bpe):
    tokens = JsonTokenizer(bpe, name="bpe")
    (found,) = tokens.encode_batch([f"a{END_OF_TEXT}b"])
    assert tokens.eod not in found
    assert tokens.decode(found.tolist()) == f"a{END_OF_TEXT}b"


def test_long_texts_are_encoded_in_parts(bpe, monkeypatch):
    tokens = JsonTokenizer(bpe, name="bpe")
    text = CORPUS[0] * 3
    whole = tokens.encode_batch([text, "x"])
    monkeypatch.setattr(module, "_PART", 200)
    parts = tokens.encode_batch([text, "x"])
    assert parts[0].tolist() == whole[0].tolist()
    assert parts[1].tolist() == whole[1].tolist()
    assert tokens.decode(tokens.encode_batch(["y" * 999])[0].tolist()) == "y" * 999


def test_a_file_or_its_folder_is_read(tmp_path, bpe):
    (tmp_path / "tokenizer.json").write_bytes(bpe)
    one, two = read_tokenizer(str(tmp_path)), read_tokenizer(f"{tmp_path}/tokenizer.json")
    assert one.vocab == two.vocab == JsonTokenizer(bpe, name="bpe").vocab
    assert one.digest == two.digest


def test_truncation_and_padding_of_the_file_do_not_apply():
    tokens = JsonTokenizer(word_level("[UNK]", "</s>", "a", "b", truncate=True), name="w")
    assert tokens.encode_batch(["a b a b a"])[0].tolist() == [2, 3, 2, 3, 2]
    assert tokens.eod == 1


def test_holes_in_the_vocabulary_count():
    content = json.loads(word_level("[UNK]", "</s>"))
    content["model"]["vocab"]["far"] = 70_000
    tokens = JsonTokenizer(json.dumps(content).encode(), name="w")
    assert tokens.vocab == 70_001
    assert tokens.encode_batch(["far"])[0].tolist() == [70_000]


def test_the_end_of_document_is_found_or_named():
    content = word_level("[UNK]", "stop", "a")
    with pytest.raises(RecipeError, match="no known end-of-document token") as info:
        JsonTokenizer(content, name="w")
    assert "data.eod" in info.value.remedy
    assert JsonTokenizer(content, name="w", eod="stop").eod == 1
    with pytest.raises(RecipeError, match="'halt' is not in it"):
        JsonTokenizer(content, name="w", eod="halt")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": 5}', b"\xff", b"[" * 100_000])
def test_what_is_no_tokenizer_is_refused(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(RecipeError, match=r"t\.json is not a tokenizer\.json"):
        read_tokenizer(str(tmp_path / "t.json"))


def test_a_missing_or_huge_file_is_refused(tmp_path, monkeypatch):
    with pytest.raises(RecipeError, match="No such file") as info:
        read_tokenizer(str(tmp_path / "none.json"))
    assert "bytes, bpe" in info.value.remedy
    monkeypatch.setattr(module, "_MOST_FILE_BYTES", 10)
    (tmp_path / "t.json").write_bytes(b"x" * 11)
    with pytest.raises(RecipeError, match="more than the limit"):
        read_tokenizer(str(tmp_path / "t.json"))
