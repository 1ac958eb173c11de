"""What is packed: the wheel's contents, the container files; `make package` tries the wheel."""

import os
import re
import subprocess
import sys

import pytest

from tests.house.source import ROOT
from tools.package import NEEDED, build, lacks

CONTAINERS = ROOT / "containers"
ASKED = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""Makes typer take the shell's name from the command line; a test's own parent may be no shell."""


@pytest.mark.multi
@pytest.mark.slow
def test_the_wheel_holds_what_it_needs_and_nothing_else(tmp_path):
    pytest.importorskip("build")
    wheel = build(tmp_path)
    assert lacks(wheel) == []
    assert wheel.name.endswith("-py3-none-any.whl")
    assert list(tmp_path.glob("msctl-*.tar.gz"))
    assert wheel.stat().st_size < 5e6


def test_what_the_wheel_needs_is_in_the_tree():
    assert [name for name in NEEDED if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", ["Dockerfile", "msctl.def"])
def test_a_container_copies_only_what_exists(name):
    text = (CONTAINERS / name).read_text()
    if name == "Dockerfile":
        copied = [words.split()[:-1] for words in re.findall(r"^COPY (.+)$", text, re.MULTILINE)]
        sources = [one for words in copied for one in words]
    else:
        block = text[text.index("%files") : text.index("%post")]
        sources = [line.split()[0] for line in block.splitlines()[1:] if line.strip()]
    assert len(sources) > 4
    assert [one for one in sources if not (ROOT / one).exists()] == []


@pytest.mark.multi
def test_completion_is_there_for_the_usual_shells():
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [sys.executable, "-m", "msctl", "--show-completion", shell], cwd=ROOT,
            capture_output=True, text=True, check=False, env=os.environ | {ASKED: "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "msctl" in done.stdout
