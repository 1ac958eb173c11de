"""A spread of the campaigns of bench/ckpt, so that they and what they prove stay true."""

import json
import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.slow]


def campaign(root, script, *options):
    """The JSON lines a script prints; it ends with 0 if nothing was violated."""
    line = [sys.executable, str(root / "bench" / "ckpt" / script), *map(str, options)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=250, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [json.loads(row) for row in ended.stdout.splitlines()]


def test_damage_of_any_kind_is_found_named_and_not_loaded(root, tmp_path):
    (total,) = campaign(root, "damage.py", "--count", 30, "--columns", 8000, "--dir", tmp_path)
    assert total["found"] == total["rounds"] == 30
    assert total["file_bytes"] > 1 << 20


def test_a_flusher_killed_at_random_loses_nothing(root, tmp_path):
    (total,) = campaign(
        root, "random_kills.py", "--count", 12, "--columns", 1500, "--dir", tmp_path
    )
    assert total["kills"] == 12
    assert total["violations"] == 0


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_system_calls_that_fail_or_lie_lose_nothing(root, tmp_path):
    rows = campaign(
        root, "crash_ours.py", "sweep", "--roles", "flush,prune", "--faults", "kill,lost",
        "--max", 3, "--dir", tmp_path,
    )  # fmt: skip
    assert [row["points"] for row in rows] == [3, 3, 3, 3]
    assert all(row["of"] > 10 for row in rows)
