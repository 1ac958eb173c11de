"""Which lines of a rank are read: all of small files, the ends of large ones, the older first."""

from engine.diagnose.eventlines import decode_lines
from engine.diagnose.load import load_spans
from tests.engine.diagnose.test_load import CLOCK, step_of, write


def test_of_large_files_the_first_line_and_the_newest_whole_steps_are_read(tmp_path):
    steps = [line for number in range(1, 200) for line in step_of(number, number * 1000)]
    path = write(tmp_path, 0, [CLOCK, *steps])
    whole_run = load_spans(path.parent)
    assert not whole_run.cut
    decoded = decode_lines(path, path.stat().st_size // 10)
    assert decoded.is_cut
    assert decoded.lines[0].name == "clock"
    first = decoded.lines[1].step
    assert [one for one in decoded.lines[1:] if one.step == first] == [
        one for one in decode_lines(path).lines if one.step == first
    ]
    assert 175 < first < 185
    assert decoded.lines[-1] == decode_lines(path).lines[-1]


def test_the_older_part_of_a_file_is_read_before_it(tmp_path):
    steps = [line for number in range(1, 9) for line in step_of(number, number * 1000)]
    path = write(tmp_path, 0, [CLOCK, *steps])
    every = load_spans(path.parent)
    lines = path.read_bytes().splitlines(keepends=True)
    path.with_name(path.name + ".1").write_bytes(b"".join(lines[:20]))
    path.write_bytes(lines[0] + b"".join(lines[20:]))
    again = load_spans(path.parent)
    assert again.steps.tolist() == every.steps.tolist()
    for part, seconds in every.seconds.items():
        assert (again.seconds[part] == seconds).all()
    assert decode_lines(path).older == 20


def test_just_after_a_file_was_begun_anew_the_end_of_the_older_one_is_read(tmp_path):
    steps = [line for number in range(1, 200) for line in step_of(number, number * 1000)]
    path = write(tmp_path, 0, [CLOCK, *steps])
    lines = path.read_bytes().splitlines(keepends=True)
    older = path.with_name(path.name + ".1")
    older.write_bytes(b"".join(lines[:-10]))
    path.write_bytes(lines[0] + b"".join(lines[-10:]))
    decoded = decode_lines(path, older.stat().st_size // 10)
    assert decoded.is_cut
    seen = sorted({line.step for line in decoded.lines if line.kind == "span"})
    assert seen == list(range(seen[0], 200))
    assert 175 < seen[0] < 185
    for step in (seen[0], 197, 198, 199):
        assert sum(line.step == step and line.kind == "span" for line in decoded.lines) == 5
