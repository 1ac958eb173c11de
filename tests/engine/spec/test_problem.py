from engine.spec.problem import Problem, RecipeProblems


def _problem(number: int, where: str = "x.toml:3") -> Problem:
    return Problem(keys=("a.b",), what=f"a.b = {number}", remedy=f"set {number}", where=where)


def test_a_problem_is_shown_with_its_place():
    assert _problem(1).shown == "x.toml:3: a.b = 1"
    assert _problem(1, where="").shown == "a.b = 1"


def test_one_problem_keeps_its_remedy_and_many_count():
    assert RecipeProblems((_problem(1),)).remedy == "set 1"
    both = RecipeProblems((_problem(1), _problem(2)))
    assert both.remedy == "correct all 2, beginning with: set 1"
    assert both.what.splitlines() == ["x.toml:3: a.b = 1", "x.toml:3: a.b = 2"]
