"""Training in which replicas are compared after every step, and one rank may compute wrong."""

from typing import Any

import msgspec

from bench.case import Ranks, micro_batches, recipe_of
from engine.comm.world import Rendezvous, end_world
from engine.spec.job import JobSpec
from engine.train.failure import Corrupted
from engine.train.rehearse import compute_wrong
from engine.train.sdc import ReplicaCheck


def train_and_compare(
    rank: int, meet: Rendezvous, cases: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Of each case losses and norms of its steps, and what this rank saw if replicas differed.

    args of a case, besides those of `recipe_of`: `steps`, `compare` (whether to), `flip` [rank,
    step], the rank that computes wrong after so many steps; `once`: it does so only the first time.
    """
    ranks = Ranks(rank, meet, recipe_of(cases[0]).layout.world_size)
    results = [_one(ranks, args) for args in cases]
    end_world()
    return results


def _one(ranks: Ranks, args: dict[str, Any]) -> dict[str, Any]:
    trainer = ranks.trainer(args)
    recipe = msgspec.structs.replace(trainer.recipe, job=JobSpec(sdc_every=1))
    replica = recipe.layout.coord(ranks.rank).dp
    check = ReplicaCheck(recipe, trainer.engine)
    culprit, at = args.get("flip", (-1, -1))
    steps, seen = [], None
    for step in range(args["steps"]):
        if (ranks.rank, step) == (culprit, at):
            compute_wrong(trainer.engine, once=args.get("once", False))
        if args.get("compare", True) and step == at:
            seen = _compare(check, step, micro_batches(recipe, step, replica)[0])
            break
        result = trainer.step(step, lambda s: micro_batches(recipe, s, replica))
        steps.append((result.loss, result.grad_norm))
        if args.get("compare", True):
            seen = _compare(check, step + 1, micro_batches(recipe, step, replica)[0])
    return {"steps": steps, "seen": seen}


def _compare(check: ReplicaCheck, done: int, micro: Any) -> dict[str, Any] | None:
    try:
        check.run(done, micro)
    except Corrupted as error:
        return msgspec.to_builtins(error.seen)
    return None
