import pytest

from engine.errors import EngineError
from engine.plan.request import Request, make_exhaustive, make_goodput, make_plan, prepare
from engine.spec.load import dump_cluster
from engine.spec.presets import CLUSTERS


def test_defaults_are_named_as_assumptions():
    ready = prepare(Request(model="175b", gpus=12288))
    text = " ".join(ready.assumptions)
    assert "a100-nvl8" in text
    assert "bf16" in text
    assert "6144 sequences" in text
    assert prepare(Request(model="175b", gpus=64, cluster="a100-nvl8", batch=64,
                           precision="bf16")).assumptions == ()  # fmt: skip


def test_what_is_set_holds():
    sets = ("layout.tp=8", "layout.pp=4,8", "layout.recompute=full", "model.block=parallel",
            "layout.zero=1", "batch.micro_batch=1")  # fmt: skip
    report = make_plan(Request(model="13b", gpus=64, batch=256, sets=sets, top=50))
    assert {c.layout.tp for c in report.candidates} == {8}
    assert {c.layout.pp for c in report.candidates} <= {4, 8}
    assert {c.layout.recompute for c in report.candidates} == {"full"}
    assert report.model.block == "parallel"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sets": ("layout.tp",)}, "layout.tp"),
        ({"sets": ("layout.tp=eight",)}, "layout.tp=eight"),
        ({"sets": ("layout.recompute=some",)}, "layout.recompute=some"),
        ({"sets": ("train.steps=4",)}, "train.steps"),
        ({"sets": ("model.layers=many",)}, "model"),
        ({"precision": "fp8"}, "fp8"),
        ({"cluster": "a64fx"}, "a64fx"),
        ({"system": "slurmatron"}, "slurmatron"),
    ],
)
def test_wrong_words_are_named_with_a_remedy(changes, says):
    with pytest.raises(EngineError) as caught:
        make_plan(Request(model="13b", gpus=64, **changes))
    assert says in caught.value.what
    assert caught.value.remedy


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[model]\npreset = "small"\n[batch]\nglobal_batch = 8\n' + text)
    return str(path)


def test_a_recipe_s_own_precision_and_sharding_hold(tmp_path):
    path = written(tmp_path, '[train]\nprecision = "fp64"\n'
                   "[layout]\nzero = 0\nsequence_parallel = false\n")  # fmt: skip
    ready = prepare(Request(model=path, gpus=8))
    assert ready.job.precision == "fp64"
    assert (ready.space.zero, ready.space.sequence_parallel) == ((0,), (False,))
    assert "precision" not in " ".join(ready.assumptions)
    assert prepare(Request(model=written(tmp_path, ""), gpus=8)).job.precision == "fp32"
    assert prepare(Request(model=path, gpus=8, precision="bf16")).job.precision == "bf16"
    held = prepare(Request(model=path, gpus=8, sets=("layout.zero=1,2",)))
    assert held.space.zero == (1, 2)


def test_a_recipe_s_precision_that_a_device_has_no_peak_for_is_named(tmp_path):
    path = written(tmp_path, '[train]\nprecision = "fp64"\n')
    lacking = tmp_path / "lacking.toml"
    lacking.write_text(dump_cluster(CLUSTERS["a100-nvl8"]).replace("fp64 = ", "fp8 = "))
    with pytest.raises(EngineError, match=r"train\.precision = fp64 of the recipe"):
        prepare(Request(model=path, gpus=8, cluster=str(lacking)))


def test_a_budget_is_days_hours_and_money():
    report = make_plan(Request(model="13b", gpus=64, tokens=1e12, price_per_gpu_hour=2.0))
    spent = report.budget
    assert spent.gpu_hours == pytest.approx(spent.days * 24 * 64)
    assert spent.cost == pytest.approx(2 * spent.gpu_hours)
    assert spent.days * 86400 * report.candidates[0].tokens_per_s == pytest.approx(1e12)


@pytest.mark.slow
def test_the_paper_s_layout_is_among_the_candidates_close_to_the_best():
    report = make_plan(Request(model="175b", gpus=12288, system="megascale", top=40))
    shapes = [(c.layout.tp, c.layout.pp, c.layout.vpp, c.layout.dp) for c in report.candidates]
    place = shapes.index((8, 8, 6, 192))
    assert report.candidates[place].step_s < 1.08 * report.candidates[0].step_s


def test_other_questions_get_answers():
    assert make_goodput(Request(model="175b", gpus=12288)).nodes == 1536


def test_the_complete_search_holds_what_is_set():
    found = make_exhaustive(
        Request(model="13b", gpus=64, top=4, sets=("layout.tp=4", "layout.pp=2"))
    )
    assert {c.layout.tp for c in found.candidates} == {4}


def test_what_msctl_train_cannot_run_is_marked():
    found = make_plan(Request(model="13b", gpus=64, top=2, sets=("layout.zero=3", "layout.cp=2")))
    assert {c.obstacle for c in found.candidates} == {"ZeRO-3, cp = 2"}
    assert {c.obstacle for c in make_plan(Request(model="13b", gpus=64)).candidates} == {""}
