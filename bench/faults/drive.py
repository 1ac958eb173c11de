"""The driver of a campaign's job: `python -m bench.faults.drive FOLDER STEPS [DRILL...]`."""

import os
import sys
import time
from pathlib import Path

from bench.faults.net import HOST, Network
from engine.errors import EngineError
from engine.job.driver import Driver, Watch
from engine.job.remote import ProcessLauncher, RemotePlace
from engine.spec.load import load_recipe
from engine.train.drill import parse_faults


def main() -> None:
    """Drive to the end; what happens goes to standard output."""
    folder = Path(sys.argv[1])
    recipe = load_recipe(folder / "wanted.toml")
    begin = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.monotonic() - begin:8.2f} {text}", flush=True)

    def words(node: str) -> list[str]:
        """Before a node's command: its place in the network, its own memory, a library to wedge."""
        own = [f"MSCTL_NODE={node}"]  # they share a host's name, and would share its snapshots
        if nvml:
            own += [f"LD_LIBRARY_PATH={nvml}", f"MSCTL_BENCH_WEDGED={folder}/wedged-{node}"]
        return Network.words(node) + own

    nvml = os.environ.get("MSCTL_BENCH_NVML", "")
    launcher = ProcessLauncher(wrap=words, comes_back=True)
    place = RemotePlace(launcher, host=HOST)
    driver = Driver(recipe, folder, Watch(on_note=note), place=place,
                    drills=parse_faults(sys.argv[3:]))  # fmt: skip
    try:
        note(driver.run(steps=int(sys.argv[2]), resume="auto").ended)
    except EngineError as error:
        note(f"FAILED {error.what}; {error.remedy}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
