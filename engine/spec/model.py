"""The shape of a transformer, and what follows from it: parameters and FLOPs.

One description covers GPT (LayerNorm, GeLU, learned or rotary positions) and Llama (RMSNorm,
SwiGLU, grouped-query attention, untied head). FLOP formulas: docs/explanation/paper-notes.md,
paper 6.1.
"""

from typing import Annotated, Literal

import msgspec

from engine.spec.base import Count, NonNegative, Noun, Positive, Ratio, Size, doc

AttentionCount = Literal["full", "window", "none"]
"""How MFU credits attention: s*s scores, window*s scores, or not at all (6N counting)."""


class ModelSpec(Noun, frozen=True, kw_only=True):
    """The shape of the transformer; fields that are 0 are derived when the object is made."""

    layers: Annotated[Count, doc("transformer blocks")]
    hidden: Annotated[Count, doc("width of the residual stream")]
    heads: Annotated[Count, doc("query heads")]
    vocab: Annotated[Count, doc("rows of the embedding, at least the tokeniser's size")]
    seq: Annotated[Count, doc("tokens of a training sequence")]
    kv_heads: Annotated[Size, doc("key/value heads; 0 = heads (no grouping)")] = 0
    head_dim: Annotated[Size, doc("width of one head; 0 = hidden / heads")] = 0
    ffn: Annotated[Size, doc("width of the MLP; 0 = 4 hidden (gelu) or 8/3 hidden (swiglu)")] = 0
    block: Annotated[
        Literal["serial", "parallel"], doc("parallel: attention and MLP read one norm (paper 3.1)")
    ] = "serial"
    norm: Annotated[Literal["layernorm", "rmsnorm"], doc("normalisation")] = "layernorm"
    activation: Annotated[Literal["gelu", "swiglu"], doc("MLP non-linearity")] = "gelu"
    position: Annotated[Literal["learned", "rotary", "none"], doc("position encoding")] = "learned"
    window: Annotated[
        int | tuple[int, ...],
        doc("tokens a query sees, itself included; 0 = full; a list is repeated over the layers"),
    ] = 0
    bias: Annotated[bool, doc("biases in linear layers and LayerNorm")] = True
    tied: Annotated[bool, doc("output head shares the embedding's weight")] = True
    dropout: Annotated[Ratio, doc("after embedding, attention and MLP")] = 0.0
    rope_theta: Annotated[Positive, doc("base of the rotary frequencies")] = 10000.0
    norm_eps: Annotated[Positive, doc("added to the variance")] = 1e-5
    init_std: Annotated[NonNegative, doc("standard deviation of initial weights")] = 0.02

    def __post_init__(self) -> None:
        """Fill in derived sizes so that every reader sees numbers."""
        derive = msgspec.structs.force_setattr
        if self.kv_heads == 0:
            derive(self, "kv_heads", self.heads)
        if self.head_dim == 0:
            derive(self, "head_dim", max(1, self.hidden // self.heads))
        if self.ffn == 0:
            wide = 4 * self.hidden
            if self.activation == "swiglu":
                wide = (8 * self.hidden // 3 + 63) // 64 * 64
            derive(self, "ffn", wide)

    def window_of(self, layer: int) -> int:
        """Tokens a query of this layer sees; 0 = all before it."""
        if isinstance(self.window, int):
            return self.window
        return self.window[layer % len(self.window)] if self.window else 0

    @property
    def q_size(self) -> int:
        """Output features of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Output features of the key (or value) projection."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matmul_params(self) -> int:
        """Weights of one block that take part in a GEMM."""
        mlp = (3 if self.activation == "swiglu" else 2) * self.hidden * self.ffn
        return self.hidden * (2 * self.q_size + 2 * self.kv_size) + mlp

    @property
    def layer_params(self) -> int:
        """All parameters of one block."""
        norms = 1 if self.block == "parallel" else 2
        extra = norms * self.hidden * (2 if self.norm == "layernorm" and self.bias else 1)
        if self.bias:
            up = self.ffn * (2 if self.activation == "swiglu" else 1)
            extra += self.q_size + 2 * self.kv_size + self.hidden + up + self.hidden
        return self.layer_matmul_params + extra

    @property
    def embedding_params(self) -> int:
        """Parameters before the first block: token and learned position embeddings."""
        positions = self.seq * self.hidden if self.position == "learned" else 0
        return self.vocab * self.hidden + positions

    @property
    def head_params(self) -> int:
        """Parameters after the last block: final norm and, if untied, the output matrix."""
        norm = self.hidden * (2 if self.norm == "layernorm" and self.bias else 1)
        return norm + (0 if self.tied else self.vocab * self.hidden)

    @property
    def params(self) -> int:
        """All parameters, a tied matrix counted once."""
        return self.embedding_params + self.layers * self.layer_params + self.head_params

    def attention_span(self, count: AttentionCount) -> float:
        """Mean number of keys a query is credited with, over all layers (non-causal counting)."""
        if count == "none":
            return 0.0
        if count == "full":
            return float(self.seq)
        windows = [self.window_of(i) or self.seq for i in range(self.layers)]
        return sum(min(w, self.seq) for w in windows) / self.layers

    def flops_per_token(self, attention: AttentionCount = "full") -> float:
        """Model FLOPs of forward and backward for one token, without recomputation.

        With `full` this is 72 l h^2 (1 + s/6h + V/12lh) for GPT shapes, the count that reproduces
        the baseline column of the paper's Table 2; `window` credits sliding windows at their cost.
        """
        scores = 2 * 2 * self.q_size * self.attention_span(attention)
        per_layer = 2 * self.layer_matmul_params + scores
        return 3.0 * (self.layers * per_layer + 2 * self.vocab * self.hidden)
