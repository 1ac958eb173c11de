"""A smaller layout for a run that lost nodes: fewer replicas, the same global batch (paper 4.1).

Only dp changes: tp and pp are what the model needs to fit, and a checkpoint is read by any layout.
"""

import msgspec

from engine.spec.check import check
from engine.spec.recipe import Recipe


def smaller(recipe: Recipe, ranks: int) -> Recipe | None:
    """The recipe with as many replicas as `ranks` can carry and its batch divides by; or None."""
    layout = recipe.layout
    for dp in range(min(layout.dp - 1, ranks // (layout.tp * layout.pp)), 0, -1):
        if recipe.batch.global_batch % (recipe.batch.micro_batch * dp):
            continue
        wish = msgspec.structs.replace(recipe, layout=msgspec.structs.replace(layout, dp=dp))
        if dp == 1:  # there is no other replica to compare it with
            job = msgspec.structs.replace(recipe.job, sdc_every=0)
            wish = msgspec.structs.replace(wish, job=job)
        if not check(wish):
            return wish
    return None
