"""Messages of many components in the wild; lines of healthy jobs that only sound like trouble."""

from pathlib import Path
from typing import NamedTuple

import pytest

from engine.diagnose.categories import CATEGORIES
from engine.diagnose.foreign import Inputs, diagnose_foreign
from engine.diagnose.logs.rules import match
from engine.diagnose.logs.scan import Scanner

HERE = Path(__file__).parent


class Block(NamedTuple):
    right: tuple[str, ...]
    where: str
    text: str


def blocks() -> list[Block]:
    """The blocks of wild.txt; the first category is the best answer."""
    found: list[Block] = []
    for part in (HERE / "wild.txt").read_text().split("\n@ ")[1:]:
        head, _, text = part.partition("\n")
        categories, _, where = head.partition("|")
        found.append(Block(tuple(categories.split()), where.strip(), text.strip("\n") + "\n"))
    return found


BLOCKS = blocks()


@pytest.mark.parametrize("category", sorted({b.right[0] for b in BLOCKS}))
def test_messages_in_the_wild(category, tmp_path):
    assert category in CATEGORIES
    wrong = []
    for block in BLOCKS:
        if block.right[0] != category:
            continue
        log = tmp_path / "job.log"
        log.write_text(block.text)
        found = diagnose_foreign(Inputs(logs=log)).verdict.category
        if found not in block.right:
            wrong.append((found, block.where, block.text[:100]))
    assert wrong == []


def test_every_category_of_logs_has_messages():
    seen = {b.right[0] for b in BLOCKS}
    not_in_logs = {"traffic", "perf_drift", "crash", "unreadable"}
    assert set(CATEGORIES) - seen - not_in_logs == set()


@pytest.mark.parametrize("line", (HERE / "healthy.txt").read_text().splitlines())
def test_a_warning_of_a_job_that_goes_on_is_no_verdict(line, tmp_path):
    steps = "".join(
        f" iteration {n}/ 5000 | elapsed time per iteration (ms): 1020.{n} | lm loss: 2.{n}\n"
        for n in range(20)
    )
    (tmp_path / "job.log").write_text(steps + line + "\n" + steps)
    assert diagnose_foreign(Inputs(logs=tmp_path / "job.log")).verdict.state == "healthy"


def test_a_full_device_under_shared_memory_is_its_limit(tmp_path):
    log = tmp_path / "rank_3.log"
    frame = '  File "/usr/lib/python3.11/multiprocessing/shared_memory.py", line 104, in __init__\n'
    error = "OSError: [Errno 28] No space left on device\n"
    log.write_text(frame + error)
    assert diagnose_foreign(Inputs(logs=log)).verdict.category == "shm_limit"
    log.write_text(error)
    assert diagnose_foreign(Inputs(logs=log)).verdict.category == "disk_full"


def test_the_first_cut_keeps_what_the_table_knows():
    scanner = Scanner()
    lines = [line for block in BLOCKS for line in block.text.splitlines() if match(line)]
    lost = [line for line in lines if not scanner.keeps(line)]
    assert len(lines) > 250
    assert lost == []
