"""The sections [slurm] and [k8s]: what they leave to the cluster."""

import msgspec
import pytest

from engine.spec.places import KubernetesSpec, SlurmSpec


def test_by_themselves_they_ask_for_nothing_that_only_some_clusters_have():
    assert SlurmSpec().options == ()
    k8s = KubernetesSpec()
    assert (k8s.resources, k8s.node_selector, k8s.priority, k8s.namespace) == ((), (), "", "")
    assert k8s.driver_account == ""


@pytest.mark.parametrize("wrong", [{"options": "--time=1"}, {"partition": "gpu"}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, SlurmSpec)
