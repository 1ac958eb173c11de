"""Strategies for legal pipeline shapes."""

from hypothesis import strategies as st

from engine.spec.shape import KINDS, ROUNDS, RUNS_AHEAD, legal


@st.composite
def legal_shapes(draw) -> tuple[str, int, int, int, int, int]:
    """(kind, pp, vpp, microbatches, group, run_ahead) that can be scheduled."""
    kind = draw(st.sampled_from(KINDS))
    pp = draw(st.integers(1, 8))
    vpp = {"gpipe": 1, "1f1b": 1, "zb-v": 2}.get(kind) or draw(st.integers(1, 6))
    group = draw(st.integers(pp, 3 * pp)) if kind in ROUNDS and draw(st.booleans()) else 0
    ahead = draw(st.integers(0, 2 if vpp > 1 else 4)) if kind in RUNS_AHEAD else 0
    if group:
        return kind, pp, vpp, group * draw(st.integers(1, 3)), group, ahead
    count = st.integers(1, 24).filter(lambda m: legal(kind, pp, vpp, m) is None)
    return kind, pp, vpp, draw(count), 0, ahead
