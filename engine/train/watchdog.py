"""Say what a rank is in the middle of when a step takes too long: that dump is what places a hang.

A thread that sleeps; when the running step is older than the deadline it writes the open spans and
every thread's stack, once a step. It never ends the rank: the communication time-out or the driver
does.
"""

import faulthandler
import logging
import sys
import threading
import time

from engine.events.writer import EventWriter

logger = logging.getLogger(__name__)


class Watchdog:
    """Watches the steps of one rank; use as a context manager around the loop."""

    def __init__(self, events: EventWriter, *, deadline_s: float) -> None:
        self._events = events
        self._deadline_s = deadline_s
        self._began = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self) -> None:
        """A step begins."""
        self._began = time.monotonic()

    def __enter__(self) -> "Watchdog":
        """Start watching."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        dumped = 0.0
        while not self._end.wait(min(1.0, self._deadline_s / 4)):
            began = self._began
            age = time.monotonic() - began
            if age > self._deadline_s and dumped != began:
                dumped = began
                logger.warning(
                    "step %d runs for %.1f s: dumping open spans", self._events.step, age
                )
                self._events.dump_open()
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
