"""Strategies for legal pipeline shapes."""

from hypothesis import strategies as st

from engine.spec.shape import KINDS, legal


@st.composite
def legal_shapes(draw) -> tuple[str, int, int, int]:
    """(kind, pp, vpp, microbatches) that can be scheduled."""
    kind = draw(st.sampled_from(KINDS))
    pp = draw(st.integers(1, 6))
    vpp = draw(st.integers(1, 4)) if kind == "interleaved" else 1
    microbatches = draw(st.integers(1, 20).filter(lambda m: legal(kind, pp, vpp, m) is None))
    return kind, pp, vpp, microbatches
