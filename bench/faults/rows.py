"""Measured rows: a folder's `rows.jsonl` while a bench runs, and the record that pages are made of.

A campaign takes longer than a machine is free. So each bench appends to its own folder, and
`bench.faults.report` adds what is new to `bench/faults/records`, which is kept with the source.
Every row says of which commit it is.
"""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

RECORDS = Path(__file__).parent / "records"
_ROOT = Path(__file__).resolve().parents[2]
_LONGEST = 200


def read_rows(out: Path) -> list[dict]:
    """All rows of a folder so far."""
    return _read(out / "rows.jsonl")


def append_rows(out: Path, rows: Iterable[dict]) -> None:
    """Add rows to a folder, each with the commit that it was measured on."""
    commit = commit_now()
    out.mkdir(parents=True, exist_ok=True)
    with (out / "rows.jsonl").open("a") as file:
        file.writelines(json.dumps({"commit": commit, **row}) + "\n" for row in rows)


def record(name: str, new: Iterable[dict] = (), records: Path = RECORDS) -> list[dict]:
    """The kept rows of a bench after those that are new have been added; each row once."""
    path = records / f"{name}.jsonl"
    known = _read(path)
    seen = {_line(row) for row in known}
    added = [line for line in dict.fromkeys(map(_line, new)) if line not in seen]
    if added:
        records.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(line + "\n" for line in added)
    return known + [json.loads(line) for line in added]


def known_rows(name: str, out: Path, records: Path = RECORDS) -> list[dict]:
    """The kept rows of a bench and those of a folder that are not kept yet; nothing is written."""
    rows = _read(records / f"{name}.jsonl") + read_rows(out)
    return [json.loads(line) for line in dict.fromkeys(map(_line, rows))]


def commit_now() -> str:
    """The commit of the source, with a `+` where files differ from it; `?` outside a clone."""
    head = _git("rev-parse", "--short=9", "HEAD")
    return (head + ("+" if _git("status", "--porcelain", "-uno") else "")) if head else "?"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _line(row: dict) -> str:
    """A row as it is kept: long texts cut, since they only help to read one failure."""
    return json.dumps({k: v[:_LONGEST] if isinstance(v, str) else v for k, v in row.items()})


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
