"""What may be handed to a cluster's scheduler; each rule yields what breaks it."""

import re
from collections.abc import Callable, Iterator

from engine.spec.keys import Keys, problem
from engine.spec.problem import Problem

_OPTION = re.compile(r"--([a-z][a-z-]*)(?:=.*)?", re.ASCII | re.DOTALL)
_OURS = {
    "array": "job.nodes and job.spares",
    "nodes": "job.nodes",
    "ntasks": "job.nodes; a task is a node's executor",
    "ntasks-per-node": "job.nodes; a task is a node's executor",
    "output": "the run folder",
    "open-mode": "the run folder",
    "signal": "the driver, which saves when it comes",
    "no-requeue": "the driver, which counts on it that a lost node's task comes back",
    "parsable": "the driver, which reads the job's number",
    "wait": "the driver, which waits for executors itself",
    "wrap": "the driver, which hands over a script",
    "test-only": "`msctl train --dry-run`, which prints the script",
}
"""Options of sbatch that the script gives itself, and what decides their values."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_LABEL_KEY = re.compile(
    r"([a-z0-9][a-z0-9.-]{0,251}/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII)
_TAINT = re.compile(
    r"(?P<key>[^=:]+)(=(?P<value>[^:]*))?(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)


def slurm(keys: Keys) -> Iterator[Problem]:
    """Options of sbatch are long ones and none that the script needs for itself."""
    given = keys.recipe.slurm
    for text in given.options:
        match = _OPTION.fullmatch(text)
        if match is None or not text.isprintable() or "\\" in text:
            yield problem(
                "slurm.options",
                what=f"slurm.options: {text!r} is no long option of sbatch",
                remedy="write them one by one, name and value in one: --partition=gpu",
            )
        elif match[1] in _OURS:
            yield problem(
                "slurm.options",
                what=f"slurm.options: --{match[1]} is decided by {_OURS[match[1]]}",
                remedy="delete it from slurm.options",
            )
    yield from _lines("slurm.setup", given.setup)
    yield from _lines("slurm.python", (given.python,))


def _lines(key: str, texts: tuple[str, ...]) -> Iterator[Problem]:
    for text in texts:
        if any(c in text for c in "\0\n\r"):
            yield problem(
                key,
                what=f"{key}: {text!r} is not one line",
                remedy="write a text for each line, without NUL characters",
            )


def kubernetes(keys: Keys) -> Iterator[Problem]:
    """Texts for pods are what the API server takes at their place."""
    given = keys.recipe.k8s
    pairs = {"k8s.node_selector": given.node_selector, "k8s.labels": given.labels}
    for key, texts in pairs.items():
        yield from _each(key, texts, _is_label, "a label", "write NAME=VALUE, e.g. gpu=h100")
    yield from _each(
        "k8s.resources", given.resources, _is_resource, "an amount of something",
        "write NAME=AMOUNT, e.g. rdma/hca=8 or memory=900Gi",
    )  # fmt: skip
    yield from _each(
        "k8s.tolerations", given.tolerations, lambda text: _TAINT.fullmatch(text) is not None,
        "a taint", "write KEY, KEY=VALUE or KEY=VALUE:NoSchedule",
    )  # fmt: skip
    yield from _each(
        "k8s.env", given.env,
        lambda text: _VARIABLE.fullmatch(text) is not None and text.isprintable(),
        "a variable", "write NAME=VALUE",
    )  # fmt: skip
    names = {
        "k8s.claim": given.claim,
        "k8s.namespace": given.namespace,
        "k8s.priority": given.priority,
        "k8s.driver_account": given.driver_account,
    }
    for key, text in names.items():
        if (text or key == "k8s.claim") and not _NAME.fullmatch(text):
            yield problem(
                key,
                what=f"{keys.show(key)} is no name that Kubernetes takes",
                remedy="use lower-case letters, digits, dots and dashes",
            )


def _each(
    key: str, texts: tuple[str, ...], is_right: Callable[[str], bool], noun: str, remedy: str
) -> Iterator[Problem]:
    for text in texts:
        if not is_right(text):
            yield problem(key, what=f"{key}: {text!r} is not {noun}", remedy=remedy)


def _is_label(text: str) -> bool:
    name, has_value, value = text.partition("=")
    return bool(has_value and _LABEL_KEY.fullmatch(name) and _LABEL_VALUE.fullmatch(value))


def _is_resource(text: str) -> bool:
    name, _, value = text.partition("=")
    return bool(_LABEL_KEY.fullmatch(name) and _QUANTITY.fullmatch(value))


def taint(text: str) -> dict[str, str]:
    """A toleration as the API names its parts, from what kubectl would write."""
    match = _TAINT.fullmatch(text)
    if match is None:
        return {"key": text, "operator": "Exists"}
    made = {"key": match["key"], "operator": "Equal" if match["value"] is not None else "Exists"}
    if match["value"] is not None:
        made["value"] = match["value"]
    return made | ({"effect": match["effect"]} if match["effect"] else {})
