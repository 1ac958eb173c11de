"""A folder goes with its owner, or with the next one that is made after the owner was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.comm.private_folder import PrivateFolder, sweep

_HOLD = """
import sys, time
from engine.comm.private_folder import PrivateFolder
folder = PrivateFolder("msctl-test-")
(folder.path / "log").write_text("much")
print(folder.path, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_private_and_goes_when_it_is_removed(own_space: Path) -> None:
    folder = PrivateFolder("msctl-test-")
    assert folder.path.parent == own_space
    assert folder.path.stat().st_mode & 0o077 == 0
    folder.remove()
    assert list(own_space.iterdir()) == []


def test_one_that_is_held_stays() -> None:
    first = PrivateFolder("msctl-test-")
    second = PrivateFolder("msctl-test-")
    assert first.path.exists()
    assert sweep("msctl-test-") == []
    first.remove()
    second.remove()


def test_what_has_no_owner_s_file_or_is_no_folder_stays(own_space: Path) -> None:
    (own_space / "msctl-test-new").mkdir()
    (own_space / "msctl-test-file").write_text("")
    elsewhere = own_space / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner").write_text("")
    (own_space / "msctl-test-link").symlink_to(elsewhere)
    assert sweep("msctl-test-") == []
    assert (elsewhere / "owner").exists()


def owned(space: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process and the folder that it holds."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(space)},
    )  # fmt: skip
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


@pytest.mark.multi
def test_one_whose_owner_was_killed_goes_with_the_next(own_space: Path) -> None:
    owner, left = owned(own_space)
    assert sweep("msctl-test-") == []
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert (left / "log").exists()
    following = PrivateFolder("msctl-test-")
    assert not left.exists()
    following.remove()


@pytest.mark.multi
def test_one_whose_owner_was_killed_can_be_taken_over(own_space: Path) -> None:
    owner, left = owned(own_space)
    with pytest.raises(BlockingIOError):
        PrivateFolder.adopt(left)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    found = PrivateFolder.adopt(left)
    assert sweep("msctl-test-") == []
    assert (left / "log").read_text() == "much"
    found.remove()
    assert not left.exists()


def test_what_is_gone_or_no_folder_is_not_taken_over(own_space: Path) -> None:
    (own_space / "msctl-test-file").write_text("")
    for name in ("msctl-test-file", "msctl-test-gone"):
        with pytest.raises(OSError, match="msctl-test-"):
            PrivateFolder.adopt(own_space / name)
