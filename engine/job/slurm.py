"""A job on Slurm: an array of one-node tasks, spares among them, that join through Redis.

Nothing depends on growing an allocation: a node that fails is drained, its task goes back into the
queue by itself and comes as a newcomer from another node; until then a spare carries its ranks.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from engine.errors import MissingError, RecipeError
from engine.spec.recipe import Recipe
from engine.units import show_number

_SAVE_S = 60
_REASON = 80
_TIMEOUT_S = 30.0
_LONGEST_RECORD = 4096
_ALIVE = "PENDING,RUNNING,CONFIGURING,SUSPENDED"
SCRIPT = "slurm.sh"
_NO_CONTROLLER = re.compile(
    "configuration source|fetch_config|Unable to contact slurm controller|Connection refused"
)
"""What Slurm's commands say where no controller is known or reached."""

JOB = "slurm.job"
"""The numbers of the arrays that have tasks of this job, for the next driver."""


def script(recipe: Recipe, folder: Path, *, python: str = "") -> str:
    """The batch script of the array; `sbatch` reads it.

    Raises RecipeError for a folder that Slurm cannot be given.
    """
    python = python or recipe.slurm.python or sys.executable
    tasks = _tasks(recipe)
    each = -(-recipe.layout.world_size // recipe.job.nodes)
    gpus = [f"#SBATCH --gres=gpu:{each}"] if recipe.train.device == "cuda" else []
    run = folder.resolve()
    lines = [
        "#!/bin/sh",
        f"# {show_number(recipe.job.nodes, 'node')} and "
        f"{show_number(recipe.job.spares, 'spare')}, each a task of its own",
        f"#SBATCH --job-name=msctl-{recipe.name}",
        f"#SBATCH --array=0-{tasks - 1}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --exclusive",
        *gpus,
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={_pattern(str(run))}",
        f"#SBATCH --signal=B:TERM@{_SAVE_S}",
        *(f"#SBATCH {_option(text)}" for text in recipe.slurm.options),
        "",
        *recipe.slurm.setup,
        "# a node that has to be given up gets SIGTERM in time: ranks save, the task ends",
        f"{shlex.quote(python)} -m engine.job.join {shlex.quote(str(run))} &",
        "executor=$!",
        'trap "kill -TERM $executor" TERM',
        "wait $executor",
        "code=$?",
        "wait $executor 2>/dev/null",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _pattern(path: str) -> str:
    """A file name as sbatch reads it in an #SBATCH line.

    Quotes keep blanks and # together, a backslash keeps a quote (but not a blank), and a % is
    doubled. A backslash that remains would switch off %a: all tasks would write into one log.
    """
    if "\\" in path or not path.isprintable():
        raise RecipeError(
            f"--run {path!r}: Slurm takes no backslash, line break or control character in a path",
            remedy="name another --run folder",
        )
    return _quoted(path.replace("%", "%%") + "/log/slurm-%a.log")


def _option(text: str) -> str:
    """An option of the recipe as sbatch reads it in an #SBATCH line."""
    name, has_value, value = text.partition("=")
    return name + has_value + (_quoted(value) if value else "")


def _quoted(text: str) -> str:
    if re.fullmatch(r"[\w./%+=:@,-]+", text, re.ASCII):
        return text
    return '"' + text.replace('"', '\\"') + '"'


def _tasks(recipe: Recipe) -> int:
    return recipe.job.nodes + recipe.job.spares


def _ranges(indices: list[int]) -> str:
    """Ascending numbers as sbatch takes them: 0-3,7."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


class SlurmLauncher:
    """Submits the array, drains what is bad, cancels the rest at the end."""

    can_start = 0

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._record = Path()
        self.jobs: tuple[str, ...] = ()

    def start(self, folder: Path, count: int) -> None:
        """Submit the tasks that no earlier driver's array still has waiting or running.

        Nodes join when Slurm starts their tasks.
        """
        self.adopt(folder)
        there = self._tasks_there()
        missing = [index for index in range(_tasks(self._recipe)) if index not in there]
        if not missing:
            return
        (folder / "log").mkdir(parents=True, exist_ok=True)
        path = folder / SCRIPT
        path.write_text(script(self._recipe, folder), encoding="utf-8")
        which = f"--array={_ranges(missing)}"
        made = call("sbatch", "--parsable", which, str(path)).strip().partition(";")[0]
        self.jobs = (*(self.jobs if there else ()), made)
        fresh = self._record.with_suffix(".new")
        fresh.write_text(" ".join(self.jobs) + "\n", encoding="ascii")
        os.replace(fresh, self._record)

    def _tasks_there(self) -> set[int]:
        """Indices of tasks that wait or run.

        Raises MissingError if Slurm does not say: then nothing may be submitted, it might be there.
        """
        if not self.jobs:
            return set()
        # asked for by number, squeue fails where Slurm has forgotten one of them
        lines = call("squeue", "-h", "-r", "--me", "-t", _ALIVE, "-o", "%F %K").splitlines()
        found = [line.split() for line in lines]
        return {int(task) for job, task in (w for w in found if len(w) == 2)
                if job in self.jobs and task.isdecimal()}  # fmt: skip

    def adopt(self, folder: Path) -> None:
        """The arrays that earlier drivers submitted: their queue is emptied at the end."""
        self._record = folder / JOB
        try:
            with self._record.open(encoding="ascii") as file:
                said = file.read(_LONGEST_RECORD).strip()
        except (OSError, UnicodeDecodeError):
            return
        words = said.split()
        self.jobs = tuple(words) if all(re.fullmatch("[0-9]{1,20}", word) for word in words) else ()

    def replace(self, node: str, why: str) -> None:
        """Take the node from Slurm's use; what ran there is requeued elsewhere.

        `down` ends its task at once, `drain` keeps the node out when it comes back.
        """
        reason = f"msctl: {why}"[:_REASON]
        for state in ("down", "drain"):
            call("scontrol", "update", f"nodename={node}", f"state={state}", f"reason={reason}")

    def stop(self) -> None:
        """Tasks end by themselves when told; those that wait in the queue are cancelled."""
        if self.jobs:
            call("scancel", *self.jobs, must=False)
            self._record.unlink(missing_ok=True)


def call(*command: str, must: bool = True) -> str:
    """What one of Slurm's commands prints. MissingError if it is not there or fails."""
    if shutil.which(command[0]) is None:
        raise MissingError(
            f"{command[0]} is not installed", remedy="run this on a Slurm login node"
        )
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MissingError(
            f"`{command[0]}` does not answer", remedy="check slurmctld with `scontrol ping`"
        ) from None
    if ended.returncode and must:
        remedy = "check that this user may submit jobs and update nodes (an operator of Slurm)"
        if "Invalid job array" in ended.stderr:
            remedy = "raise MaxArraySize in slurm.conf above job.nodes + job.spares"
        if _NO_CONTROLLER.search(ended.stderr):
            remedy = "run this where Slurm is configured; `scontrol ping` shows its controllers"
        said = " ".join(ended.stderr.split())[:200]
        raise MissingError(f"`{' '.join(command[:2])}` failed: {said}", remedy=remedy)
    return ended.stdout
