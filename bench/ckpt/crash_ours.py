"""The two programs that crash_sweep.py needs to stop our own saves at every system call.

    python crash_sweep.py --cmd "python crash_ours.py save {dir}" \
        --check "python crash_ours.py check {dir} {said}" --fault kill
    python crash_sweep.py --cmd "python crash_ours.py flush {dir}" ...   the flusher's calls

`save` writes steps 1 and 2 in step with training; `flush` snapshots step 2 and runs the flusher in
one process. Both print a step once it is reported as committed. `check` uses the store alone.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.ckpt.flush import Flusher, FlushOptions
from engine.ckpt.manifest import CheckpointMeta
from engine.ckpt.save import save_checkpoint
from engine.ckpt.two_stage import TwoStage
from tests.engine.ckpt.faulty import judge
from tests.engine.ckpt.state import dense, pieces_of


def state(step):
    return pieces_of(0, 1, 1, torch.float32, dense(torch.float32, step))


def save(folder, step):
    save_checkpoint(
        folder, state(step), meta=CheckpointMeta(step=step), rank=0, world=1,
        gather=lambda item: [item], barrier=lambda: None,
    )  # fmt: skip
    print(step, flush=True)


def flush(folder):
    """Two stages in one process, so that the fault hits either of them."""
    TwoStage._ensure_flusher = lambda self: None
    two = TwoStage(
        folder / "ckpt", state(2), rank=0, world=1, gather=lambda item: [item],
        spool=folder / "spool",
    )  # fmt: skip
    two.save(state(2), CheckpointMeta(step=2))
    flusher = Flusher(two.spool, FlushOptions(retry_first_s=0.01))
    while two.spool.pending() or two.spool.jobs():
        flusher.round(map)
    print(2, flush=True)


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "check":
        reported = {int(line) for line in Path(sys.argv[3]).read_text().split()}
        judge(folder / "ckpt", reported, dp=1)
        save(folder / "ckpt", 9)
        judge(folder / "ckpt", reported | {9}, dp=1)
        return
    save(folder / "ckpt", 1)
    if what == "save":
        save(folder / "ckpt", 2)
    else:
        flush(folder)


if __name__ == "__main__":
    main()
