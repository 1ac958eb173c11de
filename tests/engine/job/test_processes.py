"""Processes as an outsider finds them."""

import subprocess
import sys
import time

from engine.job.processes import executor_of


def test_an_executor_is_found_by_folder_and_node(tmp_path):
    code = "import time; time.sleep(60)"
    words = [sys.executable, "-m", "engine.job.join", str(tmp_path), "node-0"]
    # a process that only calls itself so
    with subprocess.Popen(words, executable="/bin/sleep") as other:
        other.wait()
    assert executor_of(tmp_path, "node-0") == 0
    with subprocess.Popen(
        [words[0], "-m", "engine.job.join", str(tmp_path), "node-0", code], env={"PATH": ""},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        end = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < end:
            if executor_of(tmp_path, "node-0") == process.pid:
                break
            time.sleep(0.01)
        else:
            raise AssertionError("it was not found while it ran")
        assert executor_of(tmp_path, "node-1") == 0
        process.kill()
