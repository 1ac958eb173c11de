"""Find a run by what a person calls it: id, unique prefix, recipe name, or `last`.

A run is a folder under the runs folder that holds events or a resolved recipe.
"""

import re
from pathlib import Path

from engine.errors import TraceError

_NAME = re.compile(rb'^name\s*=\s*"([^"\n]{1,64})"', re.MULTILINE)


def runs_under(root: Path) -> list[Path]:
    """Run folders, oldest first; what may not be looked at is left out."""
    try:
        found = [path for path in root.iterdir() if is_run(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise TraceError(
            f"{root}: cannot be looked at: {error.strerror}",
            remedy="let this user read it, or name another runs folder with --runs",
        ) from None
    return sorted(found, key=lambda p: (_changed(p), p.name))


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of ours; no if it may not be looked at."""
    try:
        if (folder / "recipe.toml").is_file():
            return True
        return any((folder / "events").glob("rank-*.jsonl"))
    except OSError:
        return False


def find_run(job: str, root: Path) -> Path:
    """The run folder of a job; TraceError lists what there is if none or several match."""
    runs = runs_under(root)
    if not runs:
        raise TraceError(
            f"{root}: no runs here",
            remedy="name the runs folder with --runs, or a run folder as the argument",
        )
    if job == "last":
        return runs[-1]
    exact = [run for run in runs if run.name == job]
    named = [run for run in runs if _recipe_name(run) == job]
    started = [run for run in runs if run.name.startswith(job)]
    for matches in (exact, started, named[-1:]):
        if len(matches) == 1:
            return matches[0]
    listed = ", ".join(run.name for run in (started or runs)[-8:])
    how = "is a prefix of several" if started else "is none of the"
    raise TraceError(
        f"job {job!r} {how} runs under {root}: {listed}",
        remedy=f"give a full id, e.g. --job {runs[-1].name}, or --job last",
    )


def _changed(run: Path) -> int:
    """When a run was last written to."""
    newest = 0
    for part in ("", "events", "metrics.jsonl", "recipe.toml", "result.json"):
        try:
            newest = max(newest, (run / part).stat().st_mtime_ns)
        except OSError:
            continue
    return newest


def _recipe_name(run: Path) -> str:
    path = run / "recipe.toml"
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            return ""
        with path.open("rb") as file:
            match = _NAME.search(file.read(1 << 16))
    except OSError:
        return ""
    return match[1].decode(errors="replace") if match else ""
