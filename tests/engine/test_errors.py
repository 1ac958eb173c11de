import pickle

import pytest

from engine import errors
from engine.spec.problem import Problem, RecipeProblems

KINDS = [
    errors.RecipeError,
    errors.LayoutError,
    errors.TraceError,
    errors.CheckpointError,
    errors.MissingError,
    errors.RunFailed,
]


def test_every_kind_is_listed_here():
    kinds = {v for v in vars(errors).values() if isinstance(v, type)} - {errors.EngineError}
    assert kinds == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_needs_a_remedy(kind):
    with pytest.raises(ValueError, match="without a remedy"):
        kind("broken", remedy="")
    assert isinstance(kind("broken", remedy="mend it"), errors.EngineError)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_a_process_boundary(kind):
    there = pickle.loads(pickle.dumps(kind("rank 3, step 7", remedy="mend it")))
    assert (type(there), there.what, there.remedy) == (kind, "rank 3, step 7", "mend it")
    assert str(there) == "rank 3, step 7"


def test_many_problems_cross_it_too():
    problems = tuple(Problem(keys=("a",), what=f"a = {i}", remedy=f"set {i}") for i in range(2))
    there = pickle.loads(pickle.dumps(RecipeProblems(problems)))
    assert there.problems == problems
    assert there.what == "a = 0\na = 1"
    assert there.remedy == "correct all 2, beginning with: set 0"
