from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RecipeError
from engine.spec.load import (
    dump_cluster,
    dump_recipe,
    load_cluster,
    load_recipe,
    parse_set,
    recipe_of,
)
from engine.spec.presets import CLUSTERS, MODELS, model_preset
from engine.spec.problem import RecipeProblems
from tests.engine.spec.samples import BASE


@pytest.fixture
def write(tmp_path):
    def to_file(text: str, name: str = "x.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return to_file


SMALL = 'name = "x"\n[model]\npreset = "tiny"\n[batch]\nglobal_batch = 8\n'


@pytest.mark.parametrize("name", ["tiny", "small", "175b", "530b"])
def test_a_shipped_recipe_resolves_to_itself(root, write, name):
    recipe = load_recipe(root / "recipes" / f"{name}.toml")
    assert load_recipe(write(dump_recipe(recipe))) == recipe


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_resolves_to_itself(write, name):
    recipe = recipe_of(
        {"name": "x", "model": {"preset": name}, "batch": {"global_batch": 1},
         "data": {"format": "synthetic"}}, origin="here",
    )  # fmt: skip
    assert recipe.model == model_preset(name)
    assert load_recipe(write(dump_recipe(recipe))) == recipe


def test_the_papers_recipes_have_the_papers_sizes(root):
    r175 = load_recipe(root / "recipes" / "175b.toml")
    assert r175.layout.world_size == 12288 == r175.cluster.world_size
    assert r175.batch.microbatches(r175.layout) == 32
    r530 = load_recipe(root / "recipes" / "530b.toml")
    assert r530.layout.world_size == 11200 == r530.cluster.world_size
    assert r530.batch.microbatches(r530.layout) == 280


def test_precedence_is_preset_file_set(write):
    path = write(SMALL.replace('"tiny"', '"tiny"\nheads = 8'))
    assert load_recipe(path).model.heads == 8
    assert load_recipe(path, ["model.heads=2"]).model.heads == 2
    assert load_recipe(path).model.layers == 4
    bigger = load_recipe(path, ["model.preset=small"])
    assert (bigger.model.layers, bigger.model.heads) == (12, 8)


def test_a_cluster_preset_takes_overrides_at_any_depth(write):
    text = SMALL + '[cluster]\npreset = "h100-nvl8"\nnodes = 2\n[cluster.inter]\nlatency_s = 1e-3\n'
    cluster = load_recipe(write(text), ["cluster.device.memory_bytes=5"]).cluster
    assert (cluster.nodes, cluster.inter.latency_s, cluster.device.memory_bytes) == (2, 1e-3, 5)
    assert cluster.inter.bytes_per_s == CLUSTERS["h100-nvl8"].inter.bytes_per_s
    assert CLUSTERS["h100-nvl8"].inter.latency_s != 1e-3  # the preset itself is untouched


@pytest.mark.parametrize(
    ("text", "parts", "value"),
    [("layout.tp=4", ("layout", "tp"), 4), ("model.block=parallel", ("model", "block"), "parallel"),
     ('a.b="x"', ("a", "b"), "x"), ("a=[1, 2]", ("a",), [1, 2]), ("a=true", ("a",), True),
     ("a=b=c", ("a",), "b=c"), ("a=", ("a",), ""), (" a . b = 1e-3", ("a", "b"), 1e-3),
     ("a=1\nb=2", ("a",), "1\nb=2"), ("a=1f1b", ("a",), "1f1b"), ("a=/tmp/x#y",
     ("a",), "/tmp/x#y")],
)  # fmt: skip
def test_parse_set(text, parts, value):
    override = parse_set(text)
    assert (override.parts, override.value) == (parts, value)


@pytest.mark.parametrize("text", ["layout.tp", "=4", "a..b=1", ".=1", ""])
def test_parse_set_refuses(text):
    with pytest.raises(RecipeError, match="not of the form KEY=VALUE"):
        parse_set(text)


@given(st.text(max_size=60))
def test_parse_set_never_does_anything_else(text):
    with suppress(RecipeError):
        parse_set(text)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [("name=123", "name", "123"), ("train.host=10", "train", "10"), ("data.source=a/b", "data",
    ("a/b",)),
     ('data.source=["a", "b"]', "data", ("a", "b")), ("data.tokenizer=1e5", "data", "1e5"),
     ("model.window=[8, 0]", "model", (8, 0))],
)  # fmt: skip
def test_set_follows_the_type_of_its_key(write, text, key, value):
    section = getattr(load_recipe(write(SMALL), [text]), key)
    name = text.partition("=")[0].rpartition(".")[2]
    assert (section if isinstance(section, str) else getattr(section, name)) == value


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("tp=2", "did you mean layout.tp?"),
        ("layout.tpp=2", "did you mean layout.tp?"),
        ("gobal_batch=2", "did you mean batch.global_batch?"),
        ("zzz=2", "docs/reference/recipe.md"),
    ],
)
def test_set_of_a_key_that_is_not_there(write, text, remedy):
    with pytest.raises(RecipeProblems) as caught:
        load_recipe(write(SMALL), [text])
    assert caught.value.remedy.startswith(remedy) or remedy in caught.value.remedy
    assert caught.value.what.startswith("--set: ")


def test_set_below_a_value_is_reported_not_raised(write):
    with pytest.raises(RecipeProblems, match="layout = 3 is not a section"):
        load_recipe(write("layout = 3\n" + SMALL), ["layout.tp=2"])


def test_problems_name_file_line_and_set(write):
    path = write(SMALL + "[layout]\ndp = 3\n[optimizer]\nmin_lr = 1.0\n")
    with pytest.raises(RecipeProblems) as caught:
        load_recipe(path, ["layout.tp=3", "optimizer.lrr=1"])
    shown = [p.shown.partition(" ")[0] for p in caught.value.problems]
    assert shown == ["--set:", "--set:", f"{path}:5:", f"{path}:9:"]


def test_an_unknown_preset_hides_nothing_else(write):
    with pytest.raises(RecipeProblems) as caught:
        load_recipe(write(SMALL.replace("tiny", "tinny") + "[layout]\ndp = 3\n"))
    assert [p.keys[0] for p in caught.value.problems] == ["model.preset", "batch.global_batch"]
    assert caught.value.problems[0].remedy == "did you mean tiny?"


def test_recipe_of_names_its_origin():
    with pytest.raises(RecipeProblems, match=r"^manifest\.json: "):
        recipe_of({**BASE, "batch": {"global_batch": 3}}, origin="manifest.json")


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_by_name_and_by_file(write, name):
    cluster = load_cluster(name)
    assert load_cluster(write(dump_cluster(cluster))) == cluster


def test_the_shipped_cluster_files_load(root):
    files = sorted((root / "recipes" / "clusters").glob("*.toml"))
    assert len(files) >= 4
    for path in files:
        assert load_cluster(path).world_size >= 1
    for name in ("a100-nvl8", "h100-nvl8", "h200-nvl8"):
        assert load_cluster(root / "recipes" / "clusters" / f"{name}.toml") == CLUSTERS[name]


def test_a_cluster_file_may_start_from_a_preset(write):
    cluster = load_cluster(write('preset = "a100-nvl8"\nnodes = 4\n'))
    assert cluster == msgspec.structs.replace(CLUSTERS["a100-nvl8"], nodes=4)


@pytest.mark.parametrize(
    ("text", "what"),
    [('preset = "a100"\n', 'preset = "a100" is not a preset'), ("nodes = 0\n", "nodes = 0 is not"),
     ('preset = "a100-nvl8"\nseed = 1\n', "seed is not a key of a cluster file"),
     ('preset = "a100-nvl8"\n[device]\nsustained = 2\n', "device.sustained = 2 is not a share")],
)  # fmt: skip
def test_a_wrong_cluster_file(write, text, what):
    with pytest.raises(RecipeProblems) as caught:
        load_cluster(write(text))
    assert what in caught.value.what


def test_a_cluster_that_is_neither():
    with pytest.raises(RecipeError) as caught:
        load_cluster("h100-nvl9")
    assert caught.value.remedy == "did you mean h100-nvl8?"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3)
)


@given(
    st.sampled_from(["name", "seed", "model", "batch", "layout", "data", "cluster", "train"]),
    VALUES,
)
def test_any_value_anywhere_is_a_recipe_or_a_recipe_error(section, value):
    with suppress(RecipeError):
        recipe_of({**BASE, section: value}, origin="any")


@given(st.dictionaries(st.sampled_from([*MODELS["llama2-7b"], "window"]), VALUES, max_size=4))
def test_any_model_value_too(keys):
    with suppress(RecipeError):
        recipe_of({**BASE, "model": {**BASE["model"], **keys}}, origin="any")
