"""What Kubernetes knows of an allocation: its pods, their nodes, and the rack of each.

Speaks through kubectl, which brings the cluster's address and credentials along.
"""

from typing import NamedTuple

import msgspec

from engine.errors import MissingError
from engine.health.slurm import output

RACK_LABELS = ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
"""Labels of a node that say under which switch it is, the first that is there."""


class Pods(NamedTuple):
    """Running pods of a selector, one a node."""

    pod_of: dict[str, str]
    """Node -> pod."""
    rack_of: dict[str, str]
    """Node -> rack, for nodes that have a label."""


class _Meta(msgspec.Struct):
    name: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class _Spec(msgspec.Struct):
    nodeName: str = ""


class _Phase(msgspec.Struct):
    phase: str = ""


class _Item(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Phase = msgspec.field(default_factory=_Phase)


class _List(msgspec.Struct):
    items: list[_Item]


def find_pods(selector: str, namespace: str) -> Pods:
    """Running pods that a label selector picks; of several on a node the first by name."""
    where = ("-n", namespace) if namespace else ()
    found: dict[str, str] = {}
    pods = _items(output(["kubectl", "get", "pods", *where, "-l", selector, "-o", "json"]))
    for item in sorted(pods, key=lambda item: item.metadata.name):
        if item.status.phase == "Running" and item.spec.nodeName:
            found.setdefault(item.spec.nodeName, item.metadata.name)
    if not found:
        raise MissingError(
            f"no running pod has the labels {selector}",
            remedy="give --selector app=NAME of pods that have msctl installed",
        )
    racks = {}
    for item in _items(output(["kubectl", "get", "nodes", "-o", "json"])):
        rack = next((item.metadata.labels[k] for k in RACK_LABELS if k in item.metadata.labels), "")
        if rack and item.metadata.name in found:
            racks[item.metadata.name] = rack
    return Pods(found, racks)


def _items(text: str) -> list[_Item]:
    try:
        return msgspec.json.decode(text, type=_List).items
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MissingError(
            f"kubectl answered oddly: {error}", remedy="check `kubectl get pods -o json`"
        ) from None
