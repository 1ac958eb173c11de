"""Which pipeline shapes can be scheduled: a rule on the recipe, used again by the builders above.

Kinds: gpipe and 1f1b hold one chunk per stage; interleaved and zero-bubble hold `vpp` and need
equal rounds; breadth-first holds any number; zb-v holds two.
"""

ROUNDS = ("interleaved", "zero-bubble")
RUNS_AHEAD = ("1f1b", *ROUNDS)
KINDS = ("gpipe", "1f1b", "interleaved", "breadth-first", "zero-bubble", "zb-v")


def resolve_kind(kind: str, vpp: int) -> str:
    """`auto` as the kind that a layout asks for."""
    if kind != "auto":
        return kind
    return "interleaved" if vpp > 1 else "1f1b"


def round_size(pp: int, microbatches: int, group: int = 0) -> int:
    """Micro-batches that go through a chunk in a row: `group`, or the fewest of at least pp."""
    return group or microbatches // max(1, microbatches // pp)


def legal(
    kind: str, pp: int, vpp: int, microbatches: int, group: int = 0, run_ahead: int = 0
) -> str | None:
    """Why a shape cannot be scheduled, or None if it can; group as in `round_size`."""
    if min(pp, vpp, microbatches) < 1:
        return "pp, vpp and the number of micro-batches must be at least 1"
    if kind not in KINDS:
        return f"there is no schedule {kind!r}; there are {', '.join(KINDS)}"
    if kind in ("gpipe", "1f1b") and vpp > 1:
        return f"schedule {kind} holds one chunk per stage, but layout.vpp = {vpp}"
    if kind == "zb-v" and vpp != 2:
        return f"schedule zb-v holds two chunks per stage, but layout.vpp = {vpp}"
    if run_ahead and kind not in RUNS_AHEAD:
        return f"the order of {kind} is fixed, but schedule.run_ahead = {run_ahead}"
    if run_ahead > 2 and vpp > 1:
        return f"with schedule.run_ahead = {run_ahead} > 2 chunks of a stage wait for each other"
    if kind not in ROUNDS:
        return f"schedule {kind} has no rounds, but schedule.group = {group}" if group else None
    if group and group < min(pp, microbatches):
        return f"rounds of schedule.group = {group} micro-batches cannot fill pp = {pp} stages"
    if group and microbatches % group:
        return f"{microbatches} micro-batches do not fall into rounds of schedule.group = {group}"
    if not group and microbatches % max(1, microbatches // pp):
        return f"{microbatches} micro-batches do not fall into equal rounds of at least pp = {pp}"
    return None


MOST_PIECES = 16
"""Of a tensor-parallel GEMM that is cut by itself; each costs the latency of a transfer."""


def cuts(tokens: int) -> tuple[int, ...]:
    """Numbers of equal pieces, 2 to MOST_PIECES, that a rank's tokens fall into."""
    return tuple(k for k in range(2, MOST_PIECES + 1) if tokens % k == 0)
