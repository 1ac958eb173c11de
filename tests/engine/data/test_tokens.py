import errno
import os
import shutil
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from engine.data import tokens as module
from engine.data.documents import DocumentReader
from engine.data.megatron import IndexedWriter
from engine.data.source import resolve
from engine.data.tokenizer import ByteTokenizer, JsonTokenizer
from engine.data.tokens import is_held_out, prepare
from engine.errors import MissingError, RecipeError
from tests.engine.data.files import spec, write_jsonl, write_parquet

TEXTS = [f"document {i} says äöü {i * i}" for i in range(200)]


@pytest.fixture
def source(tmp_path):
    return write_jsonl(tmp_path / "a.jsonl", TEXTS)


def make(asked, tmp_path, vocab=256):
    return prepare(asked, vocab=vocab, cache=tmp_path / "cache")


def stored(files, split):
    (file,) = split.files
    return np.fromfile(Path(files.folder) / file.path, file.dtype)


def expected(texts):
    return b"".join(t.encode() + b"\xff" for t in texts)


def test_tokens_are_the_documents_with_an_end_behind_each(source, tmp_path):
    files = make(spec(source, validation=0.25), tmp_path)
    train = [t for t in TEXTS if not is_held_out(t, 0.25)]
    held = [t for t in TEXTS if is_held_out(t, 0.25)]
    assert bytes(stored(files, files.train)) == expected(train)
    assert bytes(stored(files, files.validation)) == expected(held)
    assert files.train.documents == len(train)
    assert files.train.text_bytes == sum(len(t.encode()) for t in train)
    assert files.train.tokens == files.train.text_bytes + len(train)
    assert (files.vocab, files.eod, files.tokenizer) == (256, 255, "bytes")


def test_the_side_of_a_document_depends_on_its_text_alone():
    share = sum(is_held_out(t, 0.3) for t in TEXTS) / len(TEXTS)
    assert 0.2 < share < 0.4
    assert is_held_out("x", 0.3) is (xxh3_64_intdigest(b"x") < 0.3 * 2**64)
    assert not any(is_held_out(t, 0.0) for t in TEXTS)
    assert {t for t in TEXTS if is_held_out(t, 0.1)} < {t for t in TEXTS if is_held_out(t, 0.3)}


def test_formats_give_the_same_tokens(source, tmp_path):
    parquet = write_parquet(tmp_path / "b.parquet", TEXTS)
    one, two = make(spec(source), tmp_path), make(spec(parquet), tmp_path)
    assert one.folder != two.folder
    assert stored(one, one.train).tolist() == stored(two, two.train).tolist()


def test_the_batch_size_changes_nothing(source, tmp_path, monkeypatch):
    whole = make(spec(source), tmp_path)
    monkeypatch.setattr(module, "_BATCH_BYTES", 100)
    parts = prepare(spec(source), vocab=256, cache=tmp_path / "other")
    assert parts.train == whole.train


def test_a_second_time_nothing_is_read(source, tmp_path, monkeypatch):
    first = make(spec(source), tmp_path)
    monkeypatch.setattr(module, "_make", None)
    assert make(spec(source), tmp_path) == first


def test_the_cache_knows_what_it_was_made_of(source, tmp_path):
    base = spec(source, validation=0.3)
    folders = [make(base, tmp_path).folder]
    for change in (
        {"validation": 0.4}, {"limit_bytes": 500},
        {"tokenizer": "bpe", "bpe_vocab": 300}, {"tokenizer": "bpe", "bpe_vocab": 310},
    ):  # fmt: skip
        changed = msgspec.structs.replace(base, **change)
        folders.append(make(changed, tmp_path, vocab=1000).folder)
    os.utime(source, (1, 1))
    folders.append(make(base, tmp_path).folder)
    assert len(set(folders)) == len(folders)
    for unrelated in ({"shuffle": False}, {"bpe_vocab": 999}):
        changed = msgspec.structs.replace(base, **unrelated)
        assert make(changed, tmp_path).folder == folders[-1]


def test_eight_at_once_make_it_once(source, tmp_path, monkeypatch):
    made, found = [], []
    original = module._make
    monkeypatch.setattr(module, "_make", lambda *a: made.append(1) or original(*a))
    start = threading.Barrier(8)

    def ask():
        start.wait()
        found.append(make(spec(source), tmp_path))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == [found[0]] * 8


def test_a_torn_entry_is_made_again(source, tmp_path):
    files = make(spec(source), tmp_path)
    path = Path(files.folder) / "train.bin"
    whole = path.read_bytes()
    for torn in (whole[:-5], whole[:9] + b"\0" + whole[10:], None):
        if torn is None:
            path.unlink()
        else:
            path.write_bytes(torn)
        assert make(spec(source), tmp_path) == files
        assert path.read_bytes() == whole


def test_what_a_dead_process_left_is_swept_and_an_error_leaves_nothing(source, tmp_path):
    files = make(spec(source), tmp_path)
    shutil.rmtree(files.folder)
    left = tmp_path / "cache" / f".{Path(files.folder).name}.999999"
    left.mkdir()
    make(spec(source), tmp_path)
    assert not left.exists()
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\nnonsense\n')
    with pytest.raises(RecipeError, match=r"bad\.jsonl:2"):
        make(spec(bad), tmp_path)
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]


def test_a_source_that_changes_meanwhile_is_refused(source, tmp_path, monkeypatch):
    class Touching(DocumentReader):
        def __iter__(self):
            os.utime(source, (5, 5))
            return super().__iter__()

    monkeypatch.setattr(module, "DocumentReader", Touching)
    with pytest.raises(RecipeError, match="changed while it was being read"):
        make(spec(source), tmp_path)


def test_bpe_is_trained_on_what_is_trained_on_and_kept(source, tmp_path, monkeypatch):
    seen = []
    original = module.train_bpe
    monkeypatch.setattr(
        module, "train_bpe", lambda texts, vocab: original(seen.extend(texts) or seen, vocab=vocab)
    )
    asked = spec(source, validation=0.3, tokenizer="bpe", bpe_vocab=300)
    files = make(asked, tmp_path, vocab=300)
    assert seen == [t for t in TEXTS if not is_held_out(t, 0.3)]
    (kept,) = (tmp_path / "cache").glob("bpe-*.json")
    tokens = JsonTokenizer(kept.read_bytes(), name="bpe")
    text = tokens.decode([t for t in stored(files, files.train).tolist() if t != files.eod])
    assert text == "".join(seen)
    monkeypatch.setattr(module, "train_bpe", None)
    assert make(asked, tmp_path, vocab=300) == files


def test_a_large_source_is_sampled_from_every_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_BYTES", 2000)
    for name, letter, count in (("a", "a", 600), ("b", "b", 300)):
        write_jsonl(tmp_path / f"{name}.jsonl", [letter * 10] * count)
    asked = spec(tmp_path / "*.jsonl")
    texts = list(module._training_texts(asked, resolve(asked)))
    assert 1.5 < sum(t[0] == "a" for t in texts) / sum(t[0] == "b" for t in texts) < 2.5
    assert sum(map(len, texts)) < 2500


def test_token_types_grow_with_the_vocabulary(source, tmp_path):
    class Wide(ByteTokenizer):
        def __init__(self, vocab):
            self.vocab, self.eod = vocab, vocab - 1

    for vocab, dtype in ((256, "|u1"), (257, "<u2"), (65536, "<u2"), (65537, "<u4")):
        side = module._Side(tmp_path / "t.bin", Wide(vocab))
        side.add("ab")
        (file,) = side.close().files
        assert file.dtype == dtype
        assert np.fromfile(tmp_path / "t.bin", dtype).tolist() == [97, 98, vocab - 1]


def test_megatron_files_are_used_where_they_lie(tmp_path):
    with IndexedWriter(tmp_path / "m", vocab=500) as writer:
        for i in range(100):
            writer.add(np.array([i, 499]))
            writer.end_document()
    files = make(spec(tmp_path / "m", format="megatron", validation=0.2), tmp_path, vocab=1)
    assert files.train.files[0].path == str(tmp_path / "m.bin")
    assert files.train.tokens + files.validation.tokens == 200
    assert (files.vocab, files.eod, files.tokenizer) == (0, -1, "megatron")
    assert files == make(spec(tmp_path / "m.bin", validation=0.2), tmp_path, vocab=1)


def test_wrong_inputs_say_what_to_do(source, tmp_path):
    with pytest.raises(RecipeError, match=r"model\.vocab = 255 is smaller than the 256") as info:
        make(spec(source), tmp_path, vocab=255)
    assert info.value.remedy == "set model.vocab to at least 256"
    with pytest.raises(RecipeError, match="holds out none of the 200 documents") as info:
        make(spec(source, validation=1e-9), tmp_path)
    assert "data.validation to e.g. 0.025" in info.value.remedy
    blank = write_jsonl(tmp_path / "blank.jsonl", ["", ""])
    with pytest.raises(RecipeError, match="no text to train on"):
        make(spec(blank), tmp_path)
    with pytest.raises(RecipeError, match="No such file"):
        make(spec(source, tokenizer="nowhere/tokenizer.json"), tmp_path)
    with pytest.raises(ValueError, match="synthetic"):
        make(spec(format="synthetic"), tmp_path)


def test_a_cache_that_cannot_be_written_is_named(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingError, match=r"data\.cache: .*file") as info:
        prepare(spec(source), vocab=256, cache=tmp_path / "file")
    assert "data.cache" in info.value.remedy

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_tokenize", full)
    with pytest.raises(MissingError, match="No space left") as info:
        make(spec(source), tmp_path)
    assert "free disk space" in info.value.remedy


def test_the_recipe_may_name_the_cache(source, tmp_path):
    files = prepare(spec(source, cache=str(tmp_path / "mine")), vocab=256)
    assert Path(files.folder).parent == tmp_path / "mine"
