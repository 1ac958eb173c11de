"""Small sources for the tests of the data room."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import zstandard

from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, DataSpec, Recipe, TrainSpec


def spec(*sources: object, **keys: object) -> DataSpec:
    """A data section over some sources, holding nothing out unless told to."""
    return DataSpec(source=tuple(str(s) for s in sources), **({"validation": 0.0} | keys))


def write_jsonl(path: Path, texts: Sequence[str], key: str = "text") -> Path:
    """One object a line, compressed as the name says."""
    data = "".join(json.dumps({"id": i, key: t}) + "\n" for i, t in enumerate(texts)).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


def write_parquet(path: Path, texts: Sequence[str | None], column: str = "text") -> Path:
    """A file with a number and a text in every row."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f'CREATE TABLE t (id INTEGER, "{column}" VARCHAR)')
        rows = "SELECT unnest(range(?)), unnest(?::VARCHAR[])"
        connection.execute(f"INSERT INTO t {rows}", [len(texts), list(texts)])
        connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    return path


def recipe(
    data: DataSpec, *, seq: int = 8, global_batch: int = 4, dp: int = 2, eval_batches: int = 4
) -> Recipe:
    """A recipe of a small model over some data, micro-batches of one."""
    return Recipe(
        name="t",
        model=ModelSpec(layers=1, hidden=8, heads=1, vocab=256, seq=seq),
        batch=BatchSpec(global_batch=global_batch),
        layout=ParallelLayout(dp=dp),
        data=data,
        train=TrainSpec(eval_batches=eval_batches),
    )
