"""The whole of a run in one TOML file: sections, their keys, their defaults.

Sections and keys are the fields below; nothing is renamed on the way in. Reading files and `--set`
is `engine/spec/load.py`; contradictions between sections are found by `engine/spec/check.py`.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from engine.spec.base import Count, NonNegative, Noun, Positive, Ratio, Size, doc
from engine.spec.cluster import ClusterSpec
from engine.spec.job import JobSpec
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.places import KubernetesSpec, SlurmSpec

_NAME_RULE = "1 to 64 letters, digits, dots, dashes, underscores, a letter or digit first"

Precision = Literal["fp64", "fp32", "bf16"]
Recompute = Literal["none", "selective", "full"]


class BatchSpec(Noun, frozen=True, kw_only=True):
    """How many sequences a step takes."""

    global_batch: Annotated[Count, doc("sequences per optimizer step, all replicas")]
    micro_batch: Annotated[Count, doc("sequences per forward pass")] = 1

    def microbatches(self, layout: ParallelLayout) -> int:
        """Forward passes of one replica in a step."""
        return self.global_batch // (self.micro_batch * layout.dp)


class ScheduleSpec(Noun, frozen=True, kw_only=True):
    """The order of forwards and backwards in the pipeline."""

    kind: Annotated[
        Literal["auto", "gpipe", "1f1b", "interleaved", "breadth-first", "zero-bubble", "zb-v"],
        doc("auto: interleaved if vpp > 1, else 1f1b"),
    ] = "auto"
    group: Annotated[
        Size,
        doc(
            "micro-batches that go through a chunk before the next one (interleaved, zero-bubble); "
            "more hide slower links and hold more activations; 0 = the fewest, about pp"
        ),
    ] = 0
    run_ahead: Annotated[
        Size,
        doc(
            "micro-batches that a stage is ahead per stage behind it (1f1b, interleaved, "
            "zero-bubble); 2 gives a message the time of a computation to arrive, and holds twice "
            "the activations of 1; 0 = the kind's own: 2 for interleaved, else 1"
        ),
    ] = 0


class OverlapSpec(Noun, frozen=True, kw_only=True):
    """Which communication runs behind computation; one switch per row of the paper's Table 3."""

    tp: Annotated[bool, doc("all-gather and reduce-scatter behind their GEMMs")] = False
    pp: Annotated[bool, doc("sends and receives behind other micro-batches")] = True
    pp_ahead: Annotated[
        Count, doc("computations by which a receive is posted early; each holds one message")
    ] = 4
    tp_pieces: Annotated[
        Size,
        doc(
            "pieces a tensor-parallel GEMM is cut into; 1 = whole, 0 = auto: with overlap.tp as "
            "many as [cluster] makes fastest (where it is not given 4, on CPUs 1), else 1"
        ),
    ] = 0
    tp_halves: Annotated[
        bool,
        doc("compute a micro-batch in two halves; with overlap.tp the sums of one travel while the "
            "other computes, also without sequence parallelism"),
    ] = False  # fmt: skip
    dp: Annotated[bool, doc("parameter gathers and gradient reductions per chunk")] = True
    dp_levels: Annotated[
        Literal["auto", "one", "two"],
        doc(
            "two: within the node and across nodes, where replicas share nodes; auto: two on "
            "gloo, while NCCL lays its own paths"
        ),
    ] = "auto"


class OptimSpec(Noun, frozen=True, kw_only=True):
    """The optimizer and its learning-rate schedule."""

    name: Annotated[
        Literal["adamw", "lamb"],
        doc("update rule; lamb scales each tensor's step by its norm, for large batches"),
    ] = "adamw"
    lr: Annotated[Positive, doc("peak learning rate")] = 3e-4
    min_lr: Annotated[NonNegative, doc("learning rate at the end of the decay")] = 3e-5
    warmup_steps: Annotated[Size, doc("steps of linear warm-up")] = 0
    decay_steps: Annotated[Size, doc("steps until min_lr is reached; 0 = train.steps")] = 0
    decay: Annotated[Literal["cosine", "linear", "constant"], doc("shape after warm-up")] = "cosine"
    beta1: Annotated[Ratio, doc("decay of the first moment")] = 0.9
    beta2: Annotated[Ratio, doc("decay of the second moment")] = 0.95
    eps: Annotated[Positive, doc("added to the root of the second moment")] = 1e-8
    weight_decay: Annotated[NonNegative, doc("decoupled; matrices only")] = 0.1
    clip_norm: Annotated[NonNegative, doc("largest global gradient norm; 0 = no clipping")] = 1.0


class DataSpec(Noun, frozen=True, kw_only=True):
    """Where tokens come from."""

    source: Annotated[
        tuple[str, ...],
        doc("files, folders, globs, fsspec URLs; python-stdlib: is the standard library's source"),
    ] = ("python-stdlib:",)
    format: Annotated[
        Literal["auto", "text", "jsonl", "parquet", "megatron", "synthetic"],
        doc("auto: by file name; synthetic needs no source"),
    ] = "auto"
    field: Annotated[str, doc("key (jsonl) or column (parquet) that holds the text")] = "text"
    tokenizer: Annotated[
        str, doc("bytes, bpe (trained from the source), or the path of a tokenizer.json")
    ] = "bytes"
    eod: Annotated[str, doc("token of a tokenizer.json that ends a document; empty = find it")] = ""
    bpe_vocab: Annotated[Count, doc("size of a tokeniser trained by tokenizer = bpe")] = 4096
    validation: Annotated[Ratio, doc("share of documents held out")] = 0.02
    shuffle: Annotated[bool, doc("shuffle samples anew in every epoch")] = True
    limit_bytes: Annotated[Size, doc("read at most this much text; 0 = all")] = 0
    cache: Annotated[str, doc("folder for token files; empty = the user's cache")] = ""
    loader: Annotated[
        Literal["node", "rank"],
        doc("who reads: one process per node for all its ranks, or every rank for itself"),
    ] = "node"


class TrainSpec(Noun, frozen=True, kw_only=True):
    """The loop."""

    steps: Annotated[Count, doc("optimizer steps in total")] = 100
    precision: Annotated[Precision, doc("of parameters and activations; master is fp32")] = "fp32"
    recompute: Annotated[
        Recompute,
        doc("activations computed again in the backward: none, attention and MLP cores, blocks"),
    ] = "none"
    device: Annotated[Literal["auto", "cpu", "cuda"], doc("auto: cuda if present")] = "auto"
    ops: Annotated[
        Literal["auto", "reference", "native"], doc("operators: native ones where present")
    ] = "auto"
    eval_every: Annotated[Size, doc("steps between validations; 0 = only at the end")] = 0
    eval_batches: Annotated[Size, doc("global batches of a validation; 0 = no validation")] = 4
    deterministic: Annotated[bool, doc("refuse operators whose result depends on timing")] = True
    threads: Annotated[Size, doc("CPU threads of a rank; 0 = cores / ranks on the node")] = 0
    store: Annotated[
        str,
        doc(
            "where ranks meet: tcp (served by rank 0), redis (a private server), or the URL of a "
            "server, redis://HOST:PORT/0?password_file=PATH"
        ),
    ] = "tcp"
    host: Annotated[str, doc("address at which ranks find each other")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=0, le=65535)], doc("0 = a free one")] = 0


class CkptSpec(Noun, frozen=True, kw_only=True):
    """When to save, where to, and what to keep."""

    path: Annotated[
        str,
        doc("folder or fsspec URL; {run} is the run's name; empty = ckpt in the run's folder"),
    ] = ""
    two_stage: Annotated[
        bool, doc("snapshot into memory, written behind training; false: training waits")
    ] = True
    every: Annotated[Size, doc("steps between checkpoints; 0 = not by steps")] = 0
    every_minutes: Annotated[NonNegative, doc("minutes between checkpoints; 0 = not by time")] = 0.0
    auto: Annotated[
        bool, doc("by what a save costs, as measured, and mtbf_h: the interval that loses least")
    ] = False
    mtbf_h: Annotated[Positive, doc("mean hours between failures of the whole run")] = 24.0
    spike: Annotated[
        NonNegative, doc("save and mark when the loss jumps by so many deviations; 0 = never")
    ] = 0.0
    keep: Annotated[Size, doc("newest checkpoints to keep; 0 = all")] = 3
    at_end: Annotated[bool, doc("save after the last step")] = True
    partner: Annotated[bool, doc("a copy of each snapshot in the next node's memory")] = False
    rate_mib_s: Annotated[NonNegative, doc("most MiB/s a node writes behind training; 0 = any")] = (
        0.0
    )
    deadline_s: Annotated[
        Positive, doc("a snapshot not in the store by then is an alarm; the end waits no longer")
    ] = 600.0


class MonitorSpec(Noun, frozen=True, kw_only=True):
    """What is recorded while training."""

    events: Annotated[bool, doc("one span per action and rank")] = True
    events_every: Annotated[
        Count,
        doc(
            "steps between those whose every span is kept; the others are summed up by action, in "
            "some 30 lines a rank; the first 3 of a start are kept"
        ),
    ] = 1
    events_mib: Annotated[
        Size, doc("most MiB of events that a rank keeps, the newest; 0 = all")
    ] = 1024
    tensorboard: Annotated[bool, doc("write TensorBoard files")] = True
    log_every: Annotated[Count, doc("steps between printed lines")] = 1
    step_deadline_s: Annotated[
        Positive, doc("a longer step makes every rank write down what it is doing")
    ] = 60.0
    timeout_s: Annotated[Positive, doc("longest wait for a communication before giving up")] = 300.0
    collect_every: Annotated[
        Size,
        doc("steps between garbage collections, the same on all ranks; 0 leaves it to Python"),
    ] = 20


class Recipe(Noun, frozen=True, kw_only=True):
    """All sections of a run."""

    name: Annotated[
        str,
        Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", extra={"rule": _NAME_RULE}),
        doc("of the run"),
    ]
    seed: Annotated[Size, doc("of initial weights, data order and dropout")] = 1
    model: Annotated[ModelSpec, doc("what is trained")]
    batch: Annotated[BatchSpec, doc("how much per step")]
    layout: Annotated[ParallelLayout, doc("how it is split over ranks")] = field(
        default_factory=ParallelLayout
    )
    schedule: Annotated[ScheduleSpec, doc("pipeline order")] = field(default_factory=ScheduleSpec)
    overlap: Annotated[OverlapSpec, doc("what is hidden")] = field(default_factory=OverlapSpec)
    optimizer: Annotated[OptimSpec, doc("how weights move")] = field(default_factory=OptimSpec)
    data: Annotated[DataSpec, doc("what is read")] = field(default_factory=DataSpec)
    train: Annotated[TrainSpec, doc("the loop")] = field(default_factory=TrainSpec)
    checkpoint: Annotated[CkptSpec, doc("saving")] = field(default_factory=CkptSpec)
    monitor: Annotated[MonitorSpec, doc("recording")] = field(default_factory=MonitorSpec)
    job: Annotated[JobSpec, doc("keeping it alive")] = field(default_factory=JobSpec)
    slurm: Annotated[SlurmSpec, doc("the scheduler Slurm")] = field(default_factory=SlurmSpec)
    k8s: Annotated[KubernetesSpec, doc("Kubernetes")] = field(default_factory=KubernetesSpec)
    cluster: Annotated[ClusterSpec | None, doc("what it runs on, for plan; none = this one")] = None
