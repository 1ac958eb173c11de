"""What gloo's collectives cost over a limited link, and a direct exchange beside them.

    N=2 PY=python RATE=200mbit SCRIPT=$PWD/exchange.py ./overlap_netns.sh

Prints milliseconds of three tries each, 28 MiB of state on two ranks.
"""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    whole = torch.ones(28 * 2**20 // 4)
    half, out = whole[: whole.numel() // 2].clone(), torch.empty_like(whole)

    def show(name: str, call: Callable[[], object]) -> None:
        times = []
        for _ in range(3):
            dist.barrier()
            start = time.perf_counter()
            call()
            times.append(round(1e3 * (time.perf_counter() - start)))
        if rank == 0:
            print(f"{name:32} {times} ms", flush=True)

    def exchange(receive_first: bool) -> None:
        other = 1 - rank
        into = out[: half.numel()]
        works = [dist.irecv(into, other)] if receive_first else []
        works.append(dist.isend(half, other))
        if not receive_first:
            works.append(dist.irecv(into, other))
        for work in works:
            work.wait()

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    show("all_reduce 28 MiB", lambda: dist.all_reduce(whole))
    show("all_to_all 14 MiB each way", lambda: dist.all_to_all_single(out, whole))
    show("all_gather 14 MiB each way", lambda: gather(out, half))
    show("exchange, receive first", lambda: exchange(True))
    show("exchange, send first", lambda: exchange(False))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
