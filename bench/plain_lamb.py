"""LAMB written out per tensor, for whole tensors on one process: what shards must equal."""

from typing import Any

import torch


class PlainLamb(torch.optim.Optimizer):
    """Algorithm 2 of arXiv:1904.00962 in the variant of engine/optim/lamb.py.

    Groups have lr, betas, eps, weight_decay, scaled (False keeps a trust ratio of 1).
    """

    def __init__(self, groups: list[dict[str, Any]], **defaults: Any) -> None:
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["t"] += 1
                m = state["m"] = beta1 * state["m"] + (1 - beta1) * p.grad
                v = state["v"] = beta2 * state["v"] + (1 - beta2) * p.grad**2
                m_hat, v_hat = m / (1 - beta1 ** state["t"]), v / (1 - beta2 ** state["t"])
                u = m_hat / (v_hat.sqrt() + group["eps"]) + group["weight_decay"] * p
                ratio = 1.0
                if group["scaled"] and p.norm() > 0 and u.norm() > 0:
                    ratio = float(p.norm() / u.norm())
                p -= group["lr"] * ratio * u
