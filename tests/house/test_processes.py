"""Rule 2: commands that need no torch do not load it, and start in an instant."""

import json
import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.multi

HELP_LIMIT_S = 0.25
_SPY = (
    "import sys; from msctl.app import main; code = main(sys.argv[1:]); "
    "print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"
)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["plan", "--help"], ["train", "--help"], ["ckpt", "--help"], ["diagnose",
     "--help"],
     ["selfcheck", "--help"], ["plan", "--model", "13b", "--gpus", "64", "--json"],
     ["ckpt", "show", "no/such/checkpoint"], ["ckpt", "list", "no/such/run"],
     ["diagnose", "--job", "no-such-job"]],
    ids=" ".join,
)  # fmt: skip
def test_torch_is_not_imported(arguments, root):
    ended = subprocess.run([sys.executable, "-c", _SPY, *arguments], capture_output=True, text=True,
                           cwd=root, timeout=120, check=False)  # fmt: skip
    assert ended.stderr.splitlines()[-1] == "False", ended.stderr
    if "--json" in arguments:
        json.loads(ended.stdout)


def test_help_is_instant(root):
    """CPU seconds, the least of five: the wall clock of a busy machine says nothing about msctl."""
    used = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "msctl", "--help"], capture_output=True, cwd=root,
                       timeout=60, check=True)  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used) <= HELP_LIMIT_S
