"""A job on Kubernetes: one Job of one pod per node, spares among them, that join through Redis.

A pod is bound to a node of its own; replacing one touches nothing else. A bad node is cordoned and
its pod deleted: its Job makes a new one elsewhere. The service account may do exactly that. The
manifest needs a volume that all pods and the driver see, for the run folder.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import MissingError, RecipeError
from engine.spec.recipe import Recipe

_TIMEOUT_S = 30.0
_REASON = 200
_LABEL = "msctl.dev/job"
_NO_SERVER = re.compile("dial tcp|connection refused|no such host|Unable to connect|i/o timeout")
"""What kubectl says where no API server is reached."""

Object = dict[str, Any]


def manifest(
    recipe: Recipe, folder: Path, *, image: str = "msctl:latest", claim: str = "msctl-runs"
) -> list[Object]:
    """All objects of the job, in the order in which they are to be applied.

    Raises RecipeError for a folder that a pod cannot be given.
    """
    if ":" in str(folder.parent) or not str(folder).isprintable():
        raise RecipeError(
            f"--run {str(folder)!r}: Kubernetes takes no colon, line break or control character in "
            "the path of a volume",
            remedy="name another --run folder",
        )
    name = _dns(recipe.name)
    account = f"msctl-{name}"
    rules: list[Object] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "delete"]}
    ]
    node_rules: list[Object] = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    ]
    rbac = "rbac.authorization.k8s.io"
    subject: Object = {"kind": "ServiceAccount", "name": account, "namespace": "default"}
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": account}, "rules": rules},
        _binding("RoleBinding", "Role", account, subject),
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": account},
         "rules": node_rules},
        _binding("ClusterRoleBinding", "ClusterRole", account, subject),
    ]  # fmt: skip
    tasks = recipe.job.nodes + recipe.job.spares
    each = -(-recipe.layout.world_size // recipe.job.nodes)
    gpus = each if recipe.train.device == "cuda" else 0
    for index in range(tasks):
        objects.append(_job(name, index, folder, account, image, claim, gpus))
    return objects


def _job(
    name: str, index: int, folder: Path, account: str, image: str, claim: str, gpus: int
) -> Object:  # fmt: skip
    # The kubelet puts variables in for $(NAME); $$ is a plain dollar.
    labels = {_LABEL: name, "msctl.dev/executor": str(index)}
    resources: Object = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    container: Object = {
        "name": "executor", "image": image,
        "command": ["python", "-m", "engine.job.join", str(folder).replace("$", "$$")],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "OMP_NUM_THREADS", "value": "1"},
        ],
        "resources": resources,
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [
            {"name": "runs", "mountPath": str(folder.parent)},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }  # fmt: skip
    alone: Object = {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": {_LABEL: name}},
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }  # fmt: skip
    pod: Object = {
        "serviceAccountName": account, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60, "affinity": {"podAntiAffinity": alone},
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }  # fmt: skip
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": f"msctl-{name}-{index}", "labels": labels},
        "spec": {
            "backoffLimit": 1000, "completions": 1, "parallelism": 1,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }  # fmt: skip


def _binding(kind: str, role: str, account: str, subject: Object) -> Object:
    rbac = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{rbac}/v1", "kind": kind, "metadata": {"name": account},
        "roleRef": {"apiGroup": rbac, "kind": role, "name": account}, "subjects": [subject],
    }  # fmt: skip


def text(objects: list[Object]) -> str:
    """The manifest as one JSON list, which kubectl reads like YAML."""
    whole = {"apiVersion": "v1", "kind": "List", "items": objects}
    return json.dumps(whole, indent=2) + "\n"


class KubernetesLauncher:
    """Applies the manifest with kubectl, cordons what is bad, deletes all at the end."""

    can_start = 0

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._name = recipe, _dns(recipe.name)

    def start(self, folder: Path, count: int) -> None:
        """Apply; pods join when they are scheduled."""
        kubectl("apply", "-f", "-", given=text(manifest(self._recipe, folder.resolve())))

    def adopt(self, folder: Path) -> None:
        """All objects are found by the recipe's name."""

    def replace(self, node: str, why: str) -> None:
        """Nothing new is scheduled there, and the job's pod on it goes, ungracefully."""
        kubectl("cordon", node)
        note = f"msctl.dev/reason={why[:_REASON]}"
        kubectl("annotate", "node", node, "--overwrite", note, must=False)
        for pod in pods_on(
            kubectl("get", "pods", "-l", f"{_LABEL}={self._name}", "-o", "json"), node
        ):
            kubectl("delete", "pod", pod, "--grace-period=0", "--force", must=False)

    def stop(self) -> None:
        """All Jobs and their rights."""
        for kind in ("jobs", "rolebindings", "roles", "serviceaccounts"):
            label = ("-l", f"{_LABEL}={self._name}") if kind == "jobs" else (f"msctl-{self._name}",)
            kubectl("delete", kind, *label, "--ignore-not-found", must=False)


class _Meta(msgspec.Struct):
    name: str


class _PodSpec(msgspec.Struct):
    nodeName: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _PodSpec


class _Pods(msgspec.Struct):
    items: list[_Pod]


def pods_on(answer: str, node: str) -> list[str]:
    """Names of the pods that an answer of the API places on a node. MissingError for nonsense."""
    try:
        pods = msgspec.json.decode(answer, type=_Pods).items
    except (msgspec.DecodeError, RecursionError) as error:
        raise MissingError(
            f"kubectl's list of pods cannot be read: {error}",
            remedy="check `kubectl get pods -o json`",
        ) from None
    return [pod.metadata.name for pod in pods if pod.spec.nodeName == node]


def kubectl(*words: str, given: str = "", must: bool = True) -> str:
    """What kubectl prints. MissingError if it is not there or fails."""
    if shutil.which("kubectl") is None:
        raise MissingError(
            "kubectl is not installed", remedy="install it, or print the manifest with --dry-run"
        )
    try:
        ended = subprocess.run(
            ("kubectl", *words), input=given, capture_output=True, text=True, timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MissingError(
            "kubectl does not answer", remedy="check the cluster with `kubectl cluster-info`"
        ) from None
    if ended.returncode and must:
        remedy = "check the rights of this user: `kubectl auth can-i --list`"
        if _NO_SERVER.search(ended.stderr):
            remedy = "check which cluster kubectl talks to: `kubectl cluster-info`"
        said = " ".join(ended.stderr.split())[:200]
        raise MissingError(f"`kubectl {' '.join(words[:2])}` failed: {said}", remedy=remedy)
    return ended.stdout


def _dns(name: str) -> str:
    """A name as Kubernetes wants it."""
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")[:40]
