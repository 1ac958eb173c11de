"""What kubectl says of pods and nodes; kubectl is a stand-in, there being no cluster here."""

import json
import sys
from pathlib import Path

import pytest

from engine.errors import MissingError, RecipeError
from engine.health.agent import Hello
from engine.health.allocation import Allocation, check_allocation, find_nodes
from engine.health.fleet import Plan
from engine.health.launch import start
from engine.health.pods import find_pods

ROOT = Path(__file__).resolve().parents[3]


def pod(name, node, phase="Running"):
    return {"metadata": {"name": name, "labels": {"app": "train"}}, "spec": {"nodeName": node},
            "status": {"phase": phase}}  # fmt: skip


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Install a kubectl that answers with the given lists and runs `exec` on this machine."""

    def install(pods, nodes=()):
        (tmp_path / "pods").write_text(
            pods if isinstance(pods, str) else json.dumps({"items": pods})
        )
        (tmp_path / "nodes").write_text(json.dumps({"items": list(nodes)}))
        program = tmp_path / "kubectl"
        program.write_text(
            f'#!/bin/sh\necho "$*" >>{tmp_path}/log\n'
            f'case "$1" in get) exec cat {tmp_path}/$2 ;; esac\n'
            'while [ "$1" != -- ]; do shift; done\nshift 2\n'
            f'cd {ROOT} && exec {sys.executable} "$@"\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "log"

    return install


@pytest.mark.multi
def test_running_pods_are_found_one_a_node_with_their_rack(kubectl):
    log = kubectl(
        [pod("b", "n1"), pod("a", "n1"), pod("c", "n2"), pod("d", "n3", "Pending")],
        [{"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/rack": "r7"}}},
         {"metadata": {"name": "n2"}}],
    )  # fmt: skip
    found = find_pods("app=train", "ml")
    assert found.pod_of == {"n1": "a", "n2": "c"}
    assert found.rack_of == {"n1": "r7"}
    assert log.read_text().splitlines()[0] == "get pods -n ml -l app=train -o json"
    where = Allocation(where="k8s", selector="app=train")
    assert find_nodes(where) == (["n1", "n2"], {"n1": "r7"}, {"n1": "a", "n2": "c"})


@pytest.mark.multi
def test_no_pods_and_odd_answers_are_errors(kubectl):
    kubectl([pod("d", "n3", "Pending")])
    with pytest.raises(MissingError, match="no running pod has the labels app=train"):
        find_pods("app=train", "")
    kubectl("not json")
    with pytest.raises(MissingError, match="answered oddly"):
        find_pods("app=train", "")


def test_the_selector_is_needed():
    with pytest.raises(RecipeError, match="--on k8s names no pods") as caught:
        check_allocation(Allocation(where="k8s"), Plan(), say=lambda text: None)
    assert "--selector" in caught.value.remedy


@pytest.mark.multi
def test_an_agent_gets_its_greeting_on_standard_input_only(kubectl):
    log = kubectl([])
    hello = Hello(redis="redis://:secret@127.0.0.1:1/0", run="r")
    started = start("k8s", hello, ["n1"], pods={"n1": "a"}, namespace="ml")
    started.stop()
    text = log.read_text()
    assert text == "exec -i -n ml a -- python3 -m msctl.agent\n"
    assert "secret" not in text
