"""Run checks one after the other, each under its deadline, in a process that may be lost.

A GPU driver or a file server that hangs leaves its caller in a sleep that no signal ends. So checks
run in a forked child; a check that does not end in time is an `error`, its child is killed and left
behind, and the next checks run in a new one, save those that lean on what hung.
"""

import math
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from engine.errors import EngineError, MissingError
from engine.health.look import Look
from engine.health.result import CheckResult
from engine.health.suite import Check

_HEAD = struct.Struct("<I")
_MAX_REPLY = 64 << 20
_GRACE_S = 1.0
_STATE_S = 10.0
_LEAST_S = 2.0
"""A check is not begun with less time than this."""
OnResults = Callable[[Sequence[CheckResult]], None]
MakeLook = Callable[[frozenset[str]], Look]


_ASK_STATE = 0xFFFFFFFF


class Ran(NamedTuple):
    """Results, and what the last child had to say."""

    results: tuple[CheckResult, ...]
    state: bytes


def run_check(check: Check, look: Look) -> tuple[CheckResult, ...]:
    """One check, here and now. What it lacks makes it `skip`, what breaks it makes it `error`."""
    start = time.perf_counter()
    found: Sequence[CheckResult]
    if look.tolerates(check.name):
        found = (CheckResult(status="skip", message="left out by the profile"),)
    else:
        try:
            found = check.function(look)
        except MissingError as error:
            found = (CheckResult(status="skip", message=error.what, remedy=error.remedy),)
        except EngineError as error:
            found = (_broken(error.what, error.remedy),)
        except Exception as error:
            found = (_broken(f"{type(error).__name__}: {error}", "report this with -vv"),)
    seconds = time.perf_counter() - start
    return tuple(msgspec.structs.replace(r, check=check.name, seconds=seconds) for r in found)


def run_here(checks: Sequence[Check], look: Look) -> tuple[CheckResult, ...]:
    """All checks in this process, without deadlines: for recordings, which cannot hang."""
    return tuple(result for check in checks for result in run_check(check, look))


def run_isolated(
    checks: Sequence[Check],
    make_look: MakeLook,
    *,
    on_results: OnResults | None = None,
    state: Callable[[Look], bytes] | None = None,
    budget_s: float = math.inf,
) -> Ran:
    """All checks under their deadlines, in children; also what `state(look)` says in the last one.

    `make_look(hung)` runs in each child and must not ask again what hung before. `state` lets the
    caller have what the child has read: counters, facts, a recording. After `budget_s` what has not
    run is skipped, and says so.
    """
    end = time.monotonic() + budget_s
    results: list[CheckResult] = []
    hung: set[str] = set()
    left = list(checks)
    last = b""
    found: tuple[CheckResult, ...]
    while left:
        child = _Child(left, partial(make_look, frozenset(hung)), state)
        try:
            while left:
                check = left[0]
                if hung & set(check.needs):
                    found = (_not_tried(check, hung),)
                    child.skip()
                elif (left_s := end - time.monotonic()) < min(_LEAST_S, check.deadline_s):
                    found = (_no_time(check, budget_s),)
                    child.skip()
                else:
                    reply = child.ask(min(check.deadline_s, left_s))
                    if reply is None:
                        break
                    found = msgspec.msgpack.decode(reply, type=tuple[CheckResult, ...])
                left.pop(0)
                results += found
                if on_results:
                    on_results(found)
            if left:  # the child hung or died on left[0]
                check = left.pop(0)
                if end - time.monotonic() < _LEAST_S:  # not its own deadline ended it
                    results.append(_no_time(check, budget_s))
                else:
                    hung |= set(check.needs)
                    results.append(child.obituary(check))
                if on_results:
                    on_results(results[-1:])
            elif state:
                last = child.ask(_STATE_S, _ASK_STATE) or b""
                if not last:
                    results.append(_broken("counters and facts could not be gathered", "see -vv"))
        finally:
            child.kill()
    return Ran(tuple(results), last)


class _Child:
    """A forked process that runs checks on request."""

    def __init__(
        self,
        checks: Sequence[Check],
        make_look: Callable[[], Look],
        state: Callable[[Look], bytes] | None,
    ) -> None:
        to_child, self._ask = os.pipe()
        self._reply, from_child = os.pipe()
        self._at = 0
        self._timed_out = False
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._ask)
            os.close(self._reply)
            try:
                _serve(checks, make_look, state, (to_child, from_child))
            finally:
                os._exit(0)
        os.close(to_child)
        os.close(from_child)

    def skip(self) -> None:
        """Pass over the next check."""
        self._at += 1

    def ask(self, deadline_s: float, what: int = -1) -> bytes | None:
        """Results of the next check, None if the child does not give them in time."""
        try:
            os.write(self._ask, _HEAD.pack(self._at if what < 0 else what))
        except BrokenPipeError:
            return None
        self._at += 1
        end = time.monotonic() + deadline_s
        head = self._read(_HEAD.size, end)
        if head is None:
            return None
        return self._read(min(_HEAD.unpack(head)[0], _MAX_REPLY), end + _GRACE_S)

    def _read(self, size: int, end: float) -> bytes | None:
        data = b""
        while len(data) < size:
            ready, _, _ = select.select([self._reply], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self._timed_out = True
                return None
            part = os.read(self._reply, size - len(data))
            if not part:
                return None
            data += part
        return data

    def obituary(self, check: Check) -> CheckResult:
        """Why the child did not answer."""
        if self._timed_out:
            what = f"did not end within {check.deadline_s:g} s"
            remedy = "treat the node as suspect; what the check asks (driver, disk) does not answer"
        else:
            what, remedy = "ended its process", "treat the node as suspect and read the kernel log"
        return CheckResult(
            check=check.name, status="error", message=what, remedy=remedy, action="evict",
            measured=check.deadline_s if self._timed_out else None, unit="s",
            seconds=check.deadline_s,
        )  # fmt: skip

    def kill(self) -> None:
        """End the child; one that sleeps in the kernel is left to it."""
        os.close(self._ask)
        os.close(self._reply)
        try:
            os.kill(self.pid, signal.SIGKILL)
            end = time.monotonic() + _GRACE_S
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0) and time.monotonic() < end:
                time.sleep(0.005)
        except (ProcessLookupError, ChildProcessError):
            pass


def _serve(
    checks: Sequence[Check],
    make_look: Callable[[], Look],
    state: Callable[[Look], bytes] | None,
    pipes: tuple[int, int],
) -> None:
    """The child's life: a number in, results out, until the parent closes its end."""
    ask, reply = pipes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides on Ctrl-C
    look = None
    while True:
        head = os.read(ask, _HEAD.size)
        if len(head) < _HEAD.size:
            return
        at = _HEAD.unpack(head)[0]
        look = look or make_look()
        if at == _ASK_STATE:
            body = state(look) if state else b""
        else:
            body = msgspec.msgpack.encode(run_check(checks[at], look))
        data = _HEAD.pack(len(body)) + body
        while data:
            data = data[os.write(reply, data) :]


def _no_time(check: Check, budget_s: float) -> CheckResult:
    return CheckResult(
        check=check.name, status="skip", message=f"no time left of the level's {budget_s:g} s",
        remedy=f"run it by itself: msctl selfcheck --only {check.name}",
    )  # fmt: skip


def _broken(what: str, remedy: str) -> CheckResult:
    return CheckResult(status="error", message=what, remedy=remedy, action="watch")


def _not_tried(check: Check, hung: set[str]) -> CheckResult:
    what = ", ".join(sorted(hung & set(check.needs)))
    return CheckResult(
        check=check.name, status="error", message=f"not tried: {what} did not answer before",
        remedy="treat the node as suspect; see the first check that did not end", action="evict",
    )  # fmt: skip
