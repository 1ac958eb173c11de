"""Python's garbage collection under control: never inside a step, at the same step on every rank.

A collection stops its rank for milliseconds to a second; at random moments on thousands of ranks
that makes every step wait for somebody (paper 5: irregular pauses). Here it runs between steps, all
ranks together, and leaves a `gc` event.
"""

import gc

from engine.events.writer import EventWriter

_YOUNG_EVERY = 20
_FULL_EVERY = 500


class Collector:
    """Takes over from the automatic collector while it is open."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events

    def __enter__(self) -> "Collector":
        """Switch automatic collection off."""
        gc.collect()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        """Switch it on again."""
        gc.enable()

    def between_steps(self, done: int) -> None:
        """Collect when the number of steps done says so."""
        if done % _YOUNG_EVERY == 0:
            generation = 2 if done % _FULL_EVERY == 0 else 1
            with self._events.span("gc", "host", generation=generation):
                gc.collect(generation)
