"""What must survive a restart: this rank's shards of weights and moments, as checkpoint pieces."""

from torch import Tensor

from engine.ckpt.piece import Piece, Slot
from engine.comm.collectives import broadcast
from engine.train.build import Engine, Unit


def pieces_to_load(engine: Engine) -> list[Piece]:
    """Every part this rank works on, copies included."""
    return [piece for unit in engine.all_units() for piece in _pieces(unit)]


def pieces_to_save(engine: Engine) -> list[Piece]:
    """Every part this rank owns: over all ranks each element of the state occurs once."""
    mesh = engine.mesh
    found: list[Piece] = []
    for unit in engine.all_units():
        if unit.shard.zero == 0 and mesh.dp_reduce.index > 0:
            continue
        if unit is engine.tied and mesh.tied.index > 0:
            continue
        found += [piece for piece in _pieces(unit) if mesh.tp.index == 0 or not _is_whole(piece)]
    return found


def share_copies(engine: Engine) -> None:
    """Give what the owners have, and `pieces_to_save` names, to all ranks that hold copies of it.

    Called by all ranks together, after each has filled what it owns: copies may be on nodes that
    have nothing of it in memory. Within a stage first, then from the first stage to the last, then
    to the other replicas, so that each has it before it gives it on.
    """
    mesh = engine.mesh
    for unit in engine.all_units():
        if mesh.tp.size > 1:
            for piece in _pieces(unit):
                if _is_whole(piece):
                    broadcast(piece.tensor, 0, mesh.tp).wait()
        flats = [unit.shard.master, *(unit.optimizer.state[slot] for slot in unit.optimizer.slots)]
        groups = [mesh.tied] if unit is engine.tied else []
        groups += [mesh.dp_reduce] if unit.shard.zero == 0 else []
        for group in groups:
            for flat in flats:
                broadcast(flat, 0, group).wait()


def loaded(engine: Engine) -> None:
    """The masters were filled from a checkpoint: parameters must be gathered from them."""
    for unit in engine.all_units():
        unit.shard.updated()


def _is_whole(piece: Piece) -> bool:
    """Whether every tp rank holds this tensor in full."""
    return all(part == (0, size) for part, size in zip(piece.box, piece.global_shape, strict=True))


def _pieces(unit: Unit) -> list[Piece]:
    begin, _ = unit.shard.range
    slots: dict[Slot, Tensor] = {"param": unit.shard.master}
    for slot in unit.optimizer.slots:
        slots[slot] = unit.optimizer.state[slot]
    found = []
    for weight, first, stop in unit.shard.owned():
        offset = weight.start - begin
        for name, flat in slots.items():
            found.append(
                Piece(
                    name=weight.info.name,
                    slot=name,
                    global_shape=weight.info.shape,
                    box=weight.box,
                    flat=(first, stop),
                    tensor=flat[offset + first : offset + stop],
                )
            )
    return found
