"""A whole pipeline schedule: one list of actions per stage, and where each chunk lives.

This is the object with three readers: the planner simulates it, the trainer executes it, `diagnose`
compares it with what happened. Built by `build.py`, extended by `comm.py`, proven by `verify.py`.
"""

from collections.abc import Iterable
from typing import Literal

from engine.schedule.action import COMPUTE, Action
from engine.spec.base import Noun

Placement = Literal["loop", "v"]
"""loop: chunk c on stage c mod pp; v: chunks run down the stages and back up (two per stage)."""


class Schedule(Noun, frozen=True, kw_only=True):
    """The order of actions of every stage of a pipeline, for one step."""

    kind: str
    pp: int
    vpp: int
    microbatches: int
    placement: Placement = "loop"
    stages: tuple[tuple[Action, ...], ...]

    @property
    def chunks(self) -> int:
        """Model chunks in total."""
        return self.pp * self.vpp

    def stage_of(self, chunk: int) -> int:
        """The stage that holds a chunk."""
        if self.placement == "v" and chunk // self.pp % 2:
            return self.pp - 1 - chunk % self.pp
        return chunk % self.pp

    def chunks_of(self, stage: int) -> tuple[int, ...]:
        """The chunks a stage holds, in forward order."""
        return tuple(c for c in range(self.chunks) if self.stage_of(c) == stage)

    def compute_order(self, stage: int) -> tuple[Action, ...]:
        """Only the forwards and backwards of a stage."""
        return tuple(a for a in self.stages[stage] if a.kind in COMPUTE)

    def with_stages(self, stages: Iterable[Iterable[Action]]) -> "Schedule":
        """The same pipeline with other action lists."""
        return Schedule(
            kind=self.kind,
            pp=self.pp,
            vpp=self.vpp,
            microbatches=self.microbatches,
            placement=self.placement,
            stages=tuple(tuple(actions) for actions in stages),
        )

    def text(self) -> dict[str, list[str]]:
        """Stage number -> actions in text form, for JSON and for reading."""
        return {str(i): [str(a) for a in actions] for i, actions in enumerate(self.stages)}
