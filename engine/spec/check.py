"""Contradictions between keys of a recipe: the list of all rules.

Each rule says which keys it looks at, the one to change first, so that `load.py` can point at the
line and can leave out rules whose keys are wrong in themselves.
"""

from engine.spec import check_places, check_run, check_shape
from engine.spec.keys import Keys
from engine.spec.problem import Problem
from engine.spec.recipe import Recipe

RULES = (
    check_shape.sizes,
    check_shape.heads,
    check_shape.window,
    check_shape.width,
    check_shape.depth,
    check_shape.batch,
    check_shape.schedule,
    check_shape.overlap,
    check_run.texts,
    check_run.store,
    check_run.learning_rate,
    check_run.moments,
    check_run.source,
    check_run.end_of_document,
    check_run.vocabulary,
    check_run.cluster,
    check_run.device,
    check_run.replicas,
    check_places.slurm,
    check_places.kubernetes,
)


def check(
    recipe: Recipe, *, given: frozenset[str] | None = None, wrong: frozenset[str] = frozenset()
) -> list[Problem]:
    """Every contradiction of a recipe; empty if it can be planned and trained.

    `given` are the keys that somebody wrote (None: all), as opposed to defaults. Rules that look
    at a key in `wrong` are not asked: its value is only a stand-in.
    """
    keys = Keys(recipe, given, wrong)
    found = [problem for rule in RULES for problem in rule(keys)]
    return [p for p in found if not any(keys.is_wrong(key) for key in p.keys)]
