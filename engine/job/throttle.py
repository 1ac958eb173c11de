"""Make a process slow by stopping it for a part of every few hundredths of a second (drills)."""

import contextlib
import os
import signal
import threading
import time

_PERIOD_S = 0.04


class Throttle:
    """At most one set of slow processes at a time."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pids: list[int], share: float) -> None:
        """From now on these processes run for `share` of the time, until they end."""
        self.stop()
        self._end = threading.Event()
        found = [pid for pid in pids if pid > 0]
        self._thread = threading.Thread(target=self._run, args=(found, share), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let them run freely again."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)
            self._thread = None

    def _run(self, pids: list[int], share: float) -> None:
        alive = set(pids)
        while alive and not self._end.is_set():
            for number, length in ((signal.SIGSTOP, 1 - share), (signal.SIGCONT, share)):
                for pid in list(alive):
                    try:
                        os.kill(pid, number)
                    except OSError:
                        alive.discard(pid)
                time.sleep(_PERIOD_S * length)
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
