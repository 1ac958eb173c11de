"""The fastest layout that a system can run, written for it.

Where the fastest of all is none of those, the answer says which it was and what is missing.
"""

from typing import Annotated, NamedTuple

from engine.errors import LayoutError
from engine.plan.emit import OWN, TOKENS, check_precision, emit, known_format, unfit
from engine.plan.exhaust import exhaust, switched
from engine.plan.report import Candidate, Refusal
from engine.plan.request import Prepared, Request, prepare
from engine.plan.search import Space, describe, divisors, search
from engine.plan.setup import Job, PlanLayout
from engine.spec.base import Noun, doc

_MOST_TP = 64


class Emitted(Noun, frozen=True, kw_only=True):
    """A text for another program, and what it was made of."""

    text: str
    layout: PlanLayout
    step_s: float
    assumptions: tuple[str, ...] = ()
    passed_over: Annotated[str, doc("a faster layout that the system cannot run, and why")] = ""


class _Choice(NamedTuple):
    """The fastest of all that were looked at, the fastest that runs, and why none was found."""

    first: Candidate | None
    fitting: Candidate | None
    refusals: tuple[Refusal, ...] = ()


def make_emitted(request: Request, kind: str, *, exhaustive: bool = False) -> Emitted:
    """Search, take the fastest layout that the system runs, write it; LayoutError if none fits."""
    known_format(kind)
    ready = prepare(request, every=exhaustive)
    check_precision(kind, ready.job.precision)
    choice = _choose(request, ready, kind, exhaustive=exhaustive)
    first, best = choice.first, choice.fitting
    if best is None:
        ready = ready._replace(space=_narrowed(kind, ready))
        again = _choose(request, ready, kind, exhaustive=exhaustive)
        best = again.fitting or first or again.first
    if best is None:
        rules = "; ".join(f"{r.count} broke: {r.rule}" for r in choice.refusals)
        raise LayoutError(
            f"no layout fits {ready.gpus} devices" + (f" ({rules})" if rules else ""),
            remedy="change --gpus or --batch, or hold fewer axes with --set",
        )
    job = switched(ready.job, **best.switches)
    text = emit(kind, job, best.layout, base=ready.recipe, tokens=request.tokens)
    return Emitted(
        text=text, layout=best.layout, step_s=best.step_s,
        assumptions=(*ready.assumptions, *_more(request, ready, kind)),
        passed_over=_passed_over(kind, ready, first, best),
    )  # fmt: skip


def _choose(request: Request, ready: Prepared, kind: str, *, exhaustive: bool) -> _Choice:
    """The fastest of a space, and the fastest that the system can run among those shown."""
    refusals: tuple[Refusal, ...] = ()
    if exhaustive:
        candidates = exhaust(ready.job, ready.gpus, ready.space, top=request.top).candidates
    else:
        found = search(ready.job, ready.gpus, ready.space, top=request.top)
        candidates, refusals = found.candidates, found.refusals
    runs = (c for c in candidates if not unfit(kind, ready.job, c.layout, ready.recipe))
    return _Choice(next(iter(candidates), None), next(runs, None), refusals)


def _narrowed(kind: str, ready: Prepared) -> Space:
    """The space without what the system does not have; an axis that would be empty stays."""
    space = ready.space
    zero = tuple(z for z in space.zero if z < 3) if kind != "torchtitan" else space.zero
    space = space._replace(zero=zero or space.zero)
    if kind == "megatron":
        return space._replace(schedule=tuple(k for k in space.schedule if k == "auto")
                              or space.schedule)  # fmt: skip
    if kind not in OWN:
        return space
    tp = tuple(d for d in space.tp or divisors(ready.gpus) if _splits(ready.job, d))
    cp, ep = (tuple(d for d in axis if d == 1) or axis for axis in (space.cp, space.ep))
    return space._replace(tp=tp or space.tp, cp=cp, ep=ep)


def _splits(job: Job, tp: int) -> bool:
    """Whether the engine's tensor parallelism divides the model so; plan's own rule is wider."""
    model = job.model
    sizes = (model.heads, model.kv_heads, model.ffn, model.vocab, model.seq)
    return tp <= _MOST_TP and not any(size % tp for size in sizes)


def _more(request: Request, ready: Prepared, kind: str) -> list[str]:
    """What the text says that nobody asked for."""
    if ready.recipe is not None:
        return []
    notes = [] if request.tokens else [f"training on {TOKENS / 1e9:g} G tokens (--tokens)"]
    return [*notes, "synthetic data: name your own in [data]"] if kind == "recipe" else notes


def _passed_over(kind: str, ready: Prepared, first: Candidate | None, best: Candidate) -> str:
    """The fastest layout if it is not the one that was written."""
    if first is None or first.layout == best.layout:
        return ""
    whose = "`msctl train`" if kind in OWN else kind
    why = unfit(kind, ready.job, first.layout, ready.recipe)
    slower = 100 * (best.step_s / first.step_s - 1)
    return (
        f"{describe(first.layout)} would be faster, but {whose} does not run it ({why}); written "
        f"is the fastest that it runs, {describe(best.layout)}, {slower:.1f} % slower"
    )
