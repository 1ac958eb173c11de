"""Rules 5 and 10: generated pages are current, console blocks run, the paper map is whole."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.house.source import ROOT, ROWS
from tests.house.test_commands import parse
from tools.generate import FILES, stale

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
PAPER_MAP = ROOT / "docs" / "explanation" / "paper-map.md"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def console_lines(path: Path) -> list[str]:
    """The commands typed in a page's console blocks."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    blocks = BLOCK.findall(text)
    joined = [block.replace("\\\n", " ") for block in blocks]
    return [line[2:] for block in joined for line in block.splitlines() if line.startswith("$ ")]


def needs_no_run(path: Path) -> bool:
    """Whether a page's console blocks work without a run that trains first."""
    lines = console_lines(path)
    return bool(lines) and not any(
        line.startswith("msctl train") and "--dry-run" not in line for line in lines
    )


@pytest.mark.parametrize("name", FILES)
def test_generated_files_are_current(name):
    assert name not in stale(), f"{name} is stale: run make docs"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_msctl_lines_of_console_blocks_parse(path):
    for line in console_lines(path):
        words = shlex.split(line, comments=True)
        if words[:1] == ["msctl"] and not {"|", ">", ";", "&&"} & set(words):
            parse(shlex.join(words))


@pytest.mark.multi
@pytest.mark.slow
@pytest.mark.parametrize("path", [*TUTORIALS, *filter(needs_no_run, HOW_TO)], ids=lambda p: p.name)
def test_console_blocks_run(path, tmp_path):
    """In a folder with the recipes and the docs; a line may say how it ends: `# exits 4`."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    for line in console_lines(path):
        said = re.search(r"# exits (\d+)", line)
        script = f'PATH="{ROOT}/.venv/bin:$PATH"; {line}'
        ended = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True,
                               timeout=280, check=False)  # fmt: skip
        assert ended.returncode == (int(said[1]) if said else 0), f"{line}\n{ended.stderr}"


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(path):
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    inside = [
        link for link in LINK.findall(text) if "://" not in link and not link.startswith("mailto")
    ]
    broken = [link for link in inside if not (path.parent / link).exists()]
    assert not broken, broken


def test_the_paper_map_names_every_room_and_only_what_exists():
    if not PAPER_MAP.exists():
        pytest.skip("docs/explanation/paper-map.md is not written yet")
    text = PAPER_MAP.read_text(encoding="utf-8")
    rooms = [
        r for r in ROWS if (ROOT / "engine" / r).is_dir() or (ROOT / "engine" / f"{r}.py").exists()
    ]
    assert not [r for r in rooms if f"engine/{r}" not in text]
    paths = re.findall(r"`((?:engine|msctl|recipes|docs|tests|bench|tools)/[^`*<>\s]*)`", text)
    assert not [p for p in paths if not (ROOT / p).exists()]
