"""A training script as people write it for torchrun: DDP over gloo, a checkpoint every 5 steps.

    torchrun --nproc-per-node 4 bench/faults/ddp.py FOLDER

The model has the sizes of the recipe that `msctl train` gets beside it. Every step rank 0 appends a
line `time step restart`; every rank leaves its process id, so that a fault can be sent to it.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

LAYERS, HIDDEN, HEADS, VOCAB, SEQ, BATCH, EVERY = 4, 64, 4, 64, 32, 4, 5
GROUP_S = float(os.environ.get("GROUP_S", "10"))
"""Time-out of the process group; torch's own default is half an hour, which nobody waits for."""


class Model(nn.Module):
    """A small decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        layer = nn.TransformerEncoderLayer(
            HIDDEN, HEADS, 4 * HIDDEN, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, VOCAB)

    def forward(self, words: Tensor) -> Tensor:
        """Logits [batch, seq, vocab]."""
        seq = words.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(seq)
        x = self.words(words) + self.places(torch.arange(seq))
        logits: Tensor = self.head(self.layers(x, mask=mask, is_causal=True))
        return logits


def main() -> None:
    """Train until killed."""
    folder = Path(sys.argv[1])
    rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    (folder / f"pid-{rank}").write_text(f"{os.getpid()}\n")
    dist.init_process_group("gloo", timeout=timedelta(seconds=GROUP_S))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    newest = folder / "newest.pt"
    done = 0
    if newest.exists():
        state = torch.load(newest, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    with (folder / "steps.log").open("a", buffering=1) as log:
        for step in range(done + 1, 1_000_000):
            torch.manual_seed(step * 1000 + rank)
            words = torch.randint(0, VOCAB, (BATCH, SEQ + 1))
            logits = model(words[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), words[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                if step % EVERY == 0:
                    state = {"model": model.module.state_dict(), "step": step,
                             "optimizer": optimizer.state_dict()}  # fmt: skip
                    torch.save(state, folder / "fresh.pt")
                    os.replace(folder / "fresh.pt", newest)
                log.write(f"{time.time():.3f} {step} {restart}-{os.getpid()}\n")


if __name__ == "__main__":
    main()
