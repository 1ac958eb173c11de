"""The first cut: every line that the table knows, at its line and byte, and nothing else."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.diagnose.logs import scan
from engine.diagnose.logs.rules import match
from engine.diagnose.logs.scan import Scanner
from engine.diagnose.logs.table import RULES

HEALTHY = "2026-01-01 [rank3] INFO iteration {n}/9 | lm loss: 2.0"
BAD = "OSError: [Errno 28] No space left on device"


def hits_of(path, scanner=None):
    found = (scanner or Scanner()).scan(path)
    return sorted(
        (hit for hits in found.hits.values() for hit in hits), key=lambda h: h.line
    ), found


LINES = st.sampled_from([
    "", "ok", HEALTHY.format(n=1), HEALTHY.format(n=22), BAD, "KeyError: 'x'", "Traceback",
    "NVRM: Xid (PCI:0000:0f:00): 79, gone", "NVRM: Xid (PCI:0000:0f:00): 48, DBE",
    "NVRM: Xid (PCI:0000:0f:00): 1, harmless", " lm loss: nan |", " lm loss: 2.5 |", "é – ü",
    "Ranks 3, 5 failed to pass monitoredBarrier", "Ranks 12 failed to pass monitoredBarrier",
])  # fmt: skip


@settings(max_examples=20)
@given(st.lists(LINES, max_size=30), st.booleans(), st.sampled_from([40, 1000]))
def test_hits_are_those_of_the_table_line_by_line(tmp_path_factory, lines, ends, chunk):
    path = tmp_path_factory.mktemp("scan") / "log"
    data = ("\n".join(lines) + ("\n" if ends else "")).encode()
    path.write_bytes(data)
    right = []
    offset = 0
    for number, line in enumerate(lines, 1):
        found = match(line)
        if found is not None:
            right.append((number, offset, line, RULES.index(found.rule), found.named))
        offset += len(line.encode()) + 1
    pieces = (data[at : at + chunk] for at in range(0, len(data), chunk))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "read_chunks", lambda path: pieces)
        hits, found = hits_of(path)
    assert [hit[:5] for hit in hits] == right[: len(hits)]
    assert sum(found.counts.values()) == len(right)
    assert found.size == len(data)
    assert found.lines == data.count(b"\n") + bool(data and not data.endswith(b"\n"))


def test_a_scanner_that_has_seen_other_files_says_the_same(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("NVRM: Xid (PCI:0000:0f:00): 1, harmless\n" + BAD + "\nall is well 12\n")
    second.write_text("NVRM: Xid (PCI:0000:0f:00): 79, harmless\nall is well 13\n" + BAD + "\n")
    used = Scanner()
    used.scan(first)
    assert hits_of(second, used)[0] == hits_of(second)[0]
    assert [hit.line for hit in hits_of(second, used)[0]] == [1, 3]


def test_twelve_hits_of_a_rule_are_kept_and_all_are_counted(tmp_path):
    path = tmp_path / "log"
    path.write_text(f"{BAD}\n" * 50)
    hits, found = hits_of(path)
    assert [hit.line for hit in hits] == list(range(1, 13))
    assert list(found.counts.values()) == [50]


def test_words_where_a_number_was_survive_the_deletion_of_digits(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "".join(f"step {n} lm loss: {2 + n / 1000}\n" for n in range(999))
        + "step 999 lm loss: nan\n"
    )
    (hit,) = hits_of(path)[0]
    assert (hit.line, RULES[hit.rule].category) == (1000, "numeric")


def test_a_line_that_only_talks_about_an_error_is_marked(tmp_path):
    path = tmp_path / "log"
    path.write_text(f"hint: {BAD} means a full disk\n{BAD}\n")
    assert [hit.advice for hit in hits_of(path)[0]] == [True, False]


@pytest.mark.parametrize("size", [100, 4096, 4097, 200_000])
def test_head_and_tail_are_the_first_and_last_bytes(tmp_path, size):
    path = tmp_path / "log"
    data = "".join(f"{n} lines\n" for n in range(40_000))[:size]
    path.write_text(data)
    found = Scanner().scan(path)
    assert (found.head, found.tail) == (data[:4096], data[-4096:])
    assert found.faults == ()


def test_after_a_line_beyond_the_limit_lines_and_bytes_still_count(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "_LINE_LIMIT", 100_000)
    path = tmp_path / "log"
    long = b"KeyError: 'x' " + b"y" * 300_000
    path.write_bytes(b"ok\n" + long + b"\nok\n" + BAD.encode() + b"\n")
    hits, found = hits_of(path)
    assert [(hit.line, hit.offset) for hit in hits] == [(2, 3), (4, 3 + len(long) + 4)]
    assert len(hits[0].text) == 4096
    assert found.lines == 4
    assert found.faults == ("line 2 is longer than 100000 bytes: its start was read",)


def test_an_error_far_behind_in_a_line_is_not_looked_for(tmp_path):
    path = tmp_path / "log"
    path.write_text("x" * 5000 + BAD + "\n")
    assert hits_of(path)[0] == []


def test_binary_missing_and_damaged_files_are_faults(tmp_path):
    binary = tmp_path / "core"
    binary.write_bytes(bytes(range(256)) * 9)
    found = Scanner().scan(binary)
    assert (found.faults, found.size, found.hits) == (("is no text",), 256 * 9, {})
    assert "cannot be read" in Scanner().scan(tmp_path / "none").faults[0]
    cut = tmp_path / "log.gz"
    cut.write_bytes(gzip.compress(f"ok\n{BAD}\n{BAD}".encode())[:-8])
    hits, found = hits_of(cut)
    assert len(found.faults) == 1
    assert [hit.line for hit in hits] == [2, 3]


def test_the_first_cut_asks_for_words_of_any_case_and_for_no_healthy_line():
    scanner = Scanner()
    assert scanner.keeps(BAD.upper())
    assert scanner.keeps("lm loss: NaN")
    assert not scanner.keeps("initializing the banana of 12 pieces")


def test_of_a_torchrun_error_file_only_the_message_is_read(tmp_path):
    path = tmp_path / "error.json"
    stack = "from . import errors\nConnection refused\nKeyError: 'x'"
    said = {"message": {"message": "KeyError: 'x'", "extraInfo": {"py_callstack": stack}}}
    for value in (said, {"message": "KeyError: 'x'"}):
        path.write_text(json.dumps(value))
        scan = Scanner().scan(path)
        texts = [hit.text for hits in scan.hits.values() for hit in hits]
        assert (texts, scan.complete) == (["KeyError: 'x'"], True)
    for bad in ("", "{", "[]", '{"message": 3}', "[" * 9999):
        path.write_text(bad)
        assert Scanner().scan(path).complete  # read as text then


def test_what_could_not_be_read_to_its_end_is_not_complete(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"\0\1\2" * 2000)
    assert not Scanner().scan(path).complete
    assert not Scanner().scan(tmp_path / "gone.log").complete
    packed = gzip.compress(b"iteration 5\n" * 5000)
    (tmp_path / "b.log.gz").write_bytes(packed[: len(packed) // 2])
    assert not Scanner().scan(tmp_path / "b.log.gz").complete
