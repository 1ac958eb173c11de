"""The manifest fits the published schemas; the pods of a bad node are found in kubectl's answer."""

import json
from pathlib import Path

import msgspec
import pytest

from engine.errors import MissingError, RecipeError
from engine.job.kubernetes import KubernetesLauncher, kubectl, manifest, pods_on, text
from engine.spec.job import JobSpec
from engine.spec.places import KubernetesSpec
from tests.engine.train.single import recipe

K8S = KubernetesSpec(image="registry.example/llm/msctl:1")
GPU = msgspec.structs.replace(recipe(train={"device": "cuda"}), k8s=K8S)
ANSWER = json.dumps({"apiVersion": "v1", "kind": "List", "items": [
    {"metadata": {"name": "msctl-x-0-abc12", "uid": "1"}, "spec": {"nodeName": "gpu-7"}},
    {"metadata": {"name": "msctl-x-1-def34"}, "spec": {"nodeName": "gpu-8"}},
    {"metadata": {"name": "msctl-x-2-new00"}, "spec": {}},
]})  # fmt: skip


FULL = KubernetesSpec(
    image="registry.example/llm/msctl:1", python="/venv/bin/python", namespace="llm",
    claim="lustre", resources=("rdma/hca=8", "cpu=96", "memory=900Gi"), host_network=True,
    node_selector=("gpu=h100",), tolerations=("nvidia.com/gpu", "team=llm:NoSchedule"),
    labels=("kueue.x-k8s.io/queue-name=llm",), env=("NCCL_IB_HCA=mlx5", "A=$(B)"),
    pull_secrets=("pull",), priority="high", driver_account="msctl-driver",
)  # fmt: skip


def objects(nodes: int = 3, spares: int = 1, k8s: KubernetesSpec = K8S):
    job = JobSpec(nodes=nodes, spares=spares)
    one = msgspec.structs.replace(GPU, name="My.Run", job=job, k8s=k8s)
    return manifest(one, Path("/runs/my"))


def test_one_job_a_node_and_spare_each_on_a_machine_of_its_own():
    made = objects()
    jobs = [o for o in made if o["kind"] == "Job"]
    assert [o["metadata"]["name"] for o in jobs] == [f"msctl-my-run-{i}" for i in range(4)]
    pod = jobs[0]["spec"]["template"]["spec"]
    gpu = {"nvidia.com/gpu": "1"}
    assert pod["containers"][0]["resources"] == {"limits": gpu, "requests": gpu}
    assert "podAntiAffinity" in pod["affinity"]
    assert "password" not in text(made)


def test_nothing_in_a_folder_is_put_in_for_by_the_kubelet():
    made = manifest(GPU, Path('/runs/a b$(NODE_NAME)"'))
    pod = next(o for o in made if o["kind"] == "Job")["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][-1] == '/runs/a b$$(NODE_NAME)"'
    for odd in ("/run:s/a", "/runs/a\nb", "/runs/a\x1b"):
        with pytest.raises(RecipeError, match="Kubernetes takes no"):
            manifest(GPU, Path(odd))


def test_what_the_cluster_wants_of_pods_stands_in_each():
    jobs = [o for o in objects(k8s=FULL) if o["kind"] == "Job"]
    assert [job["metadata"]["namespace"] for job in jobs] == ["llm"] * 4
    assert jobs[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "llm"
    pod = jobs[0]["spec"]["template"]["spec"]
    wanted = {"nvidia.com/gpu": "1", "rdma/hca": "8", "cpu": "96", "memory": "900Gi"}
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": wanted, "requests": wanted}
    assert container["command"][0] == "/venv/bin/python"
    assert {"name": "A", "value": "$$(B)"} in container["env"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "llm", "effect": "NoSchedule"},
    ]
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["priorityClassName"] == "high"


def test_executors_have_no_rights_and_a_driver_only_what_it_does():
    assert {o["kind"] for o in objects()} == {"Job"}
    pod = objects()[0]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    rules = {o["kind"]: o["rules"] for o in objects(k8s=FULL) if "rules" in o}
    assert [rule["resources"] for rule in rules["Role"]] == [["jobs"], ["pods"]]
    assert rules["ClusterRole"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    ]


def test_every_object_is_valid_by_the_published_schemas():
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    version = validator.latest_version()
    for one in objects() + objects(k8s=FULL):
        validator.validate(one, version, strict=True)


def test_pods_of_a_node_are_found_by_where_they_were_bound():
    assert pods_on(ANSWER, "gpu-7") == ["msctl-x-0-abc12"]
    assert pods_on(ANSWER, "gpu-9") == []
    for nonsense in ("", "{}", '{"items": 3}', "[" * 9000):
        with pytest.raises(MissingError, match="cannot be read"):
            pods_on(nonsense, "gpu-7")


@pytest.mark.multi
def test_a_bad_node_is_cordoned_then_its_pod_goes(tmp_path: Path, monkeypatch):
    """Against a stand-in for kubectl that answers as a cluster did and notes what it hears."""
    heard = tmp_path / "heard"
    (tmp_path / "answer.json").write_text(ANSWER)
    program = tmp_path / "kubectl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {heard}\n[ "$1" = get ] && cat {tmp_path}/answer.json\nexit 0\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    KubernetesLauncher(GPU).replace("gpu-7", "it failed gpu.ecc")
    lines = heard.read_text().splitlines()
    assert lines[0] == "cordon gpu-7"
    assert lines[-1] == "delete pod msctl-x-0-abc12 --grace-period=0 --force"
    assert len([line for line in lines if line.startswith("delete")]) == 1


def test_without_kubectl_the_remedy_is_the_dry_run(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError) as caught:
        KubernetesLauncher(GPU).start(tmp_path, 1)
    assert "--dry-run" in caught.value.remedy


@pytest.mark.multi
@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("dial tcp 127.0.0.1:8080: connect: connection refused", "kubectl cluster-info"),
        ("Error from server (Forbidden): jobs.batch is forbidden", "kubectl auth can-i"),
    ],
)
def test_the_hint_fits_what_kubectl_says(tmp_path: Path, monkeypatch, said: str, remedy: str):
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(MissingError, match="kubectl get") as caught:
        kubectl("get", "pods")
    assert remedy in caught.value.remedy
