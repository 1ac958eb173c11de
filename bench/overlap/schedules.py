"""What each pipeline schedule makes of a slow link, by the simulator.

    python -m bench.overlap.schedules --pp 2 --microbatches 16 --forward 28 --message 21

Durations in any one unit: a stage's forward of a micro-batch (its backward takes twice as long) and
a message on the wire. Messages of a stage share one link. Prints the step, the share of it beyond
pure computing, and the most activations (in chunks of a micro-batch, over chunks per stage) that
the first stage holds.
"""

import argparse
from typing import NamedTuple

from engine.schedule.action import Action, Kind
from engine.schedule.build import build
from engine.schedule.comm import add_comm
from engine.schedule.simulate import LANES, simulate
from engine.schedule.verify import peak_activations
from engine.spec.shape import legal

ONE_LINK = dict.fromkeys(LANES, "link")


class Row(NamedTuple):
    """A schedule and what came of it."""

    name: str
    step: float
    overhead: float
    held: float


def rows(pp: int, microbatches: int, forward: float, message: float) -> list[Row]:
    """All schedules that are legal for the shape."""
    group = min(2 * pp, microbatches)
    wanted = [
        ("gpipe", "gpipe", 1, 0, 0), ("1f1b", "1f1b", 1, 0, 0),
        ("1f1b, run_ahead 2", "1f1b", 1, 0, 2),
        ("interleaved, vpp 2", "interleaved", 2, 0, 0),
        (f"interleaved, vpp 2, group {group}", "interleaved", 2, group, 0),
        ("breadth-first, vpp 2", "breadth-first", 2, 0, 0),
        ("zero-bubble", "zero-bubble", 1, 0, 0),
        ("zero-bubble, run_ahead 2", "zero-bubble", 1, 0, 2),
        ("zb-v", "zb-v", 2, 0, 0),
    ]  # fmt: skip
    found = []
    for name, kind, vpp, in_group, ahead in wanted:
        if legal(kind, pp, vpp, microbatches, in_group, ahead):
            continue
        compute = build(kind, pp, vpp, microbatches, in_group, ahead)
        program = add_comm(compute, dp=False, ahead=4)
        times = {
            Kind.FORWARD: forward / vpp, Kind.BACKWARD: 2 * forward / vpp,
            Kind.BACKWARD_INPUT: forward / vpp, Kind.BACKWARD_WEIGHT: forward / vpp,
            Kind.SEND_F: message, Kind.SEND_B: message,
        }  # fmt: skip

        def duration(action: Action, times: dict[Kind, float] = times) -> float:
            return times[action.kind]

        step = simulate(program, duration, lanes=ONE_LINK).makespan_s
        work = 3 * forward * microbatches
        found.append(Row(name, step, step / work - 1, peak_activations(compute, 0) / vpp))
    return found


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--pp", type=int, default=2)
    ap.add_argument("--microbatches", type=int, default=16)
    ap.add_argument("--forward", type=float, default=28.0)
    ap.add_argument("--message", type=float, default=21.0)
    a = ap.parse_args()
    print("| schedule | step | beyond computing | micro-batches held by stage 0 |")
    print("| --- | --- | --- | --- |")
    for row in rows(a.pp, a.microbatches, a.forward, a.message):
        print(f"| {row.name} | {row.step:.0f} | {100 * row.overhead:.0f} % | {row.held:g} |")


if __name__ == "__main__":
    main()
