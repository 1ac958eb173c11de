"""The InfiniBand tree of a recording, read by the real ibstat and by our own reader alike.

The tree is bound over /sys/class in a private mount namespace, so nothing of the machine changes.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.health.look import Look
from engine.health.network import ports
from engine.health.profile import Profile
from engine.health.recording import RecordedProbe
from tests.engine.health.machines import machine

_ROOT = "/sys/class/infiniband"
_SICK = {"rnics": {"mlx5_1": {"state": "1: DOWN"}, "mlx5_3": {"rate": "100 Gb/sec (4X EDR)"}}}


@pytest.mark.multi
@pytest.mark.parametrize("change", [{}, _SICK], ids=["healthy", "one down, one slow"])
def test_ibstat_and_we_read_the_same_ports(tmp_path, change):
    if shutil.which("ibstat") is None or shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("needs root, unshare and ibstat (package infiniband-diags)")
    recording, _ = machine("h100", change)
    for name, text in recording.files.items():
        if name.startswith(_ROOT):
            path = tmp_path / "infiniband" / name.removeprefix(_ROOT + "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip("\n") + "\n")
    for card in (tmp_path / "infiniband").iterdir():
        _complete(card)
    told = _ibstat(tmp_path)
    look = Look(probe=RecordedProbe(recording), profile=Profile())
    ours = {
        p.device: (p.state.upper().startswith("4") or "ACTIVE" in p.state.upper(), round(p.gbps))
        for p in ports(look)
    }
    assert len(told) == 8
    assert told == ours


def _complete(card: Path) -> None:
    """What ibstat insists on and we do not look at."""
    of_card = {"node_type": "1: CA", "hca_type": "MT4129", "hw_rev": "0", "fw_ver": "28.1",
               "node_guid": "0:0:0:1", "sys_image_guid": "0:0:0:1"}  # fmt: skip
    of_port = {"lid": "0x1", "lid_mask_count": "0", "sm_lid": "0x1", "sm_sl": "0",
               "cap_mask": "0x0", "link_layer": "InfiniBand"}  # fmt: skip
    folders = [(card, of_card), *((port, of_port) for port in card.glob("ports/*"))]
    for folder, files in folders:
        for name, text in files.items():
            if not (folder / name).exists():
                (folder / name).write_text(text + "\n")
    for port in card.glob("ports/*"):
        (port / "gids").mkdir()
        (port / "gids" / "0").write_text("fe80:0000:0000:0000:0000:0000:0000:0001\n")
        (port / "pkeys").mkdir()
        (port / "pkeys" / "0").write_text("0xffff\n")


def _ibstat(folder: Path) -> dict[str, tuple[bool, int]]:
    """Card -> whether its port is active, and its rate in Gb/s, as ibstat prints them."""
    script = f"mount --bind {folder} /sys/class && exec ibstat"
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60
    )
    if "mount" in ended.stderr:
        pytest.skip(f"no private mounts here: {ended.stderr.strip()[:100]}")
    found = {}
    for block in re.split(r"^CA '", ended.stdout, flags=re.MULTILINE)[1:]:
        name = block.split("'")[0]
        state = re.search(r"^\s*State: (\w+)", block, re.MULTILINE)
        rate = re.search(r"^\s*Rate: (\d+)", block, re.MULTILINE)
        assert state is not None, f"{ended.stdout}\n{ended.stderr}"
        assert rate is not None, ended.stdout
        found[name] = (state[1] == "Active", int(rate[1]))
    return found
