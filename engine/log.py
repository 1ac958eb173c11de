"""The log for people: one line form, configured by executables only.

Facts that a program needs are events (engine/events), never log lines.
"""

import logging
import sys
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname).1s {who} %(name)s: %(message)s"


def configure(
    who: str, *, level: int = logging.INFO, file: Path | None = None, stderr: bool = True
) -> None:
    """Send the log of this process to stderr and, with `file`, to a file.

    `who` is `driver` or the rank as `r00012`. Calling it again replaces the earlier handlers, so
    that a forked rank does not write with its parent's name.
    """
    formatter = logging.Formatter(_FORMAT.format(who=who))
    handlers: list[logging.Handler] = []
    if stderr:
        handlers.append(logging.StreamHandler(sys.stderr))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(file, encoding="utf-8"))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(level)
