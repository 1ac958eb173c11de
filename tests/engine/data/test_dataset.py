import math
from collections import Counter

import numpy as np
import pytest

from engine.data.dataset import SyntheticDataset, TokenDataset
from engine.data.megatron import IndexedWriter
from engine.data.tokens import prepare
from engine.errors import RecipeError
from tests.engine.data.files import spec, write_jsonl


@pytest.fixture
def files(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["abcdefgh" * 5, "12345678" * 5, "xyz" * 9, "Q" * 20])
    return prepare(spec(path, validation=0.3), vocab=256, cache=tmp_path / "cache")


def test_samples_overlap_by_one_token_and_cover_the_stream(files):
    data = TokenDataset(files, files.train, seq=8, vocab=256)
    whole = np.fromfile(f"{files.folder}/train.bin", np.uint8)
    assert len(data) == (len(whole) - 1) // 8
    for number in range(len(data)):
        assert data.sample(number).tolist() == whole[8 * number : 8 * number + 9].tolist()
    rows = data.samples(np.array([2, 0, 2]))
    assert rows.shape == (3, 9)
    assert rows[0].tolist() == rows[2].tolist() == data.sample(2).tolist()


def test_tokens_per_byte_counts_ends_of_documents(files):
    split = files.train
    data = TokenDataset(files, split, seq=8, vocab=256)
    assert data.tokens_per_byte == (split.text_bytes + split.documents) / split.text_bytes
    (name,) = data.files_of(np.array([0]))
    assert name.endswith("train.bin")
    data.samples(np.array([0, 1]))
    assert data.bytes_read == 2 * 9


def test_a_split_shorter_than_a_sample_is_refused(files):
    with pytest.raises(RecipeError, match=r"tokens to train on, fewer than .* = 1001") as info:
        TokenDataset(files, files.train, seq=1000, vocab=256)
    assert "model.seq" in info.value.remedy
    with pytest.raises(RecipeError, match="tokens held out") as info:
        TokenDataset(files, files.validation, seq=1000, vocab=256)
    assert "data.validation" in info.value.remedy
    exact = files.train.tokens - 1
    assert len(TokenDataset(files, files.train, seq=exact, vocab=256)) == 1


def test_tokens_of_foreign_files_are_checked_against_the_model(tmp_path):
    with IndexedWriter(tmp_path / "m", vocab=1000) as writer:
        writer.add(np.array([1, 2, 3, 999, 5, 6]))
    files = prepare(spec(tmp_path / "m.idx"), vocab=10, cache=tmp_path / "cache")
    data = TokenDataset(files, files.train, seq=2, vocab=10)
    assert data.tokens_per_byte is None
    assert data.sample(0).tolist() == [1, 2, 3]
    with pytest.raises(RecipeError, match=r"m\.bin: token 999 in sample 1 .* model\.vocab = 10"):
        data.sample(1)


def test_negative_tokens_are_refused(tmp_path):
    with IndexedWriter(tmp_path / "m", vocab=70_000) as writer:
        writer.add(np.array([1, 2, 3]))
    (tmp_path / "m.bin").write_bytes(np.array([1, -2, 3], dtype="<i4").tobytes())
    files = prepare(spec(tmp_path / "m.idx"), vocab=10, cache=tmp_path / "cache")
    with pytest.raises(RecipeError, match="in sample 0 is not below"):
        TokenDataset(files, files.train, seq=2, vocab=10).sample(0)


def test_synthetic_samples_are_a_function_of_seed_and_number():
    one = SyntheticDataset(seq=40, vocab=50, seed=1)
    rows = one.samples(np.array([5, 9]))
    assert rows.shape == (2, 41)
    assert (rows >= 0).all()
    assert (rows < 50).all()
    assert rows[1].tolist() == one.samples(np.array([9]))[0].tolist()
    other = SyntheticDataset(seq=40, vocab=50, seed=2)
    assert rows.tolist() != other.samples(np.array([5, 9])).tolist()
    later = SyntheticDataset(seq=40, vocab=50, seed=1, first=9, num=3)
    assert len(later) == 3
    assert later.samples(np.array([0]))[0].tolist() == rows[1].tolist()


def test_synthetic_text_can_be_learned():
    """Knowing three tokens, the next is far less uncertain than ln(vocab), and not certain."""
    rows = SyntheticDataset(seq=128, vocab=97, seed=3).samples(np.arange(800))
    contexts, pairs = Counter(), Counter()
    for row in rows.tolist():
        for at in range(3, len(row)):
            context = tuple(row[at - 3 : at])
            contexts[context] += 1
            pairs[(*context, row[at])] += 1
    total = sum(contexts.values())
    loss = -sum(n * math.log(n / contexts[p[:3]]) for p, n in pairs.items()) / total
    assert 0.1 < loss < 1.0 < math.log(97) / 4
