"""Rule 9: every product file has its test file, every native entry point its reference test."""

import re

import pytest

from tests.house.source import ROOT, ROWS, files, name, room

COVERED_BY = {
    "msctl/__main__.py": "tests/msctl/test_ui.py",  # run as a process there
    "engine/spec/check.py": "tests/engine/spec/test_check.py",
}
"""Files that another test file covers, with the reason."""


def _expected(path) -> str:
    inside = path.relative_to(ROOT)
    folder = inside.parent.as_posix().replace("msctl/commands", "msctl")
    return f"tests/{folder}/test_{inside.name}"


@pytest.mark.parametrize("which", sorted(ROWS))
def test_every_file_of_a_room_has_its_test_file(which):
    missing = []
    for path in files():
        if room(path) != which or path.name == "__init__.py":
            continue
        expected = COVERED_BY.get(name(path), _expected(path))
        if not (ROOT / expected).exists():
            missing.append(f"{name(path)} -> {expected}")
    assert not missing, "\n".join(missing)


def test_every_native_entry_point_is_tested():
    sources = [
        *(ROOT / "engine" / "csrc").rglob("*.cu"),
        *(ROOT / "engine" / "csrc").rglob("*.cpp"),
    ]
    texts = [p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("*.py")]
    exported = re.compile(r'extern "C"[^;{(]*?(\w+)\s*\(')
    names = {n for p in sources for n in exported.findall(p.read_text(encoding="utf-8"))}
    assert not [n for n in sorted(names) if not any(n in text for text in texts)]
