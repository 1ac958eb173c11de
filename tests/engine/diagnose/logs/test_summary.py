"""torchrun's table: whose exit code a line is, who failed first, and what that decides."""

import gzip

from engine.diagnose.foreign import Inputs, diagnose_foreign
from engine.diagnose.logs.scan import Scanner
from engine.diagnose.logs.summary import Failed, entry_above, first_failed

ROOT = "Root Cause (first observed failure):\n"
RULER = "-" * 60 + "\n"


def entry(number, rank, code, why="To enable traceback see: https://pytorch.org/docs"):
    return (
        f"[{number}]:\n  time      : 2024-12-31_16:45:52\n  host      : server\n"
        f"  rank      : {rank} (local_rank: {rank % 8})\n  exitcode  : {code} (pid: 4673{rank})\n"
        f"  error_file: <N/A>\n  traceback : {why}\n"
    )


def table(others, root):
    return "Failures:\n" + "".join(others) + RULER + ROOT + root + "=" * 60 + "\n"


def verdict(tmp_path, text):
    log = tmp_path / "job.log"
    log.write_text(text)
    return diagnose_foreign(Inputs(logs=log)).verdict


def killed(number, rank):
    return entry(number, rank, -9, f"Signal 9 (SIGKILL) received by PID 4673{rank}")


def test_of_many_killed_the_first_one_is_the_culprit(tmp_path):
    found = verdict(tmp_path, table([killed(1, 3), killed(2, 5)], killed(0, 12)))
    assert (found.category, found.ranks, found.line) == ("host_oom", (12,), 22)


def test_an_entry_without_a_root_cause_is_its_ranks_too(tmp_path):
    found = verdict(tmp_path, "Failures:\n" + killed(1, 3) + killed(2, 5))
    assert (found.category, found.ranks) == ("host_oom", (3, 5))


def test_a_worker_that_ended_without_a_word_is_named(tmp_path):
    found = verdict(tmp_path, table([entry(1, 7, 1)], entry(0, 6, 1)))
    assert (found.category, found.ranks, found.line) == ("code_error", (6,), 15)


def test_after_a_time_out_an_exit_code_says_nothing(tmp_path):
    wait = "[rank6]:[E1] [Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9\n"
    found = verdict(tmp_path, wait + table([entry(1, 7, 1)], entry(0, 6, 1)))
    assert (found.category, found.line) == ("unknown_hang", 1)
    ended = verdict(tmp_path, table([entry(1, 7, -6)], entry(0, 6, -6)))
    assert ended.category != "code_error"  # an abort is the end of a hang as well


def test_an_error_without_a_rank_is_of_the_worker_that_failed_first(tmp_path):
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    found = verdict(tmp_path, oom + table([entry(1, 7, 1)], entry(0, 2, 1)))
    assert (found.category, found.ranks, found.line) == ("cuda_oom", (2,), 1)
    agent = "E0909 api.py:833] failed (exitcode: 1) local_rank: 5 (pid: 9031) of binary: python\n"
    assert verdict(tmp_path, oom + agent).ranks == (5,)
    assert verdict(tmp_path, f"[rank4]: {oom}{agent}").ranks == (4,)
    port = "RuntimeError: The server socket has failed to bind to [::]:29500 (EADDRINUSE)\n"
    assert verdict(tmp_path, port + agent).ranks == ()


def test_lines_around_an_offset(tmp_path):
    text = "x\n" + table([entry(1, 7, -11)], entry(0, 6, -11))
    log = tmp_path / "job.log"
    log.write_text(text)
    scan = Scanner().scan(log)
    at = text.index("exitcode")
    assert entry_above(scan, at) == (7, False)
    assert entry_above(scan, text.rindex("exitcode")) == (6, True)
    assert entry_above(scan, 1) is None
    line = text[: text.index(ROOT)].count("\n") + 1
    failed = first_failed(scan, text.index(ROOT), line, ROOT)
    assert failed == Failed(6, -11, line + 5, "  exitcode  : -11 (pid: 46736)", root=True)
    assert first_failed(scan, 0, 1, "something else") is None
    assert first_failed(scan, len(text), 1, ROOT) is None


def test_what_cannot_be_read_again_tells_nothing(tmp_path):
    log = tmp_path / "job.log.gz"
    text = table([], entry(0, 6, -11))
    log.write_bytes(gzip.compress(text.encode()))
    scan = Scanner().scan(log)
    assert entry_above(scan, 40) is None
    gone = scan._replace(path=tmp_path / "gone.log")
    assert first_failed(gone, 0, 1, ROOT) is None
