"""Texts for Slurm and Kubernetes that would fail there, or take over what the job decides."""

import pytest

from engine.spec.check import check
from engine.spec.check_places import taint
from tests.engine.spec.samples import changed


@pytest.mark.parametrize(
    ("sections", "what", "remedy"),
    [
        ({"slurm": {"options": ["-p gpu"]}}, "no long option of sbatch", "--partition=gpu"),
        ({"slurm": {"options": ["--partition gpu"]}}, "no long option", "name and value in one"),
        ({"slurm": {"options": ["--comment=a\nb"]}}, "no long option", "one by one"),
        ({"slurm": {"options": ["--comment=a\\b"]}}, "no long option", "one by one"),
        ({"slurm": {"options": ["--array=0-3"]}}, "--array is decided by job.nodes", "delete it"),
        ({"slurm": {"options": ["--signal=USR1@9"]}}, "decided by the driver", "delete it"),
        ({"slurm": {"setup": ["module load cuda\nrm x"]}}, "is not one line", "for each line"),
        ({"slurm": {"python": "a\0"}}, "slurm.python: 'a\\x00' is not one line", "NUL"),
        ({"k8s": {"node_selector": ["gpu"]}}, "'gpu' is not a label", "NAME=VALUE"),
        ({"k8s": {"labels": ["a b=c"]}}, "'a b=c' is not a label", "NAME=VALUE"),
        ({"k8s": {"resources": ["memory=lots"]}}, "'memory=lots' is not an amount", "900Gi"),
        ({"k8s": {"tolerations": ["a=b:Never"]}}, "'a=b:Never' is not a taint", "NoSchedule"),
        ({"k8s": {"env": ["1A=b"]}}, "'1A=b' is not a variable", "NAME=VALUE"),
        ({"k8s": {"claim": ""}}, "no name that Kubernetes takes", "lower-case"),
        ({"k8s": {"namespace": "LLM"}}, "no name that Kubernetes takes", "lower-case"),
    ],
)
def test_what_cannot_be_handed_over_is_found(sections, what, remedy):
    (problem,) = check(changed(**sections))
    assert what in problem.what
    assert remedy in problem.remedy


def test_what_clusters_ask_for_passes():
    options = ["--partition=gpu", "--account=llm", "--time=7-00:00:00", "--exclusive=user",
               "--mem=0", '--comment=a "b" #c', "--container-image=a/b#c/pytorch"]  # fmt: skip
    k8s = {
        "namespace": "llm", "resources": ["rdma/hca_shared=1", "cpu=1.5", "memory=900Gi"],
        "labels": ["kueue.x-k8s.io/queue-name=llm"], "env": ["A=", "B=c=d"],
        "tolerations": ["gpu", "a=b", "a=:NoExecute", "nvidia.com/gpu:NoSchedule"],
    }  # fmt: skip
    assert check(changed(slurm={"options": options, "setup": ["module load x"]}, k8s=k8s)) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("gpu:NoExecute", {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
        ("gpu=yes", {"key": "gpu", "operator": "Equal", "value": "yes"}),
        ("gpu=:NoSchedule", {"key": "gpu", "operator": "Equal", "value": "",
                             "effect": "NoSchedule"}),
    ],
)  # fmt: skip
def test_a_taint_is_read_as_kubectl_writes_it(text, parts):
    assert taint(text) == parts
