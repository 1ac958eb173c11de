"""How optimizer, data and cluster must fit the run; each rule yields what breaks it."""

from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qs, urlsplit

from engine.spec.cluster import ClusterSpec
from engine.spec.keys import Keys, problem
from engine.spec.problem import Problem

_BYTES_VOCAB = 256
MOST_DEVICES = 1 << 22
"""That a cluster may have; beyond it, laying out a run would exhaust this machine."""


def texts(keys: Keys) -> Iterator[Problem]:
    """Texts that name something are neither empty nor hold a NUL, which no path may."""
    recipe = keys.recipe
    named = {
        "train.host": recipe.train.host,
        "data.tokenizer": recipe.data.tokenizer,
        "data.field": recipe.data.field,
    }
    for key, text in named.items():
        if not text.strip():
            yield problem(key, what=f"{key} is empty", remedy=f"give {key} a value, or delete it")
    paths = {"data.source": "".join(recipe.data.source), "data.cache": recipe.data.cache}
    paths["checkpoint.path"] = recipe.checkpoint.path
    for key, text in (named | paths).items():
        if "\0" in text:
            yield problem(key, what=f"{key} holds a NUL character", remedy=f"correct {key}")


def store(keys: Keys) -> Iterator[Problem]:
    """Ranks meet at something that exists, and no password stands in the recipe."""
    wish = keys.recipe.train.store
    if wish in ("tcp", "redis"):
        return
    parts = _url(wish)
    where = parts.hostname if parts.scheme in ("redis", "rediss") else parts.path
    if parts.scheme not in ("redis", "rediss", "unix") or not where:
        yield problem(
            "train.store",
            what=f"{keys.show('train.store')} is neither tcp, redis nor the URL of a Redis",
            remedy="write e.g. redis://HOST:6379/0?password_file=PATH",
        )
    elif "@" in parts.netloc or "password" in parse_qs(parts.query):
        yield problem(
            "train.store",
            what="train.store holds a password, and recipes are copied into run folders",
            remedy="put it into a file and name that: redis://HOST:6379/0?password_file=PATH",
        )


def _url(text: str) -> SplitResult:
    """A URL's parts; nothing if it has none."""
    try:
        return urlsplit(text)
    except ValueError:  # e.g. half a bracket
        return urlsplit("")


def learning_rate(keys: Keys) -> Iterator[Problem]:
    """The learning rate rises, then falls, within the run."""
    optimizer = keys.recipe.optimizer
    if optimizer.min_lr > optimizer.lr and optimizer.decay != "constant":
        yield problem(
            "optimizer.min_lr" if keys.given("optimizer.min_lr") else "optimizer.lr",
            "optimizer.lr",
            "optimizer.min_lr",
            what=f"{keys.show('optimizer.min_lr')} is above {keys.show('optimizer.lr')}",
            remedy=f"set optimizer.min_lr to at most {optimizer.lr:g}, e.g. {optimizer.lr / 10:g}",
        )
    end = "optimizer.decay_steps" if optimizer.decay_steps else "train.steps"
    if optimizer.warmup_steps and optimizer.warmup_steps >= keys.number(end):
        yield problem(
            "optimizer.warmup_steps",
            end,
            what=f"{keys.show('optimizer.warmup_steps')} is not below {keys.show(end)}",
            remedy=f"set optimizer.warmup_steps below {keys.number(end)}, or raise {end}",
        )


def moments(keys: Keys) -> Iterator[Problem]:
    """Moments forget: a decay of 1 would keep them at their start."""
    optimizer = keys.recipe.optimizer
    for key, beta in (("optimizer.beta1", optimizer.beta1), ("optimizer.beta2", optimizer.beta2)):
        if beta >= 1:
            yield problem(
                key,
                what=f"{keys.show(key)} never forgets: the moment stays at its start",
                remedy=f"set {key} below 1, e.g. 0.95",
            )


def source(keys: Keys) -> Iterator[Problem]:
    """There is something to read, some of it to train on, some to validate on if asked."""
    data, train = keys.recipe.data, keys.recipe.train
    if data.format != "synthetic" and not (data.source and all(s.strip() for s in data.source)):
        yield problem(
            "data.source",
            "data.format",
            what="data.source names nothing to read",
            remedy='list files or folders, e.g. source = ["python-stdlib:"], '
            "or set data.format to synthetic",
        )
    if data.validation >= 1:
        yield problem(
            "data.validation",
            what=f"{keys.show('data.validation')} leaves nothing to train on",
            remedy="set data.validation below 1, e.g. 0.02",
        )
    if train.eval_every and train.eval_batches and not data.validation:
        yield problem(
            "train.eval_every",
            "data.validation",
            "train.eval_batches",
            what=f"{keys.show('train.eval_every')} asks for validations, "
            f"but {keys.show('data.validation')} holds nothing out",
            remedy="set data.validation to e.g. 0.02, or train.eval_every to 0",
        )


def end_of_document(keys: Keys) -> Iterator[Problem]:
    """A token that ends documents can be chosen in a tokenizer.json only."""
    data = keys.recipe.data
    if data.eod and data.tokenizer in ("bytes", "bpe"):
        yield problem(
            "data.eod",
            "data.tokenizer",
            what=f"{keys.show('data.eod')} means nothing with {keys.show('data.tokenizer')}, which "
            "has an end of its own",
            remedy="delete data.eod, or set data.tokenizer to the path of a tokenizer.json",
        )


def vocabulary(keys: Keys) -> Iterator[Problem]:
    """The embedding has a row for every token that the recipe itself promises."""
    data, model = keys.recipe.data, keys.recipe.model
    if data.tokenizer == "bpe" and data.bpe_vocab <= _BYTES_VOCAB:
        yield problem(
            "data.bpe_vocab",
            "data.tokenizer",
            what=f"{keys.show('data.bpe_vocab')} has no room beside the {_BYTES_VOCAB} bytes",
            remedy=f"set data.bpe_vocab above {_BYTES_VOCAB}, or data.tokenizer to bytes",
        )
    need = {"bytes": _BYTES_VOCAB, "bpe": data.bpe_vocab}.get(data.tokenizer, 0)
    if data.format not in ("synthetic", "megatron") and model.vocab < need:
        size = "" if data.tokenizer == "bytes" else f" with {keys.show('data.bpe_vocab')}"
        yield problem(
            "model.vocab",
            "data.tokenizer",
            "data.bpe_vocab",
            "data.format",
            what=f"{keys.show('model.vocab')} is smaller than the {need} tokens of "
            f"{keys.show('data.tokenizer')}{size}",
            remedy=f"set model.vocab to at least {need}",
        )


def cluster(keys: Keys) -> Iterator[Problem]:
    """The cluster holds the layout and knows the peak of the precision."""
    recipe, machines = keys.recipe, keys.recipe.cluster
    if machines is None:
        return
    ranks = recipe.layout.world_size
    if ranks > machines.world_size:
        yield problem(
            "cluster.nodes",
            "cluster.gpus_per_node",
            "layout.tp",
            "layout.pp",
            "layout.dp",
            what=f"layout.tp * pp * dp = {ranks} ranks, but the cluster has {machines.nodes} * "
            f"{machines.gpus_per_node} = {machines.world_size} devices",
            remedy=f"set cluster.nodes to {-(-ranks // machines.gpus_per_node)}, "
            "or make the layout smaller",
        )
    peaks = machines.device.peak_flops_per_s
    if recipe.train.precision not in peaks:
        known = ", ".join(peaks) or "none"
        yield problem(
            "train.precision",
            "cluster.device.peak_flops_per_s",
            what=f"{keys.show('train.precision')} has no peak in "
            f"cluster.device.peak_flops_per_s ({known})",
            remedy=f"set train.precision to a known one ({known}), or add its peak in FLOP/s",
        )


def replicas(keys: Keys) -> Iterator[Problem]:
    """Replicas can be compared where there are two, and where they compute alike."""
    recipe = keys.recipe
    if not recipe.job.sdc_every:
        return
    if recipe.layout.dp == 1:
        yield problem(
            "job.sdc_every",
            "layout.dp",
            what=f"{keys.show('job.sdc_every')} compares replicas, but {keys.show('layout.dp')}",
            remedy="set job.sdc_every to 0, or layout.dp to 2 or more",
        )
    if not recipe.train.deterministic:
        yield problem(
            "job.sdc_every",
            "train.deterministic",
            what=f"{keys.show('job.sdc_every')} compares replicas bit by bit, but "
            f"{keys.show('train.deterministic')} lets results depend on timing",
            remedy="set train.deterministic to true, or job.sdc_every to 0",
        )


def device(keys: Keys) -> Iterator[Problem]:
    """The cluster's own numbers make sense."""
    if keys.recipe.cluster is not None:
        yield from check_cluster(keys.recipe.cluster, prefix="cluster.")


def check_cluster(machines: ClusterSpec, *, prefix: str = "") -> Iterator[Problem]:
    """Peaks are positive and the sustained share is a share; `prefix` stands before the keys."""
    peaks, share = f"{prefix}device.peak_flops_per_s", f"{prefix}device.sustained"
    for name, peak in machines.device.peak_flops_per_s.items():
        if not peak > 0:
            yield problem(
                f"{peaks}.{name}",
                what=f"{peaks}.{name} = {peak:g} is not above 0",
                remedy="set it to the dense peak in FLOP/s, or delete it",
            )
    if not 0 < machines.device.sustained <= 1:
        yield problem(
            share,
            what=f"{share} = {machines.device.sustained:g} is not a share above 0 and up to 1",
            remedy=f"set {share} to e.g. 0.8",
        )
    if machines.world_size > MOST_DEVICES:
        yield problem(
            f"{prefix}nodes",
            what=f"{prefix}nodes * gpus_per_node = {machines.world_size} devices is beyond the "
            f"limit of {MOST_DEVICES}",
            remedy=f"set {prefix}nodes to the number of machines",
        )
