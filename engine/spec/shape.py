"""Which pipeline shapes can be scheduled: a rule on the recipe, used again by the builders above.

Kinds: gpipe and 1f1b hold one chunk per stage; interleaved holds `vpp` and needs equal rounds.
"""

KINDS = ("gpipe", "1f1b", "interleaved")


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
    if kind != "interleaved" and vpp > 1:
        return f"schedule {kind} holds one chunk per stage, but layout.vpp = {vpp}"
    if kind == "interleaved" and microbatches % max(1, microbatches // pp):
        return f"{microbatches} micro-batches do not fall into equal rounds of at least pp = {pp}"
    return None
