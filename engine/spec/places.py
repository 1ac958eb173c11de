"""What a cluster's own scheduler is told beside what a job needs by itself."""

from typing import Annotated

from engine.spec.base import Noun, doc

Texts = tuple[str, ...]


class SlurmSpec(Noun, frozen=True, kw_only=True):
    """More of the script for `--on slurm`."""

    options: Annotated[
        Texts,
        doc("more options of sbatch, long ones: `--partition=gpu`, `--account=llm`, `--time=7-0`"),
    ] = ()
    setup: Annotated[
        Texts, doc("shell lines on every node before its executor: modules, variables")
    ] = ()
    python: Annotated[str, doc("Python on the nodes; empty = the one that submits")] = ""


class KubernetesSpec(Noun, frozen=True, kw_only=True):
    """More of the pods for `--on k8s`."""

    image: Annotated[str, doc("image of the pods, with msctl in it; has no default")] = ""
    python: Annotated[str, doc("Python in the image")] = "python"
    namespace: Annotated[str, doc("where the pods are; empty = the one kubectl works in")] = ""
    claim: Annotated[str, doc("claim of the volume that holds the run folder")] = "msctl-runs"
    resources: Annotated[
        Texts, doc("what a node's pod asks for beside its GPUs: `cpu=96`, `rdma/hca=8`")
    ] = ()
    capabilities: Annotated[Texts, doc("of the container; RDMA registers memory by IPC_LOCK")] = (
        "IPC_LOCK",
    )
    host_network: Annotated[bool, doc("the node's own network instead of the pods'")] = False
    node_selector: Annotated[Texts, doc("labels of the nodes: `gpu=h100`")] = ()
    tolerations: Annotated[
        Texts, doc("taints that are borne, as kubectl writes them: `gpu=yes:NoSchedule`, `gpu`")
    ] = ("nvidia.com/gpu",)
    labels: Annotated[
        Texts, doc("more labels of the jobs and pods: `kueue.x-k8s.io/queue-name=llm`")
    ] = ()
    env: Annotated[Texts, doc("variables of the ranks: `NCCL_IB_HCA=mlx5`")] = ()
    pull_secrets: Annotated[Texts, doc("secrets with which the image is pulled")] = ()
    priority: Annotated[str, doc("priority class of the pods; empty = the cluster's default")] = ""
    driver_account: Annotated[
        str,
        doc(
            "service account to make, with the rights of a driver that runs in a pod itself; "
            "empty = none"
        ),
    ] = ""
