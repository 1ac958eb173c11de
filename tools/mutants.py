"""Change the source a little, in many places, and see whether tests notice: by mutmut, sampled.

    pip install 'msctl[mutants]'
    python -m tools.mutants plan [--per-file 25] [--seed 7] [--children 2]

Takes a room's core files (CORE below), draws some of all possible changes of each, and runs the
room's tests that start no process against every one, in a copy under build/mutants. Prints how many
were noticed, file by file, and each change that was not: a line to read, and a test to write or an
answer to give why none is needed. A room takes ten minutes to an hour.
"""

import argparse
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = {
    "schedule": ("action", "build", "comm", "schedule", "simulate", "verify",
                 "zero_bubble"),
    "plan": ("cores", "cost", "memory", "network", "price", "rows", "search", "setup", "simulate",
             "validate"),
    "ckpt": ("catalog", "geometry", "local_store", "manifest", "partition", "parts", "prune",
             "reading", "restore", "safefile", "save", "verify"),
    "diagnose": ("align", "arbiter", "attribution", "decline", "hang", "pace", "peers",
                 "straggler", "traffic", "waits"),
}  # fmt: skip
"""Room -> the files whose mistakes would cost most."""
_COPIED = ("msctl", "tests", "recipes", "bench", "demo", "tools", "docs", "README.md")
_KILLED, _SURVIVED = (1, 3, 24, -24, 36, 152, 255), (0, 5, 33)
"""Exit codes of a mutant's tests: failed, or ran into a limit; passed, or no test ran the line."""


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="tools.mutants")
    parser.add_argument("room", choices=CORE)
    parser.add_argument("--per-file", type=int, default=25)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--children", type=int, default=2)
    args = parser.parse_args()
    files = [f"engine/{args.room}/{name}.py" for name in CORE[args.room]]
    copy = ROOT / "build" / "mutants" / args.room
    _prepare(copy, args.room, files)
    _mutmut(copy, args.children, "engine.none")  # makes all changes, runs none
    names = [name for file in files for name in _drawn(copy, file, args.per_file, args.seed)]
    _mutmut(copy, args.children, *names)
    print(report(copy, files))


def _prepare(copy: Path, room: str, files: list[str]) -> None:
    """What is tracked, as it is now, with mutmut's settings."""
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    settings = {
        "source_paths": ["engine"], "only_mutate": files, "tests_dir": [f"tests/engine/{room}"],
        "also_copy": list(_COPIED),
        "pytest_add_cli_args": ["-m", "not multi and not native and not gpu", "-x",
                                "-p", "no:cacheprovider"],
    }  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    with (copy / "pyproject.toml").open("a") as file:
        file.write("\n[tool.mutmut]\n" + "\n".join(lines) + "\n")


def _mutmut(copy: Path, children: int, *names: str) -> None:
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(children), *names]
    with (copy / "mutmut.log").open("ab") as log:
        subprocess.run(
            command, cwd=copy, stdout=log, stderr=log, check=False,
            env=os.environ | {"PYTHONPATH": ".", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    if not (copy / "mutants").is_dir():
        raise SystemExit(f"mutmut made nothing: see {copy}/mutmut.log; is it installed?")


def _drawn(copy: Path, file: str, count: int, seed: int) -> list[str]:
    """Full names of some of a file's changes."""
    text = (copy / "mutants" / file).read_text()
    names = sorted(set(re.findall(r"def (x[^\s(]*__mutmut_\d+)\(", text)))
    module = file.removesuffix(".py").replace("/", ".")
    drawn = random.Random(f"{seed} {file}").sample(names, min(count, len(names)))
    return [f"{module}.{name}" for name in drawn]


def report(copy: Path, files: list[str]) -> str:
    """A line per file, one for all, then every change that no test noticed."""
    lines, survivors, noticed, tried = [], [], 0, 0
    for file in files:
        meta = json.loads((copy / "mutants" / f"{file}.meta").read_text())["exit_code_by_key"]
        killed = sum(code in _KILLED for code in meta.values())
        alive = [name for name, code in meta.items() if code in _SURVIVED]
        lines.append(f"{file}: {killed} of {killed + len(alive)} changes noticed")
        noticed, tried = noticed + killed, tried + killed + len(alive)
        survivors += [line for name in alive for line in changed(copy, name)]
    if not tried:
        raise SystemExit(f"no change was tried: see {copy}/mutmut.log; do the room's tests pass?")
    share = 100 * noticed / tried
    return "\n".join([*lines, f"all: {noticed} of {tried}, {share:.0f} %", "", *survivors])


def changed(copy: Path, full: str) -> Iterator[str]:
    """What a change does, as lines taken out and put in."""
    module, _, name = full.rpartition(".")
    text = (copy / "mutants" / (module.replace(".", "/") + ".py")).read_text()
    before = _body(text, re.sub(r"__mutmut_\d+$", "__mutmut_orig", name))
    yield f"{full}"
    for line in difflib.unified_diff(before, _body(text, name), n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")) and "__mutmut_" not in line:
            yield f"  {line}"


def _body(text: str, name: str) -> list[str]:
    found = re.search(
        rf"^( *)def {re.escape(name)}\(.*?(?=^\1(?:def|@|class|mutants_|x\S*\s*[:=])|\Z)",
        text, re.S | re.M,
    )  # fmt: skip
    return found.group(0).splitlines() if found else []


if __name__ == "__main__":
    main()
