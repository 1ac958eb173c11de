"""Folders of checkpoints: names, states, what counts as the newest."""

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
import xxhash

from engine.ckpt.catalog import (
    catalog,
    describe,
    find,
    folder_name,
    latest,
    missing_files,
    open_root,
    parse_folder,
    read_manifest,
    step_folders,
)
from engine.ckpt.manifest import MARKER_LIMIT, CheckpointMeta, Manifest, encode
from engine.ckpt.store import Found, open_store
from engine.errors import CheckpointError
from engine.spec.layout import ParallelLayout
from tests.engine.ckpt.state import dense, save


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    save(root, 3, 1, 2, dense(torch.float32))
    return root / "step-00000003"


@pytest.fixture
def root(tmp_path, saved):
    """Steps 3, 5 and 40, the last without its marker."""
    for step in (3, 40, 5):
        shutil.copytree(saved, tmp_path / folder_name(step))
    (tmp_path / "step-00000040" / "COMMITTED").unlink()
    (tmp_path / "notes").mkdir()
    return tmp_path


def put(folder, **changes):
    """A checkpoint without tensors, with other meta data."""
    body, marker = encode(
        Manifest(
            created_s=7.0, world=1, meta=CheckpointMeta(step=1, **changes), files=(), tensors={}
        )
    )
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(body)
    (folder / "COMMITTED").write_bytes(marker)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("step-00000100", (100, 1)),
        ("step-00000100.2", (100, 2)),
        ("step-123456789012", (123456789012, 1)),
        ("step-1234567890123", None),
        ("step-0000100", None),
        ("step-00000100.", None),
        ("step-00000100.12345", None),
        ("step-00000100.2.draft", None),
        ("xstep-00000100", None),
        ("step-00000100\n", None),
        ("step-٠٠٠٠٠١٠٠", None),
        ("", None),
    ],
)
def test_only_names_that_a_save_makes_are_checkpoints(name, parsed):
    assert parse_folder(name) == parsed


@pytest.mark.parametrize(("step", "attempt"), [(0, 1), (7, 2), (99999999, 1), (100000000, 9999)])
def test_names_are_read_back(step, attempt):
    assert parse_folder(folder_name(step, attempt)) == (step, attempt)


def test_steps_go_by_number_and_attempt(tmp_path):
    for name in ("step-100000000", "step-00000002.10", "step-00000002.9", "step-00000002", "x"):
        (tmp_path / name).mkdir()
    assert step_folders(open_store(tmp_path)) == [
        "step-00000002", "step-00000002.9", "step-00000002.10", "step-100000000"
    ]  # fmt: skip


def test_every_folder_has_its_state(root):
    (root / "step-00000005" / "rank-00001.safetensors").unlink()
    three, five, forty = catalog(root)
    assert (three.name, three.step, three.state, three.why) == ("step-00000003", 3, "committed", "")
    assert three.files == len(list((root / three.name).iterdir()))
    assert three.bytes == sum(f.stat().st_size for f in (root / three.name).iterdir())
    assert three.layout == ParallelLayout()
    assert (five.state, five.why) == ("damaged", "rank-00001.safetensors is absent")
    assert (forty.state, forty.why) == ("partial", "no COMMITTED marker")
    assert forty.where == f"{root}/step-00000040"
    assert forty.layout is None


def test_of_many_faults_three_are_told(tmp_path):
    save(tmp_path, 1, 1, 4, dense(torch.float32))
    for path in (tmp_path / "step-00000001").glob("*.safetensors"):
        path.unlink()
    (info,) = catalog(tmp_path)
    assert info.why == "; ".join(f"rank-0000{i}.safetensors is absent" for i in range(3))


def test_the_time_is_the_manifests_or_that_of_the_newest_file(root):
    newest = root / "step-00000040" / "manifest.json"
    os.utime(newest, (2e9, 2e9))
    three, _, forty = catalog(root)
    assert forty.created_s == 2e9
    assert three.created_s == read_manifest(open_store(root), "step-00000003").created_s


def test_the_newest_valid_one_is_found_by_looking(root, caplog):
    assert latest(root) == root / "step-00000005"
    assert "step-00000040 is partial and passed over" in caplog.text
    assert latest(str(root)) == f"{root}/step-00000005"
    with open(root / "step-00000005" / "rank-00000.safetensors", "ab") as file:
        file.write(b"x")
    assert latest(root) == root / "step-00000003"
    assert latest(root / "absent") is None


def test_sizes_are_exact():
    entry = {"name": "a", "bytes": 4, "digests": ""}
    manifest = msgspec.convert(
        {"created_s": 0.0, "world": 1, "meta": {"step": 1}, "files": [entry], "tensors": {}},
        Manifest,
    )
    assert missing_files(manifest, [Found("a", 4, 0.0), Found("b", 1, 0.0)]) == []
    assert missing_files(manifest, [Found("a", 3, 0.0)]) == ["a has 3 bytes instead of 4"]
    assert missing_files(manifest, []) == ["a is absent"]


@pytest.mark.parametrize(
    ("marker", "says"),
    [
        (b"", "COMMITTED: "),
        (b"\xff\xfe", "COMMITTED: "),
        (b"[" * 4000, "COMMITTED: "),
        (b"{}", "missing required field"),
        (b"x" * (MARKER_LIMIT + 1), f"longer than {MARKER_LIMIT} bytes"),
        ({"manifest": "../manifest.json"}, "is not a plain name"),
        ({"manifest": ".."}, "is not a plain name"),
        ({"manifest": "a\0b"}, "is not a plain name"),
        ({"manifest": ""}, "is not a plain name"),
        ({"manifest": "m" * 300}, "is not a plain name"),
        ({"manifest": "other.json"}, "other.json: absent although COMMITTED names it"),
        ({"bytes": 5}, "longer than 5 bytes"),
        ({"bytes": 10**6}, "content does not match"),
        ({"xxh3_128": "0" * 32}, "content does not match"),
        ({"xxh3_128": "0" * 31}, "COMMITTED: "),
        ({"bytes": -1}, "COMMITTED: "),
    ],
)
def test_a_hostile_marker_makes_a_folder_damaged(root, marker, says):
    path = root / "step-00000005" / "COMMITTED"
    if isinstance(marker, dict):
        marker = json.dumps(json.loads(path.read_bytes()) | marker).encode()
    path.write_bytes(marker)
    with pytest.raises(CheckpointError, match=says):
        read_manifest(open_store(root), "step-00000005")
    info = describe(open_store(root), "step-00000005")
    assert info.state == "damaged"
    assert info.why
    assert latest(root) == root / "step-00000003"


def test_a_manifest_that_matches_its_marker_and_is_nonsense(root):
    for body in (b"", b"[" * 100_000, b'{"version":1}', b"\xff"):
        marker = {"bytes": len(body), "xxh3_128": xxhash.xxh3_128_hexdigest(body)}
        (root / "step-00000005" / "manifest.json").write_bytes(body)
        (root / "step-00000005" / "COMMITTED").write_text(json.dumps(marker))
        assert describe(open_store(root), "step-00000005").state == "damaged"


@pytest.mark.parametrize(
    ("extra", "loss", "mark"),
    [
        ({}, None, ""),
        ({"val_loss": 2, "why": "end"}, 2.0, ""),
        ({"val_loss": 1.5, "why": "interval"}, 1.5, ""),
        ({"val_loss": "low", "why": "signal"}, None, "signal"),
        ({"val_loss": True, "why": 3}, None, ""),
        ({"val_loss": [], "why": "w" * 99}, None, "w" * 80),
    ],
)
def test_remarks_of_the_trainer_are_taken_if_of_the_right_type(tmp_path, extra, loss, mark):
    put(tmp_path / "step-00000001", extra=extra)
    info = describe(open_store(tmp_path), "step-00000001")
    assert (info.val_loss, info.mark, info.created_s) == (loss, mark, 7.0)


def test_a_run_is_asked_for_its_ckpt_folder(root, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(root / "step-00000003", run / "ckpt" / "step-00000003")
    assert open_root(run).url == f"{run}/ckpt"
    assert latest(run) == run / "ckpt" / "step-00000003"
    shutil.copytree(root / "step-00000003", run / "step-00000009")
    assert open_root(f"{run}/").url.rstrip("/") == str(run)


def test_a_checkpoint_is_found_by_name_run_or_any_folder(root):
    def found(where, **how):
        store, folder = find(where, **how)
        return f"{store.url}/{folder}"

    assert found(root / "step-00000040") == f"{root}/step-00000040"  # named: as it is
    assert found(root) == f"{root}/step-00000005"
    (root / "step-00000005" / "rank-00000.safetensors").unlink()
    assert found(root) == f"{root}/step-00000003"
    assert found(root, valid=False) == f"{root}/step-00000005"
    shutil.copytree(root / "step-00000003", root / "best")
    assert found(root / "best") == f"{root}/best"
    for where in (root / "notes", root / "absent", Path("/")):
        with pytest.raises(CheckpointError, match="no committed checkpoint here"):
            find(where)
