"""Does `transformers` load an export and give our logits? One line per family.

python hf_logits.py        needs transformers; compares in fp32 on random weights and tokens
"""

import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from transformers import AutoModelForCausalLM

from engine.ckpt.hf_export import export_hf
from engine.model.parameter import info_of
from engine.model.transformer import MicroBatch, whole_model
from tests.engine.ckpt.test_hf_export import IDS, SPECS, checkpoint


def our_logits(model, tokens_bs):
    """Logits [b, s, v] of our model, by its own modules."""
    micro = MicroBatch(tokens_bs.T, tokens_bs.T, torch.zeros(len(tokens_bs), dtype=torch.long), 0)
    x = model.embed(micro)
    delta = None
    for layer in model.layers.values():
        x, delta = layer(x, delta, micro)
    return torch.nn.functional.linear(model.head.norm(x, delta)[0], model.head.weight).transpose(
        0, 1
    )


def main():
    bad = 0
    for name, spec in zip(IDS, SPECS, strict=True):
        model = whole_model(spec, seed=3, dtype=torch.float32).eval()
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape) + (parameter.ndim == 1))
        with tempfile.TemporaryDirectory() as folder:
            tensors = {info_of(p).name: p.detach() for p in model.parameters()}
            export_hf(checkpoint(Path(folder) / "a", spec, tensors), Path(folder) / "hf")
            theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "hf").eval()
        tokens = torch.randint(0, spec.vocab, (3, spec.seq))
        with torch.no_grad():
            ours, other = our_logits(model, tokens), theirs(tokens).logits
        worst = float((ours - other).abs().max() / ours.abs().max())
        bad += worst > 1e-5
        print(f"{name:10s} {type(theirs).__name__:24s} largest relative difference {worst:.2e}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
