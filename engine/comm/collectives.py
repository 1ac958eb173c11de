"""Every collective, send and receive of the project, on gloo and NCCL alike.

The backends' traps are kept inside this file: names that torch renamed, gloo's rule that a
point-to-point work may be waited for only once, the pairing of messages by tag or by order, and
gloo's gather and reduce-scatter. Those two are replaced by a direct exchange with every receive
posted before the first send: both directions of a link then work at once. Measured on two ranks
behind 200 Mbit/s (bench/overlap/exchange.py): 14 MiB each way take 0.62 s so, 0.86 s by gloo's
all_gather and 1.25 s by its all_to_all.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.lost import lost


@dataclass(frozen=True)
class Group:
    """Ranks that communicate for one purpose; alone (`size` 1) it needs no process group."""

    name: str
    ranks: tuple[int, ...]
    index: int
    handle: dist.ProcessGroup | None
    tickets: Iterator[int] = field(default_factory=itertools.count, compare=False, repr=False)
    """Numbers of exchanges; members draw in one order, so both ends of a message agree."""

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)


class Work:
    """A communication under way; `wait` may be called any number of times, the first one counts."""

    def __init__(self, what: str, handles: list[dist.Work], keep: tuple[Tensor, ...] = ()) -> None:
        self._what = what
        self._handles = handles
        self._keep = keep
        self._finish: list[Callable[[], object]] = []

    def then(self, finish: Callable[[], object]) -> "Work":
        """After the wait, call `finish` once."""
        self._finish.append(finish)
        return self

    def wait(self) -> None:
        """Block until the data may be used (on CUDA: until the stream may use them)."""
        handles, self._handles = self._handles, []
        for handle in handles:
            try:
                handle.wait()
            except RuntimeError as error:
                raise lost(self._what, error) from error
        finish, self._finish = self._finish, []
        for call in finish:
            call()
        self._keep = ()


_DIRECT_BYTES, _SWAP_BYTES = 1 << 20, 1 << 14
_TAGS = 1 << 24
"""Tags wrap here; far fewer exchanges of a group are under way at once."""

DONE = Work("nothing", [])
"""A communication that needed no transfer."""


def _tag(group: Group, what: str) -> str:
    return f"{what} in group {group.name} of ranks {_brief(group.ranks)}"


def _brief(ranks: tuple[int, ...]) -> str:
    return str(list(ranks)) if len(ranks) <= 8 else f"[{ranks[0]}, {ranks[1]} ... {ranks[-1]}]"


def _is_large(part: Tensor) -> bool:
    """Whether a member's part is worth a direct exchange; below, its two calls cost more."""
    return part.numel() * part.element_size() >= _DIRECT_BYTES


def _is_worth_a_swap(tensor: Tensor) -> bool:
    """Whether a phase costs more than a second call; by what both ranks know, the size."""
    return tensor.numel() * tensor.element_size() >= _SWAP_BYTES


def _is_gloo(group: Group) -> bool:
    return dist.get_backend(group.handle) == "gloo"


def _begin(group: Group, what: str, call: object, *args: object, **options: object) -> dist.Work:
    try:
        return call(*args, group=group.handle, async_op=True, **options)  # type: ignore[operator]
    except RuntimeError as error:
        raise lost(_tag(group, what), error) from error


def all_reduce(tensor: Tensor, group: Group, *, op: str = "sum") -> Work:
    """Start reducing `tensor` over the group in place; op is `sum` or `max`.

    Two ranks on gloo swap what they have: as many bytes as a ring sends, in one phase, not two.
    """
    if group.size == 1:
        return DONE
    if group.size == 2 and op == "sum" and _is_gloo(group) and _is_worth_a_swap(tensor):
        what, mine = _tag(group, "all_reduce"), tensor.contiguous()
        theirs = torch.empty_like(mine)
        handles = _exchange(group, what, [theirs, theirs], [mine, mine])
        return Work(what, handles, (mine,)).then(lambda: tensor.add_(theirs))
    kind = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[op]
    handle = _begin(group, "all_reduce", dist.all_reduce, tensor, op=kind)
    return Work(_tag(group, "all_reduce"), [handle], (tensor,))


def all_gather(out: Tensor, part: Tensor, group: Group, *, in_turn: bool = False) -> Work:
    """Start gathering equal parts along dimension 0 into `out`, in the order of the group's index.

    `part` may be this rank's slice of `out` itself. Of several under way those `in_turn` end one
    after the other; gloo's own form works on two at once, and the first is there half as soon.
    """
    if group.size == 1:
        if out.data_ptr() != part.data_ptr():
            out.copy_(part)
        return DONE
    what = _tag(group, "all_gather")
    if _is_gloo(group) and (in_turn or _is_large(part)):
        places = out.view(group.size, *part.shape)
        handles = _exchange(group, what, list(places), [part] * group.size)
        if places[group.index].data_ptr() != part.data_ptr():
            places[group.index].copy_(part)
        return Work(what, handles, (out, part))
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return Work(what, [_begin(group, "all_gather", call, out, part)], (out, part))


def broadcast(tensor: Tensor, source: int, group: Group) -> Work:
    """Start filling `tensor` on all members with that of the member at index `source`."""
    if group.size == 1:
        return DONE
    what = f"broadcast from rank {group.ranks[source]}"
    handle = _begin(group, what, dist.broadcast, tensor, src=group.ranks[source])
    return Work(_tag(group, what), [handle], (tensor,))


def reduce_scatter(out: Tensor, whole: Tensor, group: Group, *, in_turn: bool = False) -> Work:
    """Start summing `whole` over the group; each rank receives its part of dimension 0 in `out`.

    On gloo the parts are exchanged directly and summed in rank order, so the result does not depend
    on timing, and `whole` must stay unchanged until the wait. `in_turn` is as in `all_gather`.
    """
    if group.size == 1:
        if out.data_ptr() != whole.data_ptr():
            out.copy_(whole)
        return DONE
    what = _tag(group, "reduce_scatter")
    if _is_gloo(group):
        pieces = torch.empty((group.size, *out.shape), dtype=whole.dtype, device=whole.device)
        parts = whole.view(pieces.shape)
        if not (in_turn or _is_large(out)):
            exchange = dist.all_to_all_single
            handle = _begin(group, "reduce_scatter", exchange, pieces, parts)
            return Work(what, [handle], (whole,)).then(lambda: torch.sum(pieces, 0, out=out))
        handles = _exchange(group, what, list(pieces), list(parts))
        addends = [*pieces[: group.index], parts[group.index], *pieces[group.index + 1 :]]
        return Work(what, handles, (whole,)).then(lambda: _sum_in_order(addends, out))
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return Work(what, [_begin(group, "reduce_scatter", call, out, whole)], (out, whole))


def _exchange(
    group: Group, what: str, receives: list[Tensor], sends: list[Tensor]
) -> list[dist.Work]:
    """Receive into and send from one contiguous tensor per member, all receives posted first."""
    me, size = group.index, group.size
    tag = next(group.tickets) % _TAGS
    others = [(me + step) % size for step in range(1, size)]
    handles = []
    try:
        for other in others:
            source = group.ranks[other]
            handles.append(dist.irecv(receives[other], src=source, group=group.handle, tag=tag))
        for other in others:
            to = group.ranks[other]
            handles.append(dist.isend(sends[other], dst=to, group=group.handle, tag=tag))
    except RuntimeError as error:
        raise lost(what, error) from error
    return [handle for handle in handles if handle is not None]


def _sum_in_order(addends: list[Tensor], out: Tensor) -> None:
    """out = addends[0] + addends[1] + ..., the same bits on every run; `out` may be an addend."""
    total = torch.add(addends[0], addends[1])
    for addend in addends[2:]:
        total.add_(addend)
    out.copy_(total)


def send(tensor: Tensor, to: int, group: Group, *, tag: int) -> Work:
    """Start sending to global rank `to`; the tensor must not change until the wait."""
    what = _tag(group, f"send to rank {to}")
    try:
        handle = dist.isend(tensor, dst=to, group=group.handle, tag=tag)
    except RuntimeError as error:
        raise lost(what, error) from error
    return Work(what, [handle] if handle is not None else [], (tensor,))


def receive(tensor: Tensor, source: int, group: Group, *, tag: int) -> Work:
    """Start receiving from global rank `source` into `tensor`."""
    what = _tag(group, f"receive from rank {source}")
    try:
        handle = dist.irecv(tensor, src=source, group=group.handle, tag=tag)
    except RuntimeError as error:
        raise lost(what, error) from error
    return Work(what, [handle] if handle is not None else [], (tensor,))


def barrier(group: Group) -> None:
    """Return when every member has arrived."""
    if group.size > 1:
        token = torch.zeros(1, device="cpu" if _is_gloo(group) else "cuda")
        all_reduce(token, group).wait()


def gather_bytes(value: bytes, group: Group) -> list[bytes]:
    """A byte string of every member, in order of index, on every member."""
    if group.size == 1:
        return [value]
    device = "cpu" if _is_gloo(group) else "cuda"
    data = torch.frombuffer(bytearray(value or b"\0"), dtype=torch.uint8).to(device)
    sizes = torch.zeros(group.size, dtype=torch.int64, device=device)
    all_gather(sizes, torch.tensor([len(value)], device=device), group).wait()
    padded = torch.zeros(max(1, int(sizes.max())), dtype=torch.uint8, device=device)
    padded[: data.numel()] = data[: padded.numel()]
    out = torch.empty(group.size * padded.numel(), dtype=torch.uint8, device=device)
    all_gather(out, padded, group).wait()
    rows = out.view(group.size, -1).cpu().numpy()
    return [rows[i, : int(size)].tobytes() for i, size in enumerate(sizes)]
