"""A job on Kubernetes: one Job of one pod per node, spares among them, that join through Redis.

A pod is bound to a node of its own; replacing one touches nothing else. A bad node is cordoned and
its pod deleted: its Job makes a new one elsewhere. Executors have no rights at the API server; a
driver has its user's, or those of an account made for drivers that are pods themselves. The
manifest needs a volume that all pods and the driver see, for the run folder.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import MissingError, RecipeError
from engine.spec.check_places import taint
from engine.spec.places import KubernetesSpec
from engine.spec.recipe import Recipe

_TIMEOUT_S = 30.0
_REASON = 200
_LABEL = "msctl.dev/job"
_NO_SERVER = re.compile("dial tcp|connection refused|no such host|Unable to connect|i/o timeout")
"""What kubectl says where no API server is reached."""

Object = dict[str, Any]


def manifest(recipe: Recipe, folder: Path) -> list[Object]:
    """All objects of the job, in the order in which they are to be applied.

    Raises RecipeError for a folder that a pod cannot be given.
    """
    if ":" in str(folder.parent) or not str(folder).isprintable():
        raise RecipeError(
            f"--run {str(folder)!r}: Kubernetes takes no colon, line break or control character in "
            "the path of a volume",
            remedy="name another --run folder",
        )
    tasks = recipe.job.nodes + recipe.job.spares
    made = _rights(recipe.k8s) if recipe.k8s.driver_account else []
    return made + [_job(recipe, index, folder) for index in range(tasks)]


def _rights(spec: KubernetesSpec) -> list[Object]:
    """An account for a driver in a pod: its pods, and to cordon nodes. Executors have none."""
    account, namespace = spec.driver_account, spec.namespace or "default"
    rbac = "rbac.authorization.k8s.io"
    jobs = {"apiGroups": ["batch"], "resources": ["jobs"],
            "verbs": ["get", "list", "create", "patch", "delete", "deletecollection"]}  # fmt: skip
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "delete"]}
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    subject: Object = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    there: Object = {"name": account, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": there},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": there, "rules": [jobs, pods]},
        _binding("RoleBinding", "Role", there, subject),
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": account},
         "rules": [nodes]},
        _binding("ClusterRoleBinding", "ClusterRole", {"name": account}, subject),
    ]  # fmt: skip


def _job(recipe: Recipe, index: int, folder: Path) -> Object:
    name, spec = _dns(recipe.name), recipe.k8s
    labels = _pairs(spec.labels) | {_LABEL: name, "msctl.dev/executor": str(index)}
    place: Object = {"namespace": spec.namespace} if spec.namespace else {}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": f"msctl-{name}-{index}", "labels": labels} | place,
        "spec": {
            "backoffLimit": 1000, "completions": 1, "parallelism": 1,
            "template": {"metadata": {"labels": labels}, "spec": _pod(recipe, folder, name)},
        },
    }  # fmt: skip


def _pod(recipe: Recipe, folder: Path, name: str) -> Object:
    spec = recipe.k8s
    alone: Object = {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": {_LABEL: name}},
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }  # fmt: skip
    pod: Object = {
        "automountServiceAccountToken": False, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60, "affinity": {"podAntiAffinity": alone},
        "containers": [_container(recipe, folder)],
        "tolerations": [taint(text) for text in spec.tolerations],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": spec.claim}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }  # fmt: skip
    if spec.host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if spec.node_selector:
        pod["nodeSelector"] = _pairs(spec.node_selector)
    if spec.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret} for secret in spec.pull_secrets]
    if spec.priority:
        pod["priorityClassName"] = spec.priority
    return pod


def _container(recipe: Recipe, folder: Path) -> Object:
    spec = recipe.k8s
    each = -(-recipe.layout.world_size // recipe.job.nodes)
    gpus = {"nvidia.com/gpu": str(each)} if recipe.train.device == "cuda" else {}
    wanted = gpus | _pairs(spec.resources)
    # the kubelet puts variables in for $(NAME); $$ is a plain dollar
    env = {"OMP_NUM_THREADS": "1"} | _pairs(spec.env)
    rights: Object = {"allowPrivilegeEscalation": False}
    if spec.capabilities:
        rights["capabilities"] = {"add": list(spec.capabilities)}
    return {
        "name": "executor", "image": spec.image,
        "command": [spec.python, "-m", "engine.job.join", str(folder).replace("$", "$$")],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *({"name": key, "value": value.replace("$", "$$")} for key, value in env.items()),
        ],
        "resources": {"limits": wanted, "requests": wanted} if wanted else {},
        "securityContext": rights,
        "volumeMounts": [
            {"name": "runs", "mountPath": str(folder.parent)},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }  # fmt: skip


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _binding(kind: str, role: str, there: Object, subject: Object) -> Object:
    rbac = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{rbac}/v1", "kind": kind, "metadata": there,
        "roleRef": {"apiGroup": rbac, "kind": role, "name": there["name"]}, "subjects": [subject],
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
        self._in = ("-n", recipe.k8s.namespace) if recipe.k8s.namespace else ()

    def start(self, folder: Path, count: int) -> None:
        """Apply; pods join when they are scheduled."""
        objects = manifest(self._recipe, folder.resolve())
        kubectl(*self._in, "apply", "-f", "-", given=text(objects))

    def adopt(self, folder: Path) -> None:
        """All objects are found by the recipe's name."""

    def replace(self, node: str, why: str) -> None:
        """Nothing new is scheduled there, and the job's pod on it goes, ungracefully."""
        kubectl("cordon", node)
        note = f"msctl.dev/reason={why[:_REASON]}"
        kubectl("annotate", "node", node, "--overwrite", note, must=False)
        said = kubectl(*self._in, "get", "pods", "-l", f"{_LABEL}={self._name}", "-o", "json")
        for pod in pods_on(said, node):
            kubectl(*self._in, "delete", "pod", pod, "--grace-period=0", "--force", must=False)

    def stop(self) -> None:
        """All Jobs; an account for drivers stays, this one may run on it."""
        label = f"{_LABEL}={self._name}"
        kubectl(*self._in, "delete", "jobs", "-l", label, "--ignore-not-found", must=False)


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
