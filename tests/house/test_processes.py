"""Rule 2: commands load no library that they do not need, and start in an instant."""

import json
import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.multi

HELP_LIMIT_S = 0.25
LIBRARIES_S = 0.15
"""Of this, what importing the libraries takes on the two cores the limit was set for."""
_SPY = (
    "import sys; from msctl.app import main; code = main(sys.argv[1:]); "
    "print(*sorted({'torch', 'pydantic', 'rich'} & {*sys.modules}), file=sys.stderr); "
    "sys.exit(code)"
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
def test_slow_libraries_are_not_imported(arguments, root):
    ended = subprocess.run([sys.executable, "-c", _SPY, *arguments], capture_output=True, text=True,
                           cwd=root, timeout=120, check=False)  # fmt: skip
    needed = "rich" if "--help" in arguments else ""  # in a pipe nothing else draws
    assert ended.stderr.splitlines()[-1] == needed, ended.stderr
    if "--json" in arguments:
        json.loads(ended.stdout)


def test_help_is_instant(root):
    """CPU seconds, the least of five: the wall clock of a busy machine says nothing about msctl.

    Where even the libraries that print any help take long, the machine is slow, and help may take
    as much more.
    """
    used: dict[str, list[float]] = {"-mmsctl": [], "-ctyper": []}
    lines = {"-mmsctl": ["-m", "msctl", "--help"], "-ctyper": ["-c", "import typer.rich_utils"]}
    for _ in range(5):
        for what, line in lines.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *line], capture_output=True, cwd=root, timeout=60,
                           check=True)  # fmt: skip
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used[what].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    slow = min(used["-ctyper"]) / LIBRARIES_S
    assert min(used["-mmsctl"]) <= HELP_LIMIT_S * max(1.0, slow), used
