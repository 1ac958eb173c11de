"""Data is made ready, or refused, before any rank is started."""

from pathlib import Path

import pytest

from engine.errors import RecipeError
from engine.job.data import prepare_data
from tests.engine.train.single import recipe


def test_synthetic_data_needs_no_preparation():
    assert "samples of 8 tokens to train on" in prepare_data(recipe())


def test_text_is_tokenised_once_and_counted(tmp_path: Path):
    text = tmp_path / "text"
    text.mkdir()
    for i in range(40):
        (text / f"{i}.txt").write_text(f"document {i}: " + "abc " * 50)
    data = {"format": "auto", "source": (str(text),), "cache": str(tmp_path / "cache"),
            "validation": 0.2}  # fmt: skip
    made = recipe(data=data, model={"vocab": 257})
    said = prepare_data(made)
    assert "to train on" in said
    assert "held out" in said
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "cache").rglob("*.*"))
    assert prepare_data(made) == said
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "cache").rglob("*.*")) == before


def test_a_source_that_is_not_there_is_refused(tmp_path: Path):
    data = {"format": "auto", "source": (str(tmp_path / "nowhere"),), "cache": str(tmp_path)}
    with pytest.raises(RecipeError, match="nowhere"):
        prepare_data(recipe(data=data, model={"vocab": 257}))
