"""How the native library is chosen: modes, cache, lock, and life without a compiler."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.errors import MissingError
from engine.ops import native
from engine.ops.native import choose, source_key

CPU = torch.device("cpu")


@pytest.fixture
def no_tools(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda tool: None)


def test_reference_asks_for_nothing(no_tools, tmp_path):
    assert choose("reference", CPU, torch.float32, cache=tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_auto_without_a_compiler_is_plain_torch_and_says_so_once(no_tools, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert choose("auto", CPU, torch.float32, cache=tmp_path) is None
    assert [r.getMessage() for r in caplog.records] == [
        "operators: plain torch, since make is not installed"
    ]


def test_native_without_a_compiler_is_an_error_with_a_remedy(no_tools, tmp_path):
    with pytest.raises(MissingError, match="make is not installed") as caught:
        choose("native", CPU, torch.float32, cache=tmp_path)
    assert "train.ops = auto" in caught.value.remedy


def test_a_precision_without_kernels_is_not_native(tmp_path):
    assert choose("auto", CPU, torch.float16, cache=tmp_path) is None
    with pytest.raises(MissingError, match=r"no kernels for torch\.float16 on cpu"):
        choose("native", CPU, torch.float16, cache=tmp_path)


def test_a_cache_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(MissingError, match="others may write"):
        choose("native", CPU, torch.float32, cache=tmp_path)


def test_a_failed_build_names_its_error(monkeypatch, tmp_path):
    def fail(*command, **options):
        return subprocess.CompletedProcess(command, 2, "", "norm.cpp:3: error: no such thing\n")

    monkeypatch.setattr(native.shutil, "which", lambda tool: "/bin/true")
    monkeypatch.setattr(native.subprocess, "run", fail)
    with pytest.raises(MissingError, match=r"the build failed: norm.cpp:3: error: no such thing"):
        choose("native", CPU, torch.float32, cache=tmp_path)
    assert not list(tmp_path.glob("*.so"))


def test_a_build_that_hangs_ends(monkeypatch, tmp_path):
    def hang(*command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(native.shutil, "which", lambda tool: "/bin/true")
    monkeypatch.setattr(native.subprocess, "run", hang)
    with pytest.raises(MissingError, match="longer than 240 s"):
        choose("native", CPU, torch.float32, cache=tmp_path)


def test_the_key_changes_with_every_source(monkeypatch, tmp_path):
    before = source_key("cpu")
    assert before != source_key("cuda")
    copied = tmp_path / "csrc"
    for path in native.SOURCES.rglob("*"):
        if path.is_file():
            to = copied / path.relative_to(native.SOURCES)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
    monkeypatch.setattr(native, "SOURCES", copied)
    assert source_key("cpu") == before
    with (copied / "cpu" / "norm.cpp").open("a") as file:
        file.write("\n")
    assert source_key("cpu") != before


@pytest.mark.native
@pytest.mark.slow
def test_ranks_that_start_together_build_once(tmp_path):
    program = (
        "import logging, sys, torch; logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
        "from pathlib import Path\nfrom engine.ops.native import choose\n"
        f"choose('native', torch.device('cpu'), torch.float32, cache=Path({str(tmp_path)!r}))\n"
    )
    root = Path(native.__file__).parents[2]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(3)
    ]  # fmt: skip
    said = [process.communicate(timeout=250)[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    assert sum("building" in text for text in said) == 1
    assert len(list(tmp_path.glob("*.so"))) == 1
    assert not list(tmp_path.glob("build-*"))
