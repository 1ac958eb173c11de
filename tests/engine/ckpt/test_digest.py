"""Digests of chunks against xxhash over slices of the whole."""

from itertools import pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from engine.ckpt.digest import ChunkDigests, watched


def of_slices(data, size):
    return "".join(
        xxhash.xxh3_128_hexdigest(data[at : at + size]) for at in range(0, len(data), size)
    )


@given(st.binary(max_size=60), st.integers(1, 20), st.lists(st.integers(0, 60)))
def test_a_stream_in_any_parts_has_the_digests_of_its_chunks(data, size, cuts):
    ends = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    digests = ChunkDigests(size)
    for lo, hi in pairwise(ends):
        digests.update(memoryview(data)[lo:hi])
    assert digests.finish() == of_slices(data, size)


@pytest.mark.parametrize(("count", "chunks"), [(0, 0), (1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_a_file_has_as_many_digests_as_chunks_begun(count, chunks):
    digests = ChunkDigests(8)
    digests.update(memoryview(bytes(count)))
    assert len(digests.finish()) == 32 * chunks


def test_watched_views_pass_unchanged():
    views = [memoryview(b"ab"), memoryview(b""), memoryview(b"cde")]
    digests = ChunkDigests(4)
    assert list(watched(iter(views), digests)) == views
    assert digests.finish() == of_slices(b"abcde", 4)
