import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.megatron import IndexedTokens, IndexedWriter
from engine.errors import RecipeError

DOCUMENTS = [[[1, 2, 3], [4]], [[5, 6]], [], [[7]]]


def by_hand(documents, code="<H", number=8, pointers=None, index=None, **header):
    """A pair written field by field from the published layout."""
    item = struct.calcsize(code)
    sequences = [s for d in documents for s in d]
    tokens = b"".join(struct.pack(code, t) for s in sequences for t in s)
    if index is None:
        index = [0]
        for d in documents:
            index.append(index[-1] + len(d))
    if pointers is None:
        pointers = [item * sum(map(len, sequences[:i])) for i in range(len(sequences))]
    out = header.get("magic", b"MMIDIDX\0\0") + struct.pack("<Q", header.get("version", 1))
    out += struct.pack("<B", number)
    out += struct.pack("<QQ", header.get("count", len(sequences)), header.get("docs", len(index)))
    out += struct.pack(f"<{len(sequences)}i", *header.get("lengths", map(len, sequences)))
    out += struct.pack(f"<{len(pointers)}q", *pointers)
    out += struct.pack(f"<{len(index)}q", *index)
    return tokens, out


def put(folder, pair):
    (folder / "t.bin").write_bytes(pair[0])
    (folder / "t.idx").write_bytes(pair[1])
    return folder / "t.idx"


def documents_of(pair):
    return [pair.document(i).tolist() for i in range(pair.num_documents)]


@pytest.mark.parametrize(
    ("number", "code"), [(1, "<B"), (2, "<b"), (3, "<h"), (4, "<i"), (5, "<q"), (8, "<H")]
)
def test_every_token_type_of_the_layout_is_read(tmp_path, number, code):
    pair = IndexedTokens(put(tmp_path, by_hand(DOCUMENTS, code, number)))
    assert documents_of(pair) == [[1, 2, 3, 4], [5, 6], [], [7]]
    assert pair.sequence(1).tolist() == [4]
    assert (pair.num_sequences, pair.num_documents, pair.num_tokens) == (4, 4, 7)


def test_what_is_written_is_the_published_layout(tmp_path):
    with IndexedWriter(tmp_path / "w", vocab=1000) as writer:
        for document in DOCUMENTS:
            for sequence in document:
                writer.add(np.array(sequence))
            writer.end_document()
    tokens, index = by_hand(DOCUMENTS)
    assert (tmp_path / "w.bin").read_bytes() == tokens
    assert (tmp_path / "w.idx").read_bytes() == index


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_round_trip(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("pair")
    vocab = data.draw(st.sampled_from([100, 65499, 65500, 200_000]))
    tokens = st.lists(st.integers(0, vocab - 1), max_size=6)
    documents = data.draw(st.lists(st.lists(tokens, max_size=3), max_size=5))
    with IndexedWriter(folder / "p", vocab=vocab) as writer:
        for document in documents:
            for sequence in document:
                writer.add(np.array(sequence, dtype=np.int64))
            writer.end_document()
    pair = IndexedTokens(folder / "p")
    assert documents_of(pair) == [[t for s in d for t in s] for d in documents]
    assert pair.dtype == np.dtype("<u2" if vocab < 65500 else "<i4")


def test_a_last_document_that_was_not_closed_is_kept(tmp_path):
    with IndexedWriter(tmp_path / "w", vocab=10) as writer:
        writer.add(np.array([3]))
    assert documents_of(IndexedTokens(tmp_path / "w")) == [[3]]


def test_tokens_beyond_the_vocabulary_are_not_written(tmp_path):
    writer = IndexedWriter(tmp_path / "w", vocab=10)
    for wrong in (10, -1):
        with pytest.raises(ValueError, match=r"outside 0 \.\. 9"):
            writer.add(np.array([wrong]))
    writer.close()


def test_after_an_exception_there_is_no_pair(tmp_path):
    with pytest.raises(KeyError), IndexedWriter(tmp_path / "w", vocab=10):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_modes_of_multimodal_files_are_ignored(tmp_path):
    tokens, index = by_hand(DOCUMENTS)
    assert documents_of(IndexedTokens(put(tmp_path, (tokens, index + b"\1" * 4))))[0][0] == 1


def test_sequences_may_lie_in_any_order(tmp_path):
    pair = by_hand([[[1, 2]], [[3, 4]]], pointers=[4, 0])
    assert documents_of(IndexedTokens(put(tmp_path, pair))) == [[3, 4], [1, 2]]


HOSTILE = {
    "magic": (by_hand(DOCUMENTS, magic=b"PK\3\4 zip!"), "begins with"),
    "version": (by_hand(DOCUMENTS, version=2), "version 2"),
    "type": (by_hand(DOCUMENTS, number=9), "token type 9"),
    "float": (by_hand(DOCUMENTS, "<f", 7), "holds float32"),
    "count": (by_hand(DOCUMENTS, count=2**63), "has 122 bytes, but 9223372036854775808 sequences"),
    "docs": (by_hand(DOCUMENTS, docs=2**60), "a document index of 1152921504606846976"),
    "no docs": (by_hand([], index=[]), "no document index"),
    "short": ((b"", by_hand(DOCUMENTS)[1][:20]), "fewer than its header"),
    "torn": ((b"", by_hand(DOCUMENTS)[1][:-1]), "need 122"),
    "empty": ((b"", b""), "has 0 bytes"),
    "length": (by_hand(DOCUMENTS, lengths=[3, 1, 2, -1]), "sequence 3 .* -1 tokens"),
    "negative": (by_hand(DOCUMENTS, pointers=[0, 6, -8, 12]), "sequence 2 at byte -8"),
    "beyond": (by_hand(DOCUMENTS, pointers=[0, 6, 8, 14]), "sequence 3 at byte 14"),
    "overflow": (by_hand(DOCUMENTS, pointers=[0, 6, 8, 2**63 - 1]), "sequence 3 at byte 9223"),
    "odd": (by_hand(DOCUMENTS, pointers=[0, 5, 8, 12]), "sequence 1 at byte 5"),
    "missing tokens": ((b"12", by_hand(DOCUMENTS)[1]), "has 2 bytes"),
    "start": (by_hand(DOCUMENTS, index=[1, 2, 3, 3, 4]), "from sequence 1 to 4"),
    "end": (by_hand(DOCUMENTS, index=[0, 2, 3, 3, 9]), "to 9, not from 0 to 4"),
    "back": (by_hand(DOCUMENTS, index=[0, 3, 2, 3, 4]), "document 1 end before it begins"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_indexes_are_refused(tmp_path, case):
    pair, message = HOSTILE[case]
    with pytest.raises(RecipeError, match=rf"t\.idx: .*{message}"):
        IndexedTokens(put(tmp_path, pair))


@given(st.integers(0, 121), st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_any_changed_byte_is_refused_or_reads_inside_the_files(tmp_path_factory, at, value):
    folder = tmp_path_factory.mktemp("fuzz")
    tokens, index = by_hand(DOCUMENTS)
    index = index[:at] + bytes([value]) + index[at + 1 :]
    try:
        pair = IndexedTokens(put(folder, (tokens, index)))
    except RecipeError:
        return
    assert all(len(d) <= 14 for d in documents_of(pair))


def test_a_missing_half_is_named(tmp_path):
    put(tmp_path, by_hand(DOCUMENTS))
    (tmp_path / "t.bin").unlink()
    with pytest.raises(RecipeError, match=r"t\.bin: No such file"):
        IndexedTokens(tmp_path / "t")


def test_a_pair_without_tokens_is_empty(tmp_path):
    pair = IndexedTokens(put(tmp_path, by_hand([[[]], []])))
    assert documents_of(pair) == [[], []]
