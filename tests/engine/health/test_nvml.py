"""The real nvidia-ml-py over a shim library that answers like healthy and sick machines."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from engine.errors import MissingError
from engine.health.node import Wish, revisit
from engine.health.nvml import read_gpus
from engine.health.result import bad
from tests.engine.health.machines import KINDS, machine, shim_text, sick

pynvml = pytest.importorskip("pynvml")
pytestmark = pytest.mark.native
WITH_GPUS = [k for k, v in KINDS.items() if v["count"]]
ENTRIES = [e for e in sick() if e["check"].startswith("gpu.") and "commands" not in e["change"]]


@pytest.fixture(scope="session")
def shim_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    source = Path(__file__).with_name("nvml_shim.c")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True, timeout=120
    )
    return folder


@pytest.fixture
def nvml(shim_folder, tmp_path, monkeypatch):
    """Give nvidia-ml-py the shim; returns a function that sets what it answers."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(shim_folder / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    answers = tmp_path / "answers"
    monkeypatch.setenv("MSCTL_NVML_SHIM", str(answers))

    def answer(text):
        answers.write_text(text)

    return answer


@pytest.mark.parametrize("kind", WITH_GPUS)
def test_a_healthy_machine_is_read_as_it_was_described(nvml, kind):
    recording, _ = machine(kind)
    nvml(shim_text(recording))
    assert read_gpus() == recording.gpus


@pytest.mark.parametrize("entry", ENTRIES, ids=[e["name"] for e in ENTRIES])
def test_a_sick_machine_gives_its_finding_through_the_driver_library(nvml, entry):
    recording, before = machine(entry["base"], entry["change"])
    nvml(shim_text(recording))
    try:
        read = msgspec.structs.replace(recording, gpus=read_gpus())
    except MissingError as error:
        read = msgspec.structs.replace(recording, gpus=None, no_gpus=error.what)
    found = bad(revisit(read, Wish(level="light"), before=before).results)
    assert [(r.check, r.target, r.status, r.action) for r in found] == [
        (entry["check"], entry["target"], entry["status"], entry["action"])
    ]


def test_a_function_that_the_library_lacks_gives_none_and_not_a_guess(nvml):
    nvml("count 1\ndriver 450.1\ngpu0.name NVIDIA Old\n")
    gpu = read_gpus().gpus[0]
    assert (gpu.ecc_on, gpu.remap_failed, gpu.links, gpu.throttle) == (None, None, None, None)


def test_no_library_is_a_skip_with_a_remedy(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    if Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").exists():
        pytest.skip("this machine has the driver")
    with pytest.raises(MissingError, match="NVML Shared Library Not Found"):
        read_gpus()


def _selfcheck(shim_folder, answers, *arguments):
    env = os.environ | {
        "LD_LIBRARY_PATH": str(shim_folder),
        "MSCTL_NVML_SHIM": str(answers),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "msctl", "selfcheck", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.multi
def test_the_command_finds_a_lost_gpu_through_the_loader_path(shim_folder, tmp_path):
    recording, _ = machine("h100", {"gpus": {"3": {"error": "GPU is lost"}}})
    answers = tmp_path / "answers"
    answers.write_text(shim_text(recording))
    ended = _selfcheck(shim_folder, answers, "--only", "gpu.count", "--state", str(tmp_path))
    assert ended.returncode == 4, ended.stderr
    assert "gpu3" in ended.stdout
    assert "GPU is lost" in ended.stdout


@pytest.mark.multi
@pytest.mark.slow
def test_a_driver_that_hangs_ends_as_error_at_its_deadline(shim_folder, tmp_path):
    recording, _ = machine("h100")
    answers = tmp_path / "answers"
    answers.write_text(shim_text(recording) + "gpu2.sleep 600\n")
    start = time.monotonic()
    ended = _selfcheck(
        shim_folder,
        answers,
        "--exit",
        "nagios",
        "--only",
        "gpu.ecc",
        "--only",
        "gpu.pcie",
        "--only",
        "host.shm",
        "--state",
        str(tmp_path),
    )
    took = time.monotonic() - start
    assert ended.returncode == 3
    assert "did not end within 10 s" in ended.stdout
    assert took < 20  # one deadline, not one for every check of the driver
