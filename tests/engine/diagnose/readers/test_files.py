"""Opening what somebody else wrote: compressed, in UTF-16, cut short, hidden or endless."""

import gzip
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose.readers import files
from engine.diagnose.readers.files import (
    FileFault,
    check_place,
    files_below,
    is_binary,
    read_chunks,
    read_limited,
)
from engine.errors import TraceError

TEXT = "".join(f"line {n} of a log – ok\n" for n in range(200))
FORMS = {
    "plain": TEXT.encode(),
    "gz": gzip.compress(TEXT.encode()),
    "zst": zstandard.compress(TEXT.encode()),
    "utf16": TEXT.encode("utf-16"),
    "utf16be": b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "gz of utf16": gzip.compress(TEXT.encode("utf-16")),
    "zst of utf16": zstandard.compress(TEXT.encode("utf-16")),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_every_form_gives_the_same_text(tmp_path, form, chunk):
    path = tmp_path / "log"
    path.write_bytes(FORMS[form])
    pieces = list(read_chunks(path, chunk=chunk))
    assert b"".join(pieces) == TEXT.encode()
    if form in ("plain", "gz", "zst"):
        assert max(map(len, pieces)) <= chunk


@pytest.mark.parametrize("data", [b"", b"\x1f", b"\xff", b"a"])
def test_files_of_no_or_one_byte_are_themselves(tmp_path, data):
    path = tmp_path / "log"
    path.write_bytes(data)
    assert b"".join(read_chunks(path)) == data


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_what_was_read_before_the_damage_stays_valid(tmp_path, form):
    path = tmp_path / "log"
    noise = os.urandom(300_000).hex().encode()
    data = gzip.compress(noise) if form == "gz" else zstandard.compress(noise)
    path.write_bytes(data[: len(data) // 2])
    pieces = []
    with pytest.raises(FileFault, match="ends early"):
        pieces.extend(read_chunks(path, chunk=1 << 12))
    # list.extend keeps what came before the fault
    assert noise.startswith(b"".join(pieces))
    assert len(pieces) > 2


def test_a_packed_log_without_its_end_gives_all_its_lines(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b"ok\nthe error\n")[:-8])
    pieces = []
    with pytest.raises(FileFault, match="ends early"):
        pieces.extend(read_chunks(path))
    assert b"".join(pieces) == b"ok\nthe error\n"


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_files_that_were_put_together_are_read_to_the_end(tmp_path, pack):
    path = tmp_path / "log"
    path.write_bytes(b"".join(pack(text) for text in (b"one\n", b"", b"two\n")))
    assert read_limited(path, 8) == b"one\ntwo\n"
    path.write_bytes(pack(b"one\n") + b"something else")
    with pytest.raises(FileFault, match="damaged"):
        read_limited(path, 8)


def test_a_damaged_check_sum_is_a_fault(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(FORMS["gz"][:-8] + b"\0" * 8)
    with pytest.raises(FileFault):
        list(read_chunks(path))
    path.write_bytes(b"\x1f\x8b" + b"\xff" * 40)
    with pytest.raises(FileFault):
        list(read_chunks(path))


def test_what_cannot_be_opened_is_a_fault(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileFault, match="cannot be read"):
            list(read_chunks(path))


def test_a_limit_counts_bytes_after_decompression(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(FORMS["gz"])
    size = len(TEXT.encode())
    assert read_limited(path, size) == TEXT.encode()
    with pytest.raises(FileFault, match=f"larger than the {size - 1} bytes"):
        read_limited(path, size - 1)


@pytest.mark.parametrize(("limit", "ends"), [(1 << 20, True), (2 << 20, False)])
def test_a_compressed_file_grows_to_its_bound_and_no_further(tmp_path, monkeypatch, limit, ends):
    path = tmp_path / "log"
    monkeypatch.setattr(files, "EXPANDED_LIMIT", limit)
    path.write_bytes(gzip.compress(b"a" * (2 << 20)))
    if not ends:
        assert len(read_limited(path, 1 << 30)) == 2 << 20
        return
    with pytest.raises(FileFault, match="expands to more"):
        read_limited(path, 1 << 30)


def test_a_thousandfold_growth_is_a_bomb_only_from_64_mib_on():
    files._bound(64 << 20, 1)
    files._bound(65 << 20, 65 << 11)
    for total, size in (((64 << 20) + 1, 1), (65 << 20, (65 << 20) // 1000)):
        with pytest.raises(FileFault, match="expands"):
            files._bound(total, size)


def test_regular_files_in_the_order_of_their_paths(tmp_path):
    for name in ("b/2.log", "b/10.log", "a.log", ".hidden", ".git/x", "b/.x", "note.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.log").symlink_to(tmp_path / "a.log")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    found = files_below(tmp_path, frozenset({"note.md"}))
    names = [str(p.relative_to(tmp_path)) for p in found]
    assert names == ["a.log", "b/10.log", "b/2.log", "link.log"]
    assert files_below(tmp_path / "a.log") == [tmp_path / "a.log"]


def test_of_very_many_files_the_first_are_taken(tmp_path, monkeypatch):
    for n in range(6):
        (tmp_path / f"{n}.log").write_text("")
    monkeypatch.setattr(files, "_MOST_FILES", 4)
    assert [p.name for p in files_below(tmp_path)] == ["0.log", "1.log", "2.log", "3.log"]


@pytest.mark.parametrize(
    ("head", "binary"),
    [
        (b"", False), (b"\x1b[32mok\x1b[0m\t\r\n\f", False), (TEXT.encode(), False),
        (b"\x00" * 10, True), (bytes(range(256)), True), (TEXT.encode("utf-16"), False),
        (b"a" * 90 + b"\x00" * 10, False), (b"a" * 89 + b"\x00" * 11, True),
        (b"a" * 4096 + b"\x00" * 4096, False),
    ],
)  # fmt: skip
def test_text_is_told_from_binary_by_its_control_characters(head, binary):
    assert is_binary(head) == binary


@settings(max_examples=30)
@given(st.text(st.characters(min_codepoint=32, codec="utf-8")))
def test_no_text_is_binary(text):
    assert not is_binary(text.encode())


def test_a_pipe_is_a_fault_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "dmesg.log")
    with pytest.raises(FileFault, match="a pipe or a device"):
        list(read_chunks(tmp_path / "dmesg.log"))
    with pytest.raises(FileFault, match="a pipe or a device"):
        list(read_chunks(Path(os.devnull)))


def test_a_place_is_a_file_or_a_folder_that_may_be_entered(tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    check_place(tmp_path, missing="look again")
    check_place(tmp_path / "pipe", missing="look again", pipes=True)
    for name, what in (
        ("nowhere", "no such file"),
        ("loop", "cannot be looked at"),
        ("x" * 300, "cannot be looked at: File name too long"),
        ("pipe", "a pipe or a device"),
    ):
        with pytest.raises(TraceError, match=what) as caught:
            check_place(tmp_path / name, missing="look again")
        assert caught.value.remedy
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may enter every folder
    with pytest.raises(TraceError, match="cannot be looked at: Permission denied"):
        check_place(tmp_path, missing="look again")
