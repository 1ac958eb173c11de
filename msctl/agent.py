"""The process on each node that `msctl selfcheck --on` starts: `python -m msctl.agent`.

Reads one line of JSON (where Redis is, which run, what this node is called) from its standard
input, so that the password is in no list of processes.
"""

import os
import sys

import msgspec

from engine.errors import EngineError
from engine.health.agent import Hello, serve


def main() -> int:
    """Serve until told to end: 0; 3 if the greeting is none, 5 if Redis cannot be reached."""
    try:
        hello = msgspec.json.decode(sys.stdin.readline(1 << 16), type=Hello)
    except msgspec.MsgspecError as error:
        sys.stderr.write(f"error: not a greeting: {error}\n")
        return 3
    env = os.environ
    node = hello.node or env.get("SLURMD_NODENAME") or env.get("NODE_NAME") or os.uname().nodename
    try:
        serve(hello, node, env)
    except EngineError as error:
        sys.stderr.write(f"error: {error.what}\n\nhint: {error.remedy}\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
