import numpy as np
import pytest

from engine.data.megatron import IndexedTokens, IndexedWriter
from engine.data.runs import held_out_below, split_indexed
from engine.data.stream import TokenStream


def write(prefix, documents):
    with IndexedWriter(prefix, vocab=60_000) as writer:
        for document in documents:
            for sequence in document:
                writer.add(np.array(sequence, dtype=np.int64))
            writer.end_document()
    return f"{prefix}.idx"


@pytest.fixture
def pairs(tmp_path):
    """Two pairs of documents whose tokens tell where they come from."""
    first = [[[1000 + i] * (i % 4), [1000 + i]] for i in range(400)]
    second = [[[2000 + i] * 3] for i in range(300)]
    return [write(tmp_path / "a", first), write(tmp_path / "b", second)]


def tokens_of(split, folder):
    if not split.tokens:
        return []
    return TokenStream(split, folder).read(np.array([0]), split.tokens)[0].tolist()


def test_both_sides_together_are_all_tokens_in_order(pairs, tmp_path):
    train, held = split_indexed(pairs, validation=0.3, folder=tmp_path)
    everything = np.concatenate([IndexedTokens(p).tokens for p in pairs]).tolist()
    ours, theirs = tokens_of(train, tmp_path), tokens_of(held, tmp_path)
    held_ids = set(theirs)
    assert held_ids.isdisjoint(ours)
    assert [t for t in everything if t not in held_ids] == ours
    assert [t for t in everything if t in held_ids] == theirs
    assert train.documents + held.documents == 700
    assert 0.2 < held.documents / 700 < 0.4


def test_adding_a_file_moves_no_document(pairs, tmp_path):
    alone = tokens_of(split_indexed(pairs[1:], validation=0.3, folder=tmp_path)[1], tmp_path)
    both = tokens_of(split_indexed(pairs, validation=0.3, folder=tmp_path)[1], tmp_path)
    assert both[-len(alone) :] == alone


def test_neighbours_on_one_side_are_one_run(pairs, tmp_path):
    train, held = split_indexed(pairs, validation=0.0, folder=tmp_path)
    assert np.fromfile(tmp_path / train.runs, "<i8").reshape(-1, 3).tolist() == [
        [0, 0, 0],
        [IndexedTokens(pairs[0]).num_tokens, 1, 0],
    ]
    assert held.tokens == held.documents == 0


def test_sequences_out_of_order_are_runs_of_their_own(tmp_path):
    path = write(tmp_path / "x", [[[1, 2]], [[3, 4]]])
    raw = bytearray((tmp_path / "x.idx").read_bytes())
    raw[34 + 8 : 34 + 24] = np.array([4, 0], dtype="<i8").tobytes()
    (tmp_path / "x.idx").write_bytes(raw)
    train, _ = split_indexed([path], validation=0.0, folder=tmp_path)
    assert tokens_of(train, tmp_path) == [3, 4, 1, 2]


def test_the_share_is_of_the_range_of_hashes():
    assert held_out_below(0.0) == 0
    assert held_out_below(0.5) == 1 << 63
    assert held_out_below(1.0) == 1 << 64
