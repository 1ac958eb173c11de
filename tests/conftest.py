"""Fixtures for all tests: the command line in this process, golden files, skipped GPU tests."""

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

settings.register_profile("house", max_examples=50, deadline=None, derandomize=True)
settings.load_profile("house")

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
_LATE = ("native", "multi", "slow", "gpu")
"""Markers in the order in which their tests run."""


class Ended(NamedTuple):
    """How a command line ended."""

    code: int
    out: str
    err: str


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden", action="store_true", help="rewrite golden files, then look at the diff"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Snapshots that tests leave in memory lie in a folder of their own and go with it."""
    if "MSCTL_SPOOL" not in os.environ:
        os.environ["MSCTL_SPOOL"] = tempfile.mkdtemp(prefix="msctl-test-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop("MSCTL_SPOOL"), ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fastest first: house rules, unmarked tests, then compiling, starting ranks, slow ones.

    Without a CUDA device `gpu` tests are skipped, with that reason.
    """
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))

    def late(item: pytest.Item) -> int:
        marks = [i for i, mark in enumerate(_LATE) if item.get_closest_marker(mark)]
        house = "house" in item.path.parts
        return max(marks, default=-2 if house else -1)

    items.sort(key=late)  # stable: the order within a file stays
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported and collected stays: no garbage collection need look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture
def msctl(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run `msctl ARGUMENTS` in this process: `msctl("plan", "--json")`."""
    from msctl.app import main

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main(arguments)
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with `tests/golden/NAME`; `pytest --golden` writes it instead."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {path}: run pytest --golden and look at it"
        assert text == path.read_text(encoding="utf-8")

    return compare


def pytest_terminal_summary(terminalreporter: object) -> None:
    """A green run without a GPU does not pretend: count what was not looked at."""
    skipped = getattr(terminalreporter, "stats", {}).get("skipped", [])
    gpu = [report for report in skipped if "gpu" in getattr(report, "keywords", {})]
    if gpu:
        terminalreporter.write_line(f"{len(gpu)} tests need a CUDA device and were not run")  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _log_level_as_before() -> Iterator[None]:
    """`msctl -q` in this process makes the log quiet; the next test wants its warnings."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
