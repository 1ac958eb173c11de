"""Tell this node's executor what the rank is doing, ten times a second, without being in its way.

A thread copies what the event writer knows into the rank's slot. It also answers a request for
evidence: the open spans go to the event file, the stacks of all threads to the log.
"""

import faulthandler
import signal
import sys
import threading

from engine.events.writer import EventWriter
from engine.health.heartbeat_slot import Slots, Work

_EVERY_S = 0.1


class Beacon:
    """Fills slot `index` of the slots at `path`; without a path it does nothing."""

    def __init__(self, events: EventWriter, path: str, index: int) -> None:
        self._events, self._index = events, index
        self._slots = Slots.open(path) if path else None
        self._end = threading.Event()
        self._alive = self._answered = 0
        self._thread = threading.Thread(target=self._watch, name="beacon", daemon=True)

    def __enter__(self) -> "Beacon":
        """Begin to tell. Stacks can also be had by SIGUSR1, even of a rank stuck in a C call."""
        if self._slots is not None:
            faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True, chain=False)
            self.tell()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Say the last word and stop."""
        if self._slots is not None:
            self._end.set()
            self._thread.join()
            self.tell()
            self._slots.close()

    def tell(self) -> None:
        """Copy what is known now, and answer a request for a dump."""
        slots, events = self._slots, self._events
        assert slots is not None, "called with slots only"
        while events.works:
            slots.tell_work(self._index, Work(*events.works.popleft()))
        doing, since = events.doing_since
        self._alive += 1
        slots.tell(
            self._index, alive=self._alive, actions=events.actions, step=events.step,
            since_s=since, doing=doing,
        )  # fmt: skip
        asked = slots.asked(self._index)
        if asked != self._answered:
            events.dump_open()
            self._answered = asked
            slots.answer(self._index, asked)

    def _watch(self) -> None:
        while not self._end.wait(_EVERY_S):
            self.tell()
