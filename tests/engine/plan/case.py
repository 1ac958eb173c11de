"""Jobs that several tests of the planner use."""

import msgspec

from engine.plan.profiles import fitted, profile
from engine.plan.setup import Job
from engine.spec.model import ModelSpec
from engine.spec.presets import CLUSTERS, model_preset


def job(
    model: str | ModelSpec = "13b", *, gpus: int = 64, batch: int = 256, system: str = "megascale",
    cluster: str = "a100-nvl8",
) -> Job:  # fmt: skip
    base = CLUSTERS[cluster]
    return Job(
        model=model_preset(model) if isinstance(model, str) else model,
        cluster=msgspec.structs.replace(base, nodes=-(-gpus // base.gpus_per_node)),
        global_batch=batch,
        profile=profile(system),
        physics=fitted().physics,
    )


def replace(noun, **changes):
    return msgspec.structs.replace(noun, **changes)
