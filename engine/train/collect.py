"""Python's garbage collection under control: never inside a step, at the same step on every rank.

A collection stops its rank for milliseconds to a second; at random moments on thousands of ranks
that makes every step wait for somebody (paper 5: irregular pauses). Here it runs between steps, all
ranks together. Whoever starts one, it leaves a `gc` event.
"""

import gc
import time

from engine.events.writer import EventWriter

_FULL_EVERY = 25
"""Every so many collections the old generation is looked at as well."""
_SHORT_NS = 1_000_000
"""A collection that nobody asked for is not worth a line below one millisecond."""


class Collector:
    """Takes over from the automatic collector while it is open; `every` 0 only watches it.

    every is in steps.
    """

    def __init__(self, events: EventWriter, *, every: int = 20) -> None:
        self._events, self._every = events, every
        self._asked = False
        self._began = 0

    def __enter__(self) -> "Collector":
        """Switch automatic collection off."""
        if self._every:
            gc.collect()
            gc.disable()
        gc.callbacks.append(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        """Switch it on again."""
        gc.callbacks.remove(self._watch)
        gc.enable()

    def between_steps(self, done: int) -> None:
        """Collect when the number of steps done says so."""
        if self._every and done % self._every == 0:
            self._asked = True
            gc.collect(2 if done % (_FULL_EVERY * self._every) == 0 else 1)
            self._asked = False

    def _watch(self, phase: str, info: dict[str, int]) -> None:
        """Python calls this around each collection, in the thread that collects."""
        if phase == "start":
            self._began = time.perf_counter_ns()
            return
        length = time.perf_counter_ns() - self._began
        if self._asked or length > _SHORT_NS:
            generation = {"generation": info["generation"]}
            self._events.add("span", "gc", "host", self._began, length, {**generation})
