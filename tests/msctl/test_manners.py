"""First-run manners: locales, pipes, Windows line ends, Ctrl-C, typing errors."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "docs" / "samples" / "megatron"
pytestmark = pytest.mark.multi


def msctl(*words, code=0, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "msctl", *map(str, words)], cwd=ROOT, capture_output=True,
        timeout=200, check=False, env=os.environ | variables,
    )  # fmt: skip
    assert done.returncode == code, done.stderr.decode(errors="replace")
    return done.stdout, done.stderr


def test_an_ascii_terminal_gets_ascii():
    plain = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii",
             "PYTHONCOERCECLOCALE": "0"}  # fmt: skip
    for words, code in ((["diagnose", "--help"], 0), (["diagnose", "--logs", SAMPLE], 4)):
        out, _ = msctl(*words, code=code, **plain)
        out.decode("ascii")


def test_no_colour_where_none_is_wanted():
    out, err = msctl("diagnose", "--logs", SAMPLE, code=4, NO_COLOR="1", FORCE_COLOR="")
    assert b"\x1b[" not in out + err


def test_a_recipe_with_windows_line_ends_is_read(tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_bytes((ROOT / "recipes" / "tiny.toml").read_bytes().replace(b"\n", b"\r\n"))
    out, _ = msctl("train", recipe, "--dry-run")
    assert b"tp 2 x pp 2" in out


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m msctl selfcheck --list | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True,
                          timeout=200, check=False)  # fmt: skip
    assert b"Traceback" not in done.stderr
    assert b"bug in msctl" not in done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["diagnos"], b"diagnose"),
        (["plan", "--modle", "175b"], b"--model"),
        (["train", "recipes/tinny.toml"], b"recipes/tiny.toml"),
        (["train", "recipes/tiny.toml", "--set", "train.stps=3"], b"train.steps"),
        (["plan", "--model", "175c"], b"175b"),
    ],
)
def test_the_nearest_name_is_offered(words, meant):
    done = subprocess.run(
        [sys.executable, "-m", "msctl", *words], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode not in (0, 1)
    assert meant in done.stderr


def test_ctrl_c_while_reading_logs_is_clean(tmp_path):
    line = b"".join(b"word%d " % (n * 7919 % 10_007) for n in range(40)) + b"failed\n"
    for number in range(20):
        (tmp_path / f"rank_{number}.log").write_bytes(line * 40_000)
    running = subprocess.Popen(
        [sys.executable, "-m", "msctl", "diagnose", "--logs", str(tmp_path)], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    time.sleep(1.5)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode in (130, -signal.SIGINT, 0, 4)  # it may have been quicker
    assert b"Traceback" not in told or running.returncode == -signal.SIGINT
