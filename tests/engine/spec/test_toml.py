import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RecipeError
from engine.spec.toml import dump_toml, key_lines, nearest, parse_toml, read_toml, show_value

SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
TABLES = st.recursive(
    st.dictionaries(KEYS, SCALARS | st.lists(SCALARS, max_size=3), max_size=4),
    lambda inner: st.dictionaries(KEYS, SCALARS | inner, max_size=3),
    max_leaves=8,
)


@given(TABLES)
def test_what_is_written_reads_back(table):
    assert parse_toml(dump_toml(table), "x") == table


def test_none_is_left_out():
    assert dump_toml({"a": None, "b": 1}) == "b = 1\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (2e12, "2e12"), (1.0, "1.0"), (0.1, "0.1"), (3e-4, "0.0003"), (1e-5, "1e-05"),
     (1 / 3, repr(1 / 3)), (math.inf, "inf"), ("a\n\x7f", '"a\\n\\u007f"'),
     ({"a b": 1}, '{ "a b" = 1 }'), ([1, 2], "[1, 2]")],
)  # fmt: skip
def test_values(value, text):
    assert show_value(value) == text


def test_keys_have_lines():
    text = 'name = "x"\n\n[model]\nlayers = 2 # [no]\n"odd" = 1\n[a.b]\nc.d = 1\n[[list]]\nx = 1\n'
    assert key_lines(text) == {
        "name": 1, "model": 3, "model.layers": 4, "model.odd": 5, "a.b": 6, "a.b.c.d": 7,
         "a.b.x": 9,
    }  # fmt: skip


def test_where_falls_back_to_the_section_and_the_file(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("[model]\nlayers = 2\n")
    document = read_toml(path)
    assert document.where("model.layers") == f"{path}:2"
    assert document.where("model.heads") == f"{path}:1"
    assert document.where("batch.micro_batch") == str(path)


@pytest.mark.parametrize(
    ("raw", "what"),
    [(b"a = 1\r\n[b]\r\nc = 2\r\n", None), (b"\xef\xbb\xbfa = 1\n", None), (b"", None),
     (b"a = x\n", ":1: not TOML: Invalid value at column 5"),
     (b"a = 1\nb = \n", ":2: not TOML: Invalid value at column 5"),
     (b"a = 1\na = 2\n", ": not TOML: Cannot overwrite a value"),
     (b"a = \xff\n", ":1: not UTF-8 text (byte 0xff)"), ("a = 1".encode("utf-16"), ":1: not UTF-8"),
     (b"a=" + b"[" * 100_000, ": not TOML: brackets are nested too deeply"),
     (b"a=" + b"9" * 10_000, ": not TOML: a number has thousands of digits"),
     (b"#" * (1 << 20) + b"\n", "larger than 1048576 bytes"), (b"a = 1\0", ":1: not TOML")],
)  # fmt: skip
def test_hostile_files(tmp_path, raw, what):
    path = tmp_path / "x.toml"
    path.write_bytes(raw)
    if what is None:
        read_toml(path)
        return
    with pytest.raises(RecipeError) as caught:
        read_toml(path)
    assert what in caught.value.what
    assert caught.value.what.startswith(str(path))


@given(st.binary(max_size=200))
def test_any_bytes_give_values_or_an_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("any") / "x.toml"
    path.write_bytes(raw)
    with suppress(RecipeError):
        read_toml(path)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("tinny.toml", "did you mean {}/tiny.toml?"), ("tiny", "did you mean {}/tiny.toml?"),
     ("175b", "did you mean {}/recipes/175b.toml?"), ("unlike", "name an existing TOML file"),
     ("no/where.toml", "name an existing TOML file"), (".", "name the TOML file itself"),
     ("tiny.toml/x", "name the TOML file itself"), ("a\0b", "check the name")],
)  # fmt: skip
def test_a_name_that_is_no_file(tmp_path, name, remedy):
    (tmp_path / "tiny.toml").touch()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "175b.toml").touch()
    with pytest.raises(RecipeError) as caught:
        read_toml(tmp_path / name)
    assert remedy.format(tmp_path) in caught.value.remedy


def test_nearest():
    assert nearest("hiden", ["hidden", "heads"]) == "hidden"
    assert nearest("zzz", ["hidden", "heads"]) is None
