"""What ckpt_bench.py saves and how it looks at files: a GPT's state with a known pattern."""

import os
import time

PERIOD = 8191  # prime length of the repeating test pattern
STRIDE = 7919  # shifts the pattern from tensor to tensor


# ----------------------------------------------------------------- the state
def gpt_shapes(gib, hidden=1024, vocab=25600):
    """Parameter shapes of a small GPT: fp32 and two Adam moments come close to `gib` GiB."""
    per_layer = 12 * hidden * hidden + 13 * hidden
    want = gib * 2**30 / 12
    while vocab * hidden > want / 4 and vocab > 256:
        vocab //= 2
    layers = max(1, round((want - vocab * hidden) / per_layer))
    shapes = [("embed.weight", (vocab, hidden))]
    for i in range(layers):
        p = f"layers.{i}."
        shapes += [
            (p + "ln1.weight", (hidden,)),
            (p + "ln1.bias", (hidden,)),
            (p + "attn.qkv.weight", (3 * hidden, hidden)),
            (p + "attn.qkv.bias", (3 * hidden,)),
            (p + "attn.out.weight", (hidden, hidden)),
            (p + "attn.out.bias", (hidden,)),
            (p + "ln2.weight", (hidden,)),
            (p + "ln2.bias", (hidden,)),
            (p + "mlp.up.weight", (4 * hidden, hidden)),
            (p + "mlp.up.bias", (4 * hidden,)),
            (p + "mlp.down.weight", (hidden, 4 * hidden)),
            (p + "mlp.down.bias", (hidden,)),
        ]
    return shapes


class State:
    """What a trainer would checkpoint: params, exp_avg, exp_avg_sq, a step.

    layout 'sharded': every tensor is split on dim 0 over the ranks (ZeRO-like).
    layout 'replicated': every rank holds the whole state (plain data parallel).
    `local` are the plain tensors a rank owns; `dtensors()` gives DTensor views
    of the same memory for systems that need global shapes.
    """

    KINDS = ("model", "exp_avg", "exp_avg_sq")

    def __init__(self, gib, rank, world, layout):
        import torch

        self.torch, self.rank, self.world, self.layout = torch, rank, world, layout
        self.shapes = gpt_shapes(gib)
        self.step = 0
        self.local, self.index = {}, {}
        for kind in self.KINDS:
            for name, shape in self.shapes:
                key = f"{kind}.{name}"
                if layout == "sharded":
                    assert shape[0] % world == 0, (name, shape, world)
                    shape = (shape[0] // world, *tuple(shape[1:]))
                self.index[key] = len(self.index)
                self.local[key] = torch.empty(shape, dtype=torch.float32)
        self.nbytes_local = sum(t.numel() * 4 for t in self.local.values())
        self.nbytes_global = self.nbytes_local * (world if layout == "sharded" else 1)
        self._mesh = None

    def _pattern(self, key, t):
        start = self.rank * t.numel() if self.layout == "sharded" else 0
        off = (start + self.index[key] * STRIDE) % PERIOD
        return self.torch.arange(PERIOD, dtype=self.torch.float32).roll(-off)

    def fill(self, step):
        self.step = step
        for key, t in self.local.items():
            flat, pat = t.view(-1), self._pattern(key, t) + step
            whole = flat.numel() // PERIOD * PERIOD
            flat[:whole].view(-1, PERIOD).copy_(pat.expand(whole // PERIOD, PERIOD))
            flat[whole:].copy_(pat[: flat.numel() - whole])

    def wrong(self, step):
        """Names of the tensors that do not hold exactly what `fill(step)` wrote."""
        bad = []
        for key, t in self.local.items():
            flat, pat = t.view(-1), self._pattern(key, t) + step
            whole = flat.numel() // PERIOD * PERIOD
            ok = bool((flat[:whole].view(-1, PERIOD) == pat).all()) and bool(
                (flat[whole:] == pat[: flat.numel() - whole]).all()
            )
            if not ok:
                bad.append(key)
        return bad

    def advance(self):
        """The optimizer step that follows a save: touches every byte in place."""
        for t in self.local.values():
            t.add_(1.0)
        self.step += 1

    def mesh(self):
        if self._mesh is None:
            from torch.distributed.device_mesh import init_device_mesh

            self._mesh = init_device_mesh("cpu", (self.world,))
        return self._mesh

    def dtensors(self):
        from torch.distributed.tensor import DTensor, Replicate, Shard

        place = [Shard(0)] if self.layout == "sharded" else [Replicate()]
        return {
            k: DTensor.from_local(t, self.mesh(), place, run_check=False)
            for k, t in self.local.items()
        }


# ------------------------------------------------------------------- helpers
def fsync_tree(path):
    """Make a directory tree durable; returns seconds spent."""
    t0 = time.perf_counter()
    for root, _dirs, files in os.walk(path):
        for f in files:
            fd = os.open(os.path.join(root, f), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        fd = os.open(root, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    fd = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - t0


def tree_size(path):
    n = b = 0
    for root, _dirs, files in os.walk(path):
        for f in files:
            n += 1
            b += os.path.getsize(os.path.join(root, f))
    return n, b


def proc_io():
    out = {}
    with open("/proc/self/io") as f:
        for line in f:
            k, v = line.split(":")
            out[k] = int(v)
    return out
