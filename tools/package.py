"""Build the wheel and the source archive, and try the wheel in empty environments.

    python -m tools.package [--full] [--python PYTHON ...]

For each interpreter from 3.10 to 3.13 that is on this machine: an empty environment, the wheel, and
the commands that are promised to work, from another folder with an empty home. Without --full only
the small dependencies are installed, which also shows that these commands need no torch.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
SMALL = (
    "typer", "rich", "msgspec", "numpy", "fsspec", "safetensors", "xxhash", "zstandard", "redis",
    "nvidia-ml-py", "tomli", "duckdb",
)  # fmt: skip
NEEDED = (
    "msctl/app.py", "msctl/py.typed", "engine/py.typed", "engine/diagnose/page.html",
    "engine/csrc/Makefile", "engine/plan/fitted.json",
)  # fmt: skip
COMMANDS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("--version",), 0),
    (("plan", "--model", "175b", "--gpus", "12288", "--top", "3"), 0),
    (("diagnose", "--logs", "{samples}/megatron"), 4),
    (("diagnose", "--logs", "{samples}/deepspeed", "--json"), 4),
    (("ckpt", "--help"), 0),
    (("train", "--help"), 0),
    (("selfcheck", "--list"), 0),
)
"""Arguments and the exit code that is right."""


def build(out: Path) -> Path:
    """Wheel and source archive into `out`; the wheel's path."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return max(out.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def lacks(wheel: Path) -> list[str]:
    """Files that a wheel must hold and does not; anything outside the two packages is wrong too."""
    names = zipfile.ZipFile(wheel).namelist()
    wrong = [name for name in NEEDED if name not in names]
    wrong += [] if any(name.endswith("licenses/LICENSE") for name in names) else ["LICENSE"]
    tops = {name.split("/")[0] for name in names}
    stray = {top for top in tops if top not in ("msctl", "engine") and "dist-info" not in top}
    return wrong + [f"stray {top}" for top in sorted(stray)]


def interpreters() -> dict[str, str]:
    """Version -> program, for those that can be found on the path or beside pyenv's."""
    found = {}
    for version in VERSIONS:
        homes = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        program = str(homes[-1]) if homes else shutil.which(f"python{version}")
        if program:
            found[version] = program
    return found


def smoke(python: str, wheel: Path, *, full: bool) -> list[str]:
    """What goes wrong with the wheel in an empty environment."""
    with tempfile.TemporaryDirectory(prefix="msctl-package-") as place:
        home = Path(place)
        subprocess.run([python, "-m", "venv", str(home / "venv")], check=True)
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pip = [str(home / "venv/bin/python"), "-m", "pip", "install", "--quiet",
               "--disable-pip-version-check"]  # fmt: skip
        if full:
            subprocess.run([*pip, str(wheel)], check=True, env=own)
        else:
            subprocess.run([*pip, *SMALL], check=True, env=own)
            subprocess.run([*pip, "--no-deps", str(wheel)], check=True, env=own)
        return [text for line, code in COMMANDS if (text := _try(home, line, code))]


def _try(home: Path, line: tuple[str, ...], code: int) -> str:
    words = [word.format(samples=ROOT / "docs" / "samples") for word in line]
    clean = {"HOME": str(home), "PATH": f"{home}/venv/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(
        [str(home / "venv/bin/msctl"), *words], cwd=home, env=clean, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode == code:
        return ""
    return f"msctl {' '.join(words)}: exit {done.returncode}, not {code}: {done.stderr[-400:]}"


def main() -> int:
    """Build, look inside, try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="with all dependencies, torch included")
    parser.add_argument("--python", action="append", help="an interpreter; default: all found")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    wheel = build(given.out)
    wrong = lacks(wheel)
    print(
        f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB{''.join(f', lacks {w}' for w in wrong)}"
    )
    chosen = {p: p for p in given.python} if given.python else interpreters()
    for version, python in chosen.items():
        faults = smoke(python, wheel, full=given.full)
        wrong += faults
        print(f"Python {version}: {'works' if not faults else os.linesep.join(faults)}", flush=True)
    missing = [] if given.python else [v for v in VERSIONS if v not in chosen]
    if missing:
        print(f"not on this machine: Python {', '.join(missing)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
