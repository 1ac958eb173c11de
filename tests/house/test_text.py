"""What is committed speaks of the product alone: no machine's paths, no registries' hosts."""

import re
import subprocess

import pytest

from tests.house.source import ROOT

FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.])/(?:work|root|home/(?!x/|user/)\w+)/",
    "a registry's host": r"files\.pythonhosted|pypi\.org|registry\.npmjs|deb\.debian\.org",
    "a to-do without an owner": r"\b(?:TODO|FIXME|XXX)\b",
}  # fmt: skip
NOT_LOOKED_AT = {"tests/house/test_text.py", "LICENSE"}


@pytest.mark.multi
@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_committed_file_holds(what):
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git work tree")
    wrong = []
    for path in listed.stdout.split():
        if path in NOT_LOOKED_AT or not (ROOT / path).is_file():
            continue
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [
            f"{path}:{text.count(chr(10), 0, m.start()) + 1}"
            for m in re.finditer(FORBIDDEN[what], text)
        ]
    assert not wrong, "\n".join(wrong[:50])
