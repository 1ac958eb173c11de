"""Which pipeline shapes can be scheduled: a rule on the recipe, used again by the builders above.

Kinds: gpipe and 1f1b hold one chunk per stage; interleaved and zero-bubble hold `vpp` and need
equal rounds; breadth-first holds any number; zb-v holds two.
"""

KINDS = ("gpipe", "1f1b", "interleaved", "breadth-first", "zero-bubble", "zb-v")


def resolve_kind(kind: str, vpp: int) -> str:
    """`auto` as the kind that a layout asks for."""
    if kind != "auto":
        return kind
    return "interleaved" if vpp > 1 else "1f1b"


def legal(kind: str, pp: int, vpp: int, microbatches: int) -> str | None:
    """Why a shape cannot be scheduled, or None if it can."""
    if min(pp, vpp, microbatches) < 1:
        return "pp, vpp and the number of micro-batches must be at least 1"
    if kind not in KINDS:
        return f"there is no schedule {kind!r}; there are {', '.join(KINDS)}"
    if kind in ("gpipe", "1f1b") and vpp > 1:
        return f"schedule {kind} holds one chunk per stage, but layout.vpp = {vpp}"
    if kind == "zb-v" and vpp != 2:
        return f"schedule zb-v holds two chunks per stage, but layout.vpp = {vpp}"
    if kind in ("interleaved", "zero-bubble") and microbatches % max(1, microbatches // pp):
        return f"{microbatches} micro-batches do not fall into equal rounds of at least pp = {pp}"
    return None
