import msgspec
import pytest

from engine.spec.check import check
from engine.spec.check_run import check_cluster
from engine.spec.presets import CLUSTERS
from tests.engine.spec.samples import changed

CLUSTER = msgspec.to_builtins(CLUSTERS["a100-nvl8"])


@pytest.mark.parametrize(
    ("sections", "what", "remedy"),
    [({"optimizer": {"min_lr": 1.0}}, "min_lr = 1.0 is above optimizer.lr", "at most 0.0003"),
     ({"optimizer": {"warmup_steps": 100}}, "is not below train.steps = 100", "below 100"),
     ({"optimizer": {"warmup_steps": 9, "decay_steps": 9}}, "optimizer.decay_steps = 9", "below 9"),
     ({"optimizer": {"beta1": 1.0}}, "optimizer.beta1 = 1.0 never forgets", "below 1"),
     ({"optimizer": {"beta2": 1}}, "optimizer.beta2 = 1.0 never forgets", "below 1"),
     ({"data": {"source": []}}, "names nothing to read", "python-stdlib:"),
     ({"data": {"source": ["a", " "]}}, "names nothing to read", "python-stdlib:"),
     ({"data": {"source": ["a\0b"]}}, "data.source holds a NUL", "correct data.source"),
     ({"data": {"tokenizer": ""}}, "data.tokenizer is empty", "give data.tokenizer"),
     ({"train": {"host": " "}}, "train.host is empty", "give train.host"),
     ({"train": {"store": "etcd"}}, "neither tcp, redis nor the URL", "redis://HOST"),
     ({"train": {"store": "redis://[::1"}}, "neither tcp, redis nor the URL", "redis://HOST"),
     ({"train": {"store": "redis://:pw@h/0"}}, "train.store holds a password", "password_file"),
     ({"train": {"store": "unix:///s?password=x"}}, "train.store holds a password", "into a file"),
     ({"data": {"validation": 1.0}}, "leaves nothing to train on", "below 1"),
     ({"data": {"validation": 0.0}, "train": {"eval_every": 5}}, "holds nothing out",
      "to e.g. 0.02"),
     ({"model": {"vocab": 128}}, "model.vocab = 128 is smaller than the 256 tokens",
      "at least 256"),
     ({"data": {"tokenizer": "bpe"}}, "the 4096 tokens of", "at least 4096"),
     ({"data": {"eod": "</s>"}}, "means nothing with data.tokenizer", "delete data.eod"),
     ({"data": {"tokenizer": "bpe", "bpe_vocab": 256}}, "no room beside", "above 256"),
     ({"job": {"sdc_every": 8}, "layout": {"dp": 1}}, "job.sdc_every = 8 compares replicas",
      "job.sdc_every to 0"),
     ({"job": {"sdc_every": 8}, "train": {"deterministic": False}}, "lets results depend on timing",
      "train.deterministic to true"),
     ({"cluster": CLUSTER | {"gpus_per_node": 2, "nodes": 2}},
      "= 8 ranks, but the cluster has 2 * 2",
      "cluster.nodes to 4"),
     ({"cluster": CLUSTER | {"device": CLUSTER["device"] | {"peak_flops_per_s": {"bf16": 1e12}}}},
      'train.precision = "fp32" has no peak', "known one (bf16)"),
     ({"cluster": CLUSTER | {"device": CLUSTER["device"] | {"sustained": 80.0}}},
      "sustained = 80 is not a share", "to e.g. 0.8")],
)  # fmt: skip
def test_a_contradiction_is_found_and_only_it(sections, what, remedy):
    problems = check(changed(**sections))
    assert len(problems) == 1, problems
    assert what in problems[0].what
    assert remedy in problems[0].remedy


@pytest.mark.parametrize(
    "sections",
    [{"optimizer": {"decay": "constant", "lr": 1e-6}},
    {"data": {"source": [], "format": "synthetic"}},
     {"model": {"vocab": 128}, "data": {"format": "megatron"}}, {"cluster": CLUSTER},
     {"model": {"vocab": 4096}, "data": {"tokenizer": "bpe"}}, {"cluster": CLUSTER | {"nodes": 9}},
     {"data": {"validation": 0.0}}, {"train": {"store": "redis"}},
     {"train": {"store": "redis://h:6379/0?password_file=/run/secret"}}],
)  # fmt: skip
def test_what_fits_passes(sections):
    assert check(changed(**sections)) == []


def test_a_cluster_file_is_checked_by_itself():
    device = CLUSTER["device"] | {"peak_flops_per_s": {"bf16": 0.0}}
    cluster = msgspec.convert(
        CLUSTER | {"device": device, "nodes": 1 << 40}, type(CLUSTERS["b200-nvl8"])
    )
    assert [p.keys[0] for p in check_cluster(cluster)] == ["device.peak_flops_per_s.bf16", "nodes"]
