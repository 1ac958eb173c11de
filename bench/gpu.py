"""One device: this engine beside plain torch, eager and compiled, in one run; what events cost.

    python -m bench.gpu [--size 1.3b] [--steps 10] [--rounds 3]
    python -m bench.gpu --dry-run       the same on a CPU with a tiny model: does the script run?

The same GPT (tied embedding, learned positions, GELU, AdamW) in bf16 with fp32 weights. `plain` is
a loop as a person writes it: autocast, torch's attention, fused AdamW; `compiled` is that through
torch.compile. `msctl` is the engine's own step, without and with its event file. Ways take turns,
each built anew in every round, so that the largest sizes fit. Prints step, tokens/s and MFU,
medians over rounds, and each way's ratio to `plain` in the same round; exit 1 if the engine is not
at least as fast as both on a GPU.
"""

import argparse
import gc
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.comm.mesh import build_mesh
from engine.comm.world import Rendezvous, end_world, start_world
from engine.device import Device, open_device
from engine.events.writer import EventWriter
from engine.model.transformer import MicroBatch
from engine.spec.layout import ParallelLayout
from engine.spec.model import ModelSpec
from engine.spec.recipe import BatchSpec, OptimSpec, Recipe, TrainSpec
from engine.train.build import build_engine
from engine.train.trainer import Trainer

SIZES = {
    "tiny": (ModelSpec(layers=2, hidden=64, heads=4, vocab=256, seq=64), 2),
    "1.3b": (ModelSpec(layers=24, hidden=2048, heads=16, vocab=50304, seq=2048), 4),
    "2.7b": (ModelSpec(layers=32, hidden=2560, heads=32, vocab=50304, seq=2048), 4),
    "6.7b": (ModelSpec(layers=32, hidden=4096, heads=32, vocab=50304, seq=2048), 2),
}
"""Model and sequences of a step."""
WARMUP = 3
Step = Callable[[int], None]


class PlainBlock(nn.Module):
    """A layer in torch's own operators."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        h, self.heads = spec.hidden, spec.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.proj = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, spec.ffn), nn.Linear(spec.ffn, h)

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class PlainGpt(nn.Module):
    """The whole model; its output is the loss."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab, spec.hidden)
        self.places = nn.Embedding(spec.seq, spec.hidden)
        self.layers = nn.ModuleList(PlainBlock(spec) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.hidden)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def samples(spec: ModelSpec, count: int, step: int) -> Tensor:
    """Tokens [count, seq + 1], the same for every way."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(spec.vocab, (count, spec.seq + 1), generator=generator)


@contextmanager
def plain(spec: ModelSpec, count: int, device: Device, *, compiled: bool) -> Iterator[Step]:
    """A step of the plain loop."""
    where = device.torch_device
    model: nn.Module = PlainGpt(spec).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if compiled else model
    on_gpu = where.type == "cuda"

    def step(number: int) -> None:
        batch = samples(spec, count, number).to(where)
        with torch.autocast(where.type, torch.bfloat16, enabled=on_gpu):
            loss = run(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    yield step


@contextmanager
def engine(spec: ModelSpec, count: int, device: Device, *, events: bool) -> Iterator[Step]:
    """A step of this engine, alone in its world."""
    on_gpu = device.torch_device.type == "cuda"
    recipe = Recipe(
        name="gpu", model=spec, batch=BatchSpec(global_batch=count, micro_batch=count),
        layout=ParallelLayout(), optimizer=OptimSpec(lr=1e-4, min_lr=1e-4, decay="constant"),
        train=TrainSpec(steps=1, deterministic=False, precision="bf16" if on_gpu else "fp32",
                        device="cuda" if on_gpu else "cpu"),
    )  # fmt: skip
    mesh = build_mesh(recipe.layout, 0, backend=device.backend, timeout_s=120)
    with tempfile.TemporaryDirectory() as folder:
        writer = EventWriter(Path(folder) / "rank-00000.jsonl" if events else None, 0)
        trainer = Trainer(recipe, build_engine(recipe, mesh, device, writer), writer)

        def batches(number: int) -> list[MicroBatch]:
            x = samples(spec, count, number).to(device.torch_device)
            tokens, targets = x[:, :-1].t().contiguous(), x[:, 1:].t().contiguous()
            return [MicroBatch(tokens, targets, torch.arange(count), number)]

        def step(number: int) -> None:
            trainer.step(number, batches)

        yield step
        writer.close(ended=True)


def step_s(step: Step, device: Device, steps: int) -> float:
    """Median seconds of a step, after some to warm up."""
    times = []
    for number in range(WARMUP + steps):
        device.synchronize()
        begin = time.perf_counter()
        step(number)
        device.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARMUP:])


def main() -> int:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--size", choices=sorted(SIZES), default="1.3b")
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--dry-run", action="store_true")
    a = ap.parse_args()
    device = open_device("cpu" if a.dry_run else "cuda", 0)
    spec, count = SIZES["tiny" if a.dry_run else a.size]
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    start_world(0, 1, Rendezvous("127.0.0.1", port), backend=device.backend, timeout_s=120)
    ways = {
        "plain": lambda: plain(spec, count, device, compiled=False),
        "compiled": lambda: plain(spec, count, device, compiled=True),
        "msctl": lambda: engine(spec, count, device, events=False),
        "msctl, events": lambda: engine(spec, count, device, events=True),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(a.rounds):
        for name, way in ways.items():
            with way() as step:
                found[name].append(step_s(step, device, a.steps))
            del step
            gc.collect()
    end_world()
    return report(spec, count, device, found)


def report(spec: ModelSpec, count: int, device: Device, found: dict[str, list[float]]) -> int:
    """The table; 1 if a GPU was slower with the engine than without."""
    on_gpu = device.torch_device.type == "cuda"
    peak = device.gemm_flops_per_s(torch.bfloat16 if on_gpu else torch.float32)
    print(f"{device.name()}, {spec.params / 1e9:.2f} B parameters, {count} x {spec.seq} tokens a "
          f"step, peak of a large product {peak / 1e12:.1f} TFLOP/s")  # fmt: skip
    print("| way | step, ms | tokens/s | MFU | of plain |\n| --- | --- | --- | --- | --- |")
    for name, times in found.items():
        middle = statistics.median(times)
        rate = count * spec.seq / middle
        share = statistics.median(t / p for t, p in zip(times, found["plain"], strict=True))
        mfu = spec.flops_per_token("window") * rate / peak
        print(f"| {name} | {1e3 * middle:.1f} | {rate:.0f} | {100 * mfu:.1f} % | {share:.2f} |")
    best = min(statistics.median(found[name]) for name in ("plain", "compiled"))
    return int(on_gpu and statistics.median(found["msctl"]) > best)


if __name__ == "__main__":
    sys.exit(main())
